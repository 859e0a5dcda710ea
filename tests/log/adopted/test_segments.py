"""Segments of a log without batches: what arrives is added up, and the active one is cut."""

from dataclasses import replace

import pytest

from ebbtide.kafka.adopted_segments import (
    ArrivedRows,
    cut,
    is_another_log,
    merged_into,
    new_log,
    no_rows,
    segments_of,
    with_arrived,
)
from ebbtide.settings.config import TopicConfig
from ebbtide.state.covered_offsets import HorizonRange, OffsetRange
from ebbtide.state.logical_segments import SegmentSums, merged
from ebbtide.state.topic_state import PartitionState, parse_states, to_properties

CONFIG = TopicConfig(segment_ms=100, segment_bytes=1000)


def arrived(state: PartitionState, end: int, first_ms: int, size: int = 10) -> PartitionState:
    base = state.active_segment
    sums = SegmentSums(size, first_ms, first_ms + 5, end - state.log_end_offset)
    rows = ArrivedRows(end, {base: sums})
    return with_arrived(state, rows, first_ms)


@pytest.mark.parametrize(
    ("now_ms", "size", "bases"),
    [
        pytest.param(149, 10, [0], id="neither old nor large"),
        pytest.param(150, 10, [0, 4], id="old"),
        pytest.param(60, 1000, [0, 4], id="large"),
    ],
)
def test_an_active_segment_is_closed_at_the_log_end(
    now_ms: int, size: int, bases: list[int]
) -> None:
    state = cut(arrived(new_log(0, 50), 4, 50, size), CONFIG, now_ms)
    assert [segment.base_offset for segment in state.segments] == bases
    assert cut(state, CONFIG, now_ms) == state


def test_a_segment_is_closed_where_a_plan_found_the_log_end() -> None:
    state = cut(arrived(new_log(0, 50), 4, 50), CONFIG, 150, at_most=3)
    assert [segment.base_offset for segment in state.segments] == [0, 3]
    again = cut(state, CONFIG, 151)  # offset 3 is in a segment that is as old
    assert [segment.base_offset for segment in again.segments] == [0, 3, 4]


def test_an_empty_segment_is_never_closed() -> None:
    assert cut(new_log(0, 50), CONFIG, 10_000) == new_log(0, 50)


def test_rows_below_the_log_start_are_known_until_all_rows_are_counted() -> None:
    """A look keeps them for the job that removes them; a count of all rows says where they are."""
    state = replace(arrived(new_log(0, 50), 9, 50), log_start_offset=9)
    for offset in (4, 2):
        late = ArrivedRows(9, {}, below_start=OffsetRange(offset, offset + 1))
        state = with_arrived(state, late, 100)
    assert state.late == (OffsetRange(2, 5),)
    state = with_arrived(state, ArrivedRows(12, {}), 100)
    assert parse_states(to_properties(0, state))[0].late == (OffsetRange(2, 5),)
    left = ArrivedRows(12, {}, are_all=True, below_start=OffsetRange(4, 5))
    assert with_arrived(state, left, 100).late == (OffsetRange(4, 5),)
    assert with_arrived(state, no_rows(state), 100).late == ()


def test_late_rows_are_dirty_again_and_their_tombstones_wait() -> None:
    state = cut(arrived(new_log(0, 50), 4, 50), CONFIG, 150)
    state = state.moved(first_dirty_offset=4, horizons=(HorizonRange(4, 500),))
    rows = ArrivedRows(3, {0: SegmentSums(5, 10, 10, 1)}, 2, (OffsetRange(2, 3),))
    late = with_arrived(state, rows, 160)
    assert (late.first_dirty_offset, late.log_end_offset) == (2, 4)
    assert late.horizons == (HorizonRange(2, 500), HorizonRange(3, -1), HorizonRange(4, 500))
    assert late.sums[0] == SegmentSums(15, 10, 55, 5)
    assert late.segments[0].modified_ms == 160


def test_a_record_of_1970s_first_moment_stays_the_newest() -> None:
    state = with_arrived(
        new_log(0, 50), ArrivedRows(1, {0: SegmentSums(5, 0, 0, 1)}, max_event_time_ms=0), 50
    )
    after = with_arrived(state, ArrivedRows(2, {0: SegmentSums(5, -1, -1, 1)}), 60)
    assert (state.max_event_time_ms, after.max_event_time_ms) == (0, 0)
    assert segments_of(after)[0].max_event_time_ms == 0


def test_rows_counted_anew_take_the_place_of_all_before() -> None:
    state = cut(arrived(new_log(0, 50), 4, 50), CONFIG, 150)
    state = cut(arrived(state, 8, 150), CONFIG, 250)
    sums = {0: SegmentSums(5, 50, 52, 1), 8: SegmentSums(7, 260, 261, 2)}
    after = with_arrived(state, ArrivedRows(10, sums, are_all=True, grown=frozenset({8})), 300)
    assert after.sums == (sums[0], SegmentSums(0, -1, -1, 0), sums[8])
    assert [segment.modified_ms for segment in after.segments] == [50, 150, 300]
    empty = with_arrived(after, no_rows(after), 400)
    assert [segment_sums.record_count for segment_sums in empty.sums] == [0, 0, 0]
    assert (empty.log_end_offset, empty.segments) == (10, after.segments)


def test_merged_segments_keep_the_sums_of_their_members_less_what_left() -> None:
    state = cut(arrived(new_log(0, 50), 4, 50), CONFIG, 150)
    state = cut(arrived(state, 8, 150, 30), CONFIG, 250)
    heads = merged(segments_of(state), 8, 1000)
    after = merged_into(state, heads, {0: 2})
    assert [segment.base_offset for segment in after.segments] == [0, 8]
    assert after.sums[0] == SegmentSums(35, 50, 155, 6)


def test_a_state_with_horizons_and_sums_is_read_back() -> None:
    state = cut(arrived(new_log(0, 50), 4, 50), CONFIG, 150)
    state = state.moved(horizons=(HorizonRange(4, 500),))
    assert parse_states(to_properties(3, state)) == {3: state}


@pytest.mark.parametrize(
    ("known_ms", "newest_below_ms", "first_again_ms", "is_another"),
    [
        pytest.param(100, 100, -1, False, id="late row below the start"),
        pytest.param(100, 101, -1, True, id="newer row below the start"),
        pytest.param(100, -1, 100, False, id="first row once more"),
        pytest.param(100, -1, 101, True, id="newer first row"),
        pytest.param(-1, 101, 101, False, id="no time known"),
        pytest.param(None, 101, 101, False, id="time not worked out"),
    ],
)
def test_old_offsets_with_newer_times_are_another_log(
    known_ms: int | None, newest_below_ms: int, first_again_ms: int, is_another: bool
) -> None:
    state = replace(new_log(0, 0), max_event_time_ms=known_ms)
    rows = ArrivedRows(5, {}, newest_below_ms=newest_below_ms, first_again_ms=first_again_ms)
    assert is_another_log(state, rows) == is_another
