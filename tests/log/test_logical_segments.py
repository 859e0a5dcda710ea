from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.numbers import MAX_INT
from ebbtide.settings.config import TopicConfig
from ebbtide.state.logical_segments import (
    Bounds,
    Cleanable,
    Segment,
    between,
    cleanable,
    merged,
    neighbours_to_merge,
    segment_of,
)
from tests.log.builders import T0, segment

NOW_MS = T0 + 1_000
# Segments [0, 10), [10, 20), [20, 30) and the active one from 30 on.
LOG = [segment(0), segment(10), segment(20), segment(30)]


def offered(segments: list[Segment] | None = None, **fields: Any) -> Cleanable:
    """What the log offers: all dirty, decided and marked, unless said otherwise."""
    config = TopicConfig(**{name: fields.pop(name) for name in list(fields) if "_lag_" in name})
    ordinary = {
        "log_start_offset": 0,
        "log_end_offset": 40,
        "first_dirty_offset": 0,
        "last_stable_offset": 40,
        "first_unmarked_offset": 40,
    }
    return cleanable(segments or LOG, Bounds(**{**ordinary, **fields}), config, NOW_MS)


# -- ranges


@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [
        pytest.param(0, 40, [0, 10, 20, 30], id="all of them"),
        pytest.param(15, 25, [10, 20], id="from the one that holds the start"),
        pytest.param(10, 20, [10], id="up to the end, which is not in"),
        pytest.param(10, 10, [], id="an empty range"),
        pytest.param(15, 15, [], id="an empty range in mid-segment"),
        pytest.param(-1, 0, [], id="before the first"),
        pytest.param(-1, 11, [0, 10], id="from before the first"),
    ],
)
def test_which_segments_a_range_of_offsets_has(start: int, end: int, bases: list[int]) -> None:
    assert [s.base_offset for s in between(LOG, start, end)] == bases


@pytest.mark.parametrize(
    ("offset", "base"),
    [
        pytest.param(10, 10, id="its own base"),
        pytest.param(19, 10, id="inside"),
        pytest.param(99, 30, id="after the last"),
        pytest.param(-5, 0, id="before the first"),
    ],
)
def test_which_segment_holds_an_offset(offset: int, base: int) -> None:
    assert segment_of([0, 10, 20, 30], offset) == base


def test_a_segment_without_timestamps_is_as_old_as_its_file() -> None:
    assert segment(0, max_timestamp_ms=-1).largest_timestamp_ms == T0
    assert segment(0, max_timestamp_ms=0).largest_timestamp_ms == 0


# -- what may be cleaned

YOUNG = [LOG[0], segment(10, max_timestamp_ms=NOW_MS - 99), LOG[2], LOG[3]]
ON_THE_DOT = [LOG[0], segment(10, max_timestamp_ms=NOW_MS - 100), LOG[2], LOG[3]]


@pytest.mark.parametrize(
    ("case", "first_uncleanable"),
    [
        pytest.param({}, 30, id="the active segment never"),
        pytest.param({"last_stable_offset": 20}, 20, id="below an undecided transaction"),
        pytest.param({"last_stable_offset": 29}, 20, id="in mid-segment, not the whole segment"),
        pytest.param({"first_unmarked_offset": 15}, 10, id="below the first unmarked offset"),
        pytest.param({"last_stable_offset": 5}, 0, id="nothing where the first segment is open"),
        pytest.param({"first_dirty_offset": 20, "last_stable_offset": 5}, 20, id="never backwards"),
        pytest.param({"first_dirty_offset": 35}, 30, id="first dirty inside the active segment"),
        pytest.param({"segments": YOUNG}, 30, id="no lag, no bound"),
        pytest.param(
            {"segments": YOUNG, "min_compaction_lag_ms": 100}, 10, id="younger than the lag: not"
        ),
        pytest.param(
            {"segments": ON_THE_DOT, "min_compaction_lag_ms": 100}, 30, id="exactly the lag: yes"
        ),
        pytest.param(
            {"segments": YOUNG, "min_compaction_lag_ms": 100, "first_dirty_offset": 20},
            30,
            id="a young segment that is clean does not count",
        ),
    ],
)
def test_the_first_uncleanable_offset(case: dict[str, Any], first_uncleanable: int) -> None:
    assert offered(**case).first_uncleanable_offset == first_uncleanable


@pytest.mark.parametrize(
    ("bounds", "first_dirty"),
    [
        pytest.param({"first_dirty_offset": 40}, 40, id="the log end offset is valid"),
        pytest.param({"first_dirty_offset": 41}, 7, id="beyond it, all is dirty again"),
        pytest.param({"first_dirty_offset": 7}, 7, id="the log start offset is valid"),
        pytest.param({"first_dirty_offset": 6}, 7, id="below it, the log start offset"),
    ],
)
def test_a_first_dirty_offset_out_of_range_is_reset(
    bounds: dict[str, Any], first_dirty: int
) -> None:
    assert offered(log_start_offset=7, **bounds).first_dirty_offset == first_dirty


@pytest.mark.parametrize(
    ("case", "clean_bytes", "cleanable_bytes"),
    [
        pytest.param({}, 0, 300, id="all dirty"),
        pytest.param({"first_dirty_offset": 10}, 100, 200, id="a clean segment"),
        pytest.param({"first_dirty_offset": 30}, 300, 0, id="all clean"),
        pytest.param({"first_dirty_offset": 25}, 300, 100, id="a mid-segment counts on both sides"),
        pytest.param({"first_dirty_offset": 35}, 400, 0, id="in the active segment, also that"),
        pytest.param({"last_stable_offset": 15}, 0, 100, id="what is uncleanable counts for none"),
    ],
)
def test_clean_and_cleanable_bytes(
    case: dict[str, Any], clean_bytes: int, cleanable_bytes: int
) -> None:
    log = offered(**case)
    assert (log.clean_bytes, log.cleanable_bytes) == (clean_bytes, cleanable_bytes)


def test_a_single_segment_resumed_inside_has_a_ratio_of_one_half() -> None:
    log = offered([segment(0), segment(6, 0)], first_dirty_offset=4, log_end_offset=6)
    assert log.ratio == 0.5


@pytest.mark.parametrize(
    ("clean", "dirty", "is_overdue", "least", "is_picked"),
    [
        pytest.param(50, 50, False, 0.5, False, id="at the ratio: not"),
        pytest.param(49, 51, False, 0.5, True, id="above the ratio"),
        pytest.param(99, 1, True, 0.5, True, id="overdue with a byte to clean"),
        pytest.param(99, 0, True, 0.5, False, id="overdue with nothing to clean"),
        pytest.param(99, 0, False, 0.0, False, id="nothing dirty, also at ratio 0"),
        pytest.param(0, 0, True, 0.0, False, id="an empty log"),
        pytest.param(0, 1, False, 1.0, False, id="ratio 1 picks nothing"),
    ],
)
def test_whether_kafka_would_clean_now(
    clean: int, dirty: int, is_overdue: bool, least: float, is_picked: bool
) -> None:
    assert Cleanable(0, 0, 0, clean, dirty, is_overdue).is_picked(least) == is_picked


@pytest.mark.parametrize(
    ("first_batches", "first_dirty", "is_overdue"),
    [
        pytest.param([NOW_MS - 100, None, None], 0, False, id="exactly the lag: not"),
        pytest.param([NOW_MS - 101, None, None], 0, True, id="older than the lag"),
        pytest.param([NOW_MS, NOW_MS - 101, NOW_MS], 0, True, id="any dirty segment will do"),
        pytest.param([NOW_MS - 101, NOW_MS, NOW_MS], 10, False, id="a clean one will not"),
        pytest.param([0, -1, None], 0, False, id="no time counts that is not above 0"),
    ],
)
def test_when_max_compaction_lag_has_passed(
    first_batches: list[int | None], first_dirty: int, is_overdue: bool
) -> None:
    times = [*first_batches, 1]  # the active segment's does not count
    segments = [s._replace(first_batch_timestamp_ms=ms) for s, ms in zip(LOG, times, strict=True)]
    log = offered(segments, max_compaction_lag_ms=100, first_dirty_offset=first_dirty)
    assert log.is_overdue == is_overdue


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    start=st.integers(0, 60),
    dirty=st.integers(0, 60),
    stable=st.integers(0, 60),
)
def test_the_bound_begins_a_segment_and_passes_neither_active_nor_undecided(
    lengths: list[int], start: int, dirty: int, stable: int
) -> None:
    bases = [sum(lengths[:i]) for i in range(len(lengths))]
    end = sum(lengths)
    start, dirty = min(start, end), min(dirty, end)
    log = offered(
        [segment(base) for base in bases],
        log_start_offset=start,
        log_end_offset=end,
        first_dirty_offset=dirty,
        last_stable_offset=max(start, min(stable, end)),
        first_unmarked_offset=end,
    )
    bound = log.first_uncleanable_offset
    assert bound in bases
    assert bound <= max(log.first_dirty_offset, max(start, min(stable, end)))
    assert log.cleanable_bytes == (
        100 * sum(segment_of(bases, log.first_dirty_offset) <= base < bound for base in bases)
    )


# -- merging


@pytest.mark.parametrize(
    ("segments", "limit", "groups"),
    [
        pytest.param([(0, 50), (10, 50), (20, 1)], 100, [0, 20], id="while the bytes fit"),
        pytest.param([(0, 200), (10, 1), (20, 1)], 100, [0, 10], id="one too large stays alone"),
        pytest.param([(0, 1), (10, 200), (20, 1)], 100, [0, 10, 20], id="and parts the others"),
        pytest.param([(0, 1), (10, 0), (20, 0)], 1, [0], id="empty ones cost nothing"),
        pytest.param(
            [(0, 1), (10, 1), (MAX_INT + 2, 1)],
            100,
            [0, 10],
            id="offsets of a group lie within an int of its base",
        ),
        pytest.param(
            [(0, 1), (10, 1), (MAX_INT + 1, 1)],
            100,
            [0, MAX_INT + 1],
            id="and so does its end",
        ),
        pytest.param(
            [(0, 1), (MAX_INT * 2, 0), (MAX_INT * 3, 0)], 100, [0], id="an empty one lies anywhere"
        ),
    ],
)
def test_which_neighbours_merge(
    segments: list[tuple[int, int]], limit: int, groups: list[int]
) -> None:
    log = [segment(base, size) for base, size in segments]
    bound = log[-1].base_offset + 1
    active = segment(bound)
    assert [s.base_offset for s in merged([*log, active], bound, limit)] == [*groups, bound]


def test_a_group_has_the_time_of_its_last_member() -> None:
    log = [segment(0)._replace(modified_ms=9), segment(10)._replace(modified_ms=3), segment(20)]
    assert [(s.base_offset, s.modified_ms) for s in merged(log, 20, 1000)] == [(0, 3), (20, T0)]


class Counted(int):
    """A size that counts how often one is added to another."""

    additions = 0

    def __add__(self, other: int) -> Counted:
        Counted.additions += 1
        return Counted(int(self) + other)

    __radd__ = __add__


def test_merging_looks_at_each_segment_once() -> None:
    count = 10_000
    log = [segment(base, Counted(1)) for base in range(count)]
    Counted.additions = 0
    assert len(merged(log, count, count)) == 1
    assert Counted.additions <= 2 * count


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    limit=st.integers(1, 120),
    bound=st.integers(0, 12),
)
def test_groups_are_as_large_as_they_may_be_and_no_larger(
    sizes: list[int], limit: int, bound: int
) -> None:
    log = [segment(base, size) for base, size in enumerate(sizes)]
    bases = [s.base_offset for s in merged(log, bound, limit)]
    below = sizes[:bound]
    heads = [base for base in bases if base < bound]
    ends = [*heads[1:], len(below)][: len(heads)]
    groups = [below[head:end] for head, end in zip(heads, ends, strict=True)]
    assert [size for group in groups for size in group] == below
    assert all(sum(group) <= limit for group in groups if len(group) > 1)
    assert all(sum(group) + following[0] > limit for group, following in pairwise(groups))
    assert bases[len(heads) :] == list(range(min(bound, len(sizes)), len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "logical", "groups"),
    [
        ([(0, 10), (5, 10), (9, 10)], [0, 20], [[0, 5, 9]]),
        ([(0, 10), (5, 10), (9, 10)], [0, 20, 30], [[0, 5, 9]]),
        ([(0, 10), (5, 10)], [0, 20], []),  # more may come
        ([(0, 10), (5, 10), (9, 11)], [0, 20], [[0, 5]]),  # no more fits
        ([(0, 31), (5, 10), (9, 10), (12, 10)], [0, 20], [[5, 9, 12]]),  # one is large enough
        ([(0, 10), (5, 31), (9, 10), (12, 10)], [0, 20], []),  # only neighbours
        ([(b, 10) for b in range(6)], [0, 20], [[0, 1, 2], [3, 4, 5]]),
        ([(0, 1), (5, 1), (9, 1), (12, 1)], [0, 9, 20], [[0, 5]]),  # not across logical segments
        ([(0, 1), (5, 1), (9, 1)], [0], []),  # not in the active one
        ([(0, 1), (5, 1), (9, 1), (12, 1)], [5, 20], [[5, 9, 12]]),  # not before the first one
    ],
)
def test_which_small_neighbours_are_written_as_one(
    sizes: list[tuple[int, int]], logical: list[int], groups: list[list[int]]
) -> None:
    assert neighbours_to_merge(sizes, logical, target_bytes=30, at_least=3) == groups
