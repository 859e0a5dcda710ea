from __future__ import annotations

import pytest

from ebbtide.errors import RequestError
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.rebuilding import LogInTables, RepairInput, parse_asked, rebuilt_states
from ebbtide.state.topic_state import NEVER, PartitionState

TOLD = PartitionState(
    log_start_offset=10,
    log_end_offset=100,
    first_dirty_offset=60,
    first_unmarked_offset=100,
    segments=(SegmentStart(0, 1), SegmentStart(50, 2), SegmentStart(90, 3)),
    max_event_time_ms=77,
    cleaned_at_ms=5,
    cleaned_end_offset=100,
    next_clean_ms=NEVER,
    expired_end_offset=40,
    first_appended_offset=95,
    horizon_ms=9,
)
FOUND = LogInTables(
    start=5, end=100, segments=(SegmentStart(0, 11), SegmentStart(50, -1)), max_event_time_ms=70
)


def test_a_trusted_state_is_only_cleaned_and_marked_again() -> None:
    (state,) = rebuilt_states({0: TOLD}, {0: FOUND}, RepairInput(), 1_000).values()
    assert state == PartitionState(
        log_start_offset=10,
        log_end_offset=100,
        first_dirty_offset=10,
        first_unmarked_offset=10,
        segments=TOLD.segments,
        max_event_time_ms=77,
        expired_end_offset=40,
        first_appended_offset=95,
    )


@pytest.mark.parametrize(
    ("end", "log_end", "segments"),
    [(120, 100, 3), (95, 95, 3), (90, 90, 2), (60, 60, 2), (3, 10, 1)],
)
def test_a_log_that_lost_its_end_ends_earlier(end: int, log_end: int, segments: int) -> None:
    in_tables = FOUND._replace(end=end)
    (state,) = rebuilt_states({0: TOLD}, {0: in_tables}, RepairInput(), 1_000).values()
    assert state.log_end_offset == log_end
    assert state.segments == TOLD.segments[:segments]


def test_a_partition_that_lost_everything_ends_where_it_starts() -> None:
    (state,) = rebuilt_states({0: TOLD}, {}, RepairInput(), 1_000).values()
    assert (state.log_start_offset, state.log_end_offset) == (10, 10)


def test_a_lost_state_is_made_of_the_batches_and_of_what_is_asked() -> None:
    asked = RepairInput({0: 7, 2: 30}, {0: 80, 1: 60})
    states = rebuilt_states({}, {0: FOUND, 1: FOUND}, asked, 1_000)
    assert states[0].log_start_offset == 7
    assert states[1].log_start_offset == 5
    assert [state.max_event_time_ms for state in states.values()] == [80, 70, NEVER]
    assert states[0].segments == ((0, 11), (50, 1_000))
    assert states[0].expired_end_offset == states[0].log_end_offset == 100
    assert (states[2].log_start_offset, states[2].log_end_offset) == (30, 30)
    assert states[2].segments == ((30, 1_000),)


def test_what_is_asked_is_a_number_by_partition() -> None:
    assert parse_asked("--x", ["0=5", " 12 = 9223372036854775807"]) == {0: 5, 12: 2**63 - 1}
    for line in ("", "1", "=1", "1=", "a=1", "1=-1", "1=1.5", "1=9223372036854775808"):
        with pytest.raises(RequestError, match="expected PARTITION=NUMBER for --x"):
            parse_asked("--x", [line])
