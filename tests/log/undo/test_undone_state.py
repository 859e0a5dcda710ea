"""A partition's state after an undo: the removing runs' fields as before, the ingests' as now."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.ledger.undo_points import undone_state
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import NEVER, PartitionState


def state(segments: list[tuple[int, int]], end: int, **changes: Any) -> PartitionState:
    return PartitionState(
        **{
            "log_start_offset": 0,
            "log_end_offset": end,
            "first_dirty_offset": 0,
            "first_unmarked_offset": end,
            "segments": tuple(SegmentStart(*segment) for segment in segments),
            **changes,
        }
    )


def after(*states: PartitionState, filled: tuple[int, ...] = (), held: int = NEVER) -> Any:
    *before, current = states
    return undone_state(before, current, filled_segments=filled, quarantined_end=held)


def test_removing_runs_fields_go_back_and_ingests_stay() -> None:
    before = state([(0, 1), (5, 1)], 9, next_clean_ms=4, horizon_ms=5)
    current = state(
        [(5, 2), (9, 3)],
        12,
        log_start_offset=5,
        first_dirty_offset=5,
        cleaned_at_ms=8,
        cleaned_end_offset=9,
        next_clean_ms=-1,
        expired_end_offset=7,
        max_event_time_ms=6,
        first_appended_offset=11,
    )
    assert after(before, current, filled=(9,)) == state(
        [(0, 1), (5, 2), (9, 3)],
        12,
        first_unmarked_offset=9,
        next_clean_ms=4,
        horizon_ms=5,
        max_event_time_ms=6,
        first_appended_offset=11,
    )


@pytest.mark.parametrize(
    ("states", "filled", "segments"),
    [
        pytest.param(
            [([(0, 1), (5, 1)], 9), ([(9, 2)], 9)],
            (0, 5),
            [(0, 1), (5, 1)],
            id="a segment that retention has begun at the end goes again",
        ),
        pytest.param(
            [([(0, 1), (5, 1)], 9), ([(9, 2)], 12)],
            (0, 5),
            [(0, 1), (5, 2)],
            id="what was ingested behind it belongs to the source's segment",
        ),
        pytest.param(
            [([(0, 1), (5, 1)], 9), ([(9, 2)], 12)],
            (0, 5, 9),
            [(0, 1), (5, 1), (9, 2)],
            id="unless the source has begun one there itself",
        ),
        pytest.param(
            [([(0, 1), (5, 1)], 9), ([(5, 2), (9, 2)], 12), ([(12, 3), (14, 4)], 16)],
            (0, 5, 9, 14),
            [(0, 1), (5, 2), (9, 3), (14, 4)],
            id="segments of ingests between the runs are there again",
        ),
        pytest.param(
            [([(0, 1), (5, 1), (7, 1)], 9), ([(0, 1), (7, 1)], 9)],
            (0, 7),
            [(0, 1), (5, 1), (7, 1)],
            id="segments that a round has merged are apart again",
        ),
    ],
)
def test_segments(
    states: list[tuple[list[tuple[int, int]], int]],
    filled: tuple[int, ...],
    segments: list[tuple[int, int]],
) -> None:
    result = after(*(state(*each) for each in states), filled=filled)
    assert [tuple(segment) for segment in result.segments] == segments


@pytest.mark.parametrize(
    ("before", "current", "held", "end"),
    [
        pytest.param(NEVER, 8, NEVER, NEVER, id="what retention took is back"),
        pytest.param(NEVER, 8, 3, 3, id="what the quarantine holds is not"),
        pytest.param(5, 8, 3, 5, id="it was so before"),
    ],
)
def test_up_to_where_single_records_may_be_missing(
    before: int, current: int, held: int, end: int
) -> None:
    states = (state([(0, 1)], 9, expired_end_offset=offset) for offset in (before, current))
    assert after(*states, held=held).expired_end_offset == end


def test_what_is_not_marked_is_marked_again() -> None:
    states = [state([(0, 1)], 9, first_unmarked_offset=offset) for offset in (6, 4, 9)]
    assert after(*states).first_unmarked_offset == 4
