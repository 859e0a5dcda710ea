from __future__ import annotations

import re

import pytest

from ebbtide.errors import RequestError
from ebbtide.specs.erase_request import (
    FromOffset,
    offsets_to_mark_again_from,
    parse_from_offset,
    ranges_to_mark,
)
from tests.lake_sandbox import state_of

STATES = {
    0: state_of(first_dirty_offset=40, first_unmarked_offset=80),
    2: state_of(log_start_offset=10, first_dirty_offset=0),
}
ALL = None


@pytest.mark.parametrize(
    ("text", "asked"),
    [("7", FromOffset(ALL, 7)), ("0:7", FromOffset(0, 7)), ("12:0", FromOffset(12, 0))],
)
def test_an_offset_is_of_one_partition_or_of_all(text: str, asked: FromOffset) -> None:
    assert parse_from_offset(text) == asked


@pytest.mark.parametrize("text", ["", ":7", "0:", "-1", "0:-1", "a:1", "1:2:3", "1_0", "\u0661"])
def test_anything_else_is_refused(text: str) -> None:
    message = f"expected OFFSET or PARTITION:OFFSET, found {text!r}"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        parse_from_offset(text)


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([(0, 40)], {0: 40}, id="the first dirty offset"),
        pytest.param([(0, 100)], {0: 100}, id="the log end offset"),
        pytest.param([(2, 10)], {2: 10}, id="the log start offset"),
        pytest.param([(ALL, 50)], {0: 50, 2: 50}, id="all partitions"),
        pytest.param([(2, 20), (ALL, 50)], {0: 50, 2: 20}, id="all others"),
    ],
)
def test_where_to_mark_again_from(
    asked: list[tuple[int | None, int]], offsets: dict[int, int]
) -> None:
    wanted = [FromOffset(*each) for each in asked]
    assert offsets_to_mark_again_from(STATES, {}, wanted) == offsets


CLEANED = "a cleaner round has used the marks below offset"
NOT_THERE = "which the log does not have"


@pytest.mark.parametrize(
    ("asked", "cleaned_up_to", "message"),
    [
        pytest.param(
            [(0, 39)],
            {},
            f"an offset from 40 to 100 to begin marking partition 0 again, found 39: {CLEANED} 40",
            id="below the first dirty offset",
        ),
        pytest.param(
            [(0, 59)],
            {0: 60},
            f"an offset from 60 to 100 to begin marking partition 0 again, found 59: {CLEANED} 60",
            id="below where a round in flight ends",
        ),
        pytest.param(
            [(2, 9)],
            {},
            f"an offset from 10 to 100 to begin marking partition 2 again, found 9, {NOT_THERE}",
            id="below the log start offset",
        ),
        pytest.param(
            [(ALL, 101)],
            {},
            f"an offset from 40 to 100 to begin marking partition 0 again, found 101, {NOT_THERE}",
            id="past the log end offset",
        ),
        pytest.param(
            [(1, 50)], {}, "one of the partitions 0, 2 to mark again, found 1", id="no partition"
        ),
        pytest.param(
            [(0, 50), (0, 60)],
            {},
            "at most one offset per partition and one for the remaining partitions, "
            "found 0:50, 0:60",
            id="two of one partition",
        ),
        pytest.param(
            [(ALL, 50), (ALL, 60)],
            {},
            "at most one offset per partition and one for the remaining partitions, found 50, 60",
            id="two of all",
        ),
    ],
)
def test_an_offset_out_of_bounds_is_refused(
    asked: list[tuple[int | None, int]], cleaned_up_to: dict[int, int], message: str
) -> None:
    wanted = [FromOffset(*each) for each in asked]
    with pytest.raises(RequestError, match=f"^{re.escape('expected ' + message)}$"):
        offsets_to_mark_again_from(STATES, cleaned_up_to, wanted)


def test_what_is_looked_at() -> None:
    """Never below the log start offset, and nothing unmarked is left out."""
    hidden = state_of(log_start_offset=10, first_unmarked_offset=5)
    assert ranges_to_mark(STATES, {}) == {0: (80, 100)}
    assert ranges_to_mark(STATES, {0: 40, 2: 70}) == {0: (40, 100), 2: (70, 100)}
    assert ranges_to_mark(STATES, {0: 90, 2: 100}) == {0: (80, 100)}
    assert ranges_to_mark({0: hidden}, {}) == {0: (10, 100)}
