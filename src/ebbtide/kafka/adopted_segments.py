"""Logical segments of a log without batches: each round cuts them by time, bytes and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ebbtide.moments import earlier
from ebbtide.numbers import MAX_LONG
from ebbtide.settings.config import TopicConfig
from ebbtide.state.covered_offsets import Missing, OffsetRange, covered_end, with_late
from ebbtide.state.logical_segments import Segment, SegmentStart, SegmentSums, segment_of
from ebbtide.state.topic_state import NEVER, PartitionState

EMPTY = SegmentSums(0, NEVER, NEVER, 0)


class ArrivedRows(NamedTuple):
    """Rows of one partition that arrived since the last round."""

    end_offset: int
    # By base offset; the last segment has no upper bound. Rows below the log start are in none.
    by_segment: Mapping[int, SegmentSums]
    first_late_offset: int | None = None  # late: below the covered end
    late_tombstones: Sequence[OffsetRange] = ()
    max_event_time_ms: int = NEVER
    are_all: bool = False  # all live rows are counted again, not only the new ones
    grown: frozenset[int] = frozenset()  # with `are_all`: the segments that have new rows
    below_start: OffsetRange | None = None  # range of the rows below the log start offset
    newest_below_ms: int = NEVER  # their latest timestamp
    first_again_ms: int = NEVER  # the latest timestamp of a new row at offset 0
    missing: Missing | None = None  # offsets that never arrived; None: unchanged


def is_another_log(state: PartitionState, rows: ArrivedRows) -> bool:
    """Return whether the rows are of a log that started again: old offsets with newer times.

    That is so if a row below the log start offset, or at offset 0, is newer than all known rows.
    The answer is False if no time is known.
    """
    known_ms = state.max_event_time_ms
    if known_ms is None or known_ms == NEVER:
        return False
    return max(rows.newest_below_ms, rows.first_again_ms) > known_ms


def new_log(first_offset: int, now_ms: int) -> PartitionState:
    """Return the state of a new log whose rows begin at this offset."""
    return PartitionState(
        log_start_offset=first_offset,
        log_end_offset=first_offset,
        first_dirty_offset=first_offset,
        first_unmarked_offset=first_offset,
        segments=(SegmentStart(first_offset, now_ms),),
        sums=(EMPTY,),
    )


def with_arrived(state: PartitionState, rows: ArrivedRows, now_ms: int) -> PartitionState:
    """Return the state with the rows in its segments; late rows are dirty again."""
    segments = list(state.segments)
    sums = [EMPTY] * len(segments) if rows.are_all else list(state.sums)
    bases = [segment.base_offset for segment in segments]
    for offset, more in rows.by_segment.items():
        place = bases.index(segment_of(bases, offset))
        sums[place] = _added(sums[place], more)
        if offset in rows.grown or not rows.are_all:
            segments[place] = segments[place]._replace(modified_ms=now_ms)
    end = max(state.log_end_offset, rows.end_offset)
    first_dirty = state.first_dirty_offset
    below = [*([] if rows.are_all else state.late), *filter(None, [rows.below_start])]
    if rows.first_late_offset is not None:
        first_dirty = min(first_dirty, max(rows.first_late_offset, state.log_start_offset))
    return replace(
        state,
        missing=state.missing if rows.missing is None else rows.missing,
        late=_together(below),
        log_end_offset=end,
        first_unmarked_offset=end,
        first_dirty_offset=first_dirty,
        horizons=with_late(state.horizons, rows.late_tombstones),
        max_event_time_ms=max(state.max_event_time_ms, rows.max_event_time_ms),
        segments=tuple(segments),
        sums=tuple(sums),
    )


def _together(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return one range that covers all of these, or none for none."""
    if not ranges:
        return ()
    return (OffsetRange(min(r.first for r in ranges), max(r.end for r in ranges)),)


def no_rows(state: PartitionState) -> ArrivedRows:
    """Return the rows of a partition that has no live row left."""
    return ArrivedRows(state.log_end_offset, {}, are_all=True)


def cut(
    state: PartitionState, config: TopicConfig, now_ms: int, at_most: int = MAX_LONG
) -> PartitionState:
    """Return the state with its active segment closed, if it is old or large enough.

    It ends at the log end offset, or at `at_most`, the log end offset of a stored plan. Kafka:
    LogSegment.shouldRoll.
    """
    active, end = state.sums[-1], min(state.log_end_offset, at_most)
    is_old = 0 <= active.first_timestamp_ms <= earlier(now_ms, config.segment_ms)
    if end <= state.active_segment or not (is_old or active.size_bytes >= config.segment_bytes):
        return state
    # Rows past a plan's end count in the closed segment; their times count in the next one too.
    left = EMPTY if end == state.log_end_offset else active._replace(size_bytes=0, record_count=0)
    return replace(
        state,
        segments=(*state.segments, SegmentStart(end, now_ms)),
        sums=(*state.sums, left),
    )


def segments_of(state: PartitionState) -> list[Segment]:
    """Return the segments with their sums."""
    return [
        Segment(
            base,
            modified_ms,
            size_bytes=sums.size_bytes,
            max_timestamp_ms=sums.max_timestamp_ms,
            first_batch_timestamp_ms=sums.first_timestamp_ms,
            max_event_time_ms=min(sums.max_timestamp_ms, state.max_event_time_ms),
            max_append_time_ms=sums.max_timestamp_ms,
            record_count=sums.record_count,
        )
        for (base, modified_ms), sums in zip(state.segments, state.sums, strict=True)
    ]


def merged_into(
    state: PartitionState, heads: Iterable[Segment], removed: Mapping[int, int]
) -> PartitionState:
    """Return the state with its segments grouped under `heads`, without rows removed by segment."""
    kept = list(heads)
    bases = [segment.base_offset for segment in kept]
    sums = dict.fromkeys(bases, EMPTY)
    for (base, _), segment_sums in zip(state.segments, state.sums, strict=True):
        head = segment_of(bases, base)
        sums[head] = _added(sums[head], _less(segment_sums, removed.get(base, 0)))
    return replace(
        state,
        segments=tuple(segment.start for segment in kept),
        sums=tuple(sums[base] for base in bases),
    )


def without_expired(
    state: PartitionState, kept: Sequence[Segment], log_start_offset: int
) -> PartitionState:
    """Return the state with this log start offset and only the retained segments."""
    of_base = dict(zip(state.segments, state.sums, strict=True))
    starts = tuple(segment.start for segment in kept)
    return state.moved(
        log_start_offset=log_start_offset,
        first_dirty_offset=max(state.first_dirty_offset, log_start_offset),
        segments=starts,
        sums=tuple(of_base.get(start, EMPTY) for start in starts),
    )


def without_rows(state: PartitionState, removed: Mapping[int, int]) -> PartitionState:
    """Return the state with fewer rows in its segments; `removed` has counts by base offset."""
    sums = zip(state.segments, state.sums, strict=True)
    return replace(
        state,
        sums=tuple(
            _less(segment_sums, removed.get(start.base_offset, 0)) for start, segment_sums in sums
        ),
    )


def bytes_of(state: PartitionState, rows: Mapping[int, int]) -> int:
    """Return the bytes of rows given by segment, from the mean size of a row in each segment."""
    return sum(
        sums.size_bytes * rows.get(segment.base_offset, 0) // sums.record_count
        for segment, sums in zip(state.segments, state.sums, strict=True)
        if sums.record_count
    )


def late_below(state: PartitionState | None) -> int:
    """Return the offset below which an arriving row is late."""
    return 0 if state is None else covered_end(state.horizons)


def _added(one: SegmentSums, more: SegmentSums) -> SegmentSums:
    firsts = [sums.first_timestamp_ms for sums in (one, more) if sums.first_timestamp_ms >= 0]
    return SegmentSums(
        one.size_bytes + more.size_bytes,
        min(firsts, default=NEVER),
        max(one.max_timestamp_ms, more.max_timestamp_ms),
        one.record_count + more.record_count,
    )


def _less(sums: SegmentSums, rows: int) -> SegmentSums:
    """Return the sums with fewer rows, each of the mean size."""
    if not sums.record_count:
        return sums
    left = max(sums.record_count - rows, 0)
    return sums._replace(size_bytes=sums.size_bytes * left // sums.record_count, record_count=left)
