"""Which offsets of an adopted topic never arrived, against sets of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import xor

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from ebbtide.state import covered_offsets as missing_offsets
from ebbtide.state.covered_offsets import (
    PRIME,
    Expected,
    Missing,
    MissingRange,
    count_missing,
    in_words,
    with_arrivals,
)

SMALL = st.integers(0, 60)
NEAR_A_MULTIPLE = st.integers(-12, 0).map(lambda n: 3 * PRIME + n)


def is_met(expected: Expected, offsets: Sequence[int]) -> bool:
    total, squares = (sum(offset**n for offset in offsets) % PRIME for n in (1, 2))
    return expected.is_met_by(len(offsets), total, squares, reduce(xor, offsets))


def offsets_of(missing: Missing) -> set[int]:
    return {offset for gap in missing for offset in range(gap.first, gap.end)}


@given(st.lists(st.sets(SMALL, min_size=1), min_size=1, max_size=4), st.integers(0, 20))
def test_what_never_arrived_is_what_no_look_saw(looks: list[set[int]], start: int) -> None:
    missing: Missing = ()
    seen: set[int] = set()
    end = first = min(looks[0])
    for arrived in looks:
        seen |= arrived
        after = max(end, max(arrived) + 1)
        missing = with_arrivals(missing, 0, Expected(end, after), BitMap64(arrived))
        end = after
        assert offsets_of(missing) == set(range(first, end)) - seen
        assert count_missing(missing) == len(offsets_of(missing))
    left = with_arrivals(missing, start, Expected(end, end), None)
    assert offsets_of(left) == {offset for offset in offsets_of(missing) if offset >= start}


@given(
    st.integers(0, 10**18) | NEAR_A_MULTIPLE,
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
)
def test_sums_tell_whether_each_arrived_once(first: int, arrived: list[int]) -> None:
    """Beyond two doubled offsets in the place of others, they may be the same by chance."""
    offsets = [first + number for number in arrived]
    expected = Expected(first, max(offsets) + 1)
    wanted = range(first, expected.end)
    if len(offsets) != len(wanted) or len(set(wanted) - set(offsets)) < 3:
        assert is_met(expected, offsets) is (sorted(offsets) == list(wanted))


def test_two_doubled_offsets_show_in_the_place_of_two_that_lack() -> None:
    """Their count, sum and exclusive or are the same."""
    assert not is_met(Expected(0, 4), [0, 0, 3, 3])
    assert is_met(Expected(0, 4), [0, 1, 2, 3])


def test_four_doubled_offsets_can_hide_four_that_lack() -> None:
    """What the sums cannot see, so that nobody relies on more."""
    assert is_met(Expected(0, 8), [0, 0, 3, 3, 5, 5, 6, 6])


def test_many_ranges_become_one_that_counts() -> None:
    even = BitMap64(range(0, 1000, 2))
    missing = with_arrivals((), 0, Expected(0, 1000), even)
    assert len(missing) == missing_offsets.MOST_RANGES + 1
    assert missing[0] == MissingRange(0, 800, 400)
    assert missing[-1] == MissingRange(999, 1000, 1)
    assert count_missing(missing) == 500
    far = with_arrivals(missing, 0, Expected(1000, 2**62), BitMap64([2**62 - 1]))
    assert far[-1] == MissingRange(999, 2**62 - 1, 2**62 - 1000)
    more = with_arrivals(missing, 0, Expected(1000, 1003), BitMap64([1001]))
    assert count_missing(more) == 502
    assert not more[0].is_whole
    assert count_missing(with_arrivals(more, 900, Expected(1003, 1003), None)) == 52


def test_the_newest_range_is_named() -> None:
    words = in_words((MissingRange(3, 5, 2), MissingRange(1_000, 3_000, 2_000)), 7)
    assert words.startswith(
        "partition 7: 2,002 offsets never arrived, the newest from 1000 to 2999. Transaction "
    )
