"""Kafka's logical segments, and the part of a log that a cleaner round may clean.

Kafka: LogSegments, LogCleanerManager.cleanableOffsets, LogToClean, Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ebbtide.moments import earlier
from ebbtide.numbers import MAX_INT, MAX_LONG
from ebbtide.settings.config import TopicConfig


class SegmentStart(NamedTuple):
    """A logical segment's offset and time in the state.

    Kafka takes the time from the segment's file.
    """

    base_offset: int
    modified_ms: int  # since the epoch


class SegmentSums(NamedTuple):
    """A segment's totals, for topics without a batches table; times in ms since the epoch."""

    size_bytes: int
    first_timestamp_ms: int  # the least one, or -1
    max_timestamp_ms: int  # or -1
    record_count: int


class Segment(NamedTuple):
    """A logical segment with the totals of its batches; times in ms since the epoch."""

    base_offset: int
    modified_ms: int
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    first_batch_timestamp_ms: int | None = None
    max_event_time_ms: int = -1
    max_append_time_ms: int = -1
    record_count: int = 0  # data records, by the headers' counts
    hidden_count: int = 0  # those of them below the log start offset

    @property
    def visible_count(self) -> int:
        """The number of data records at or above the log start offset.

        It may be too high for a cleaned batch that straddles the log start offset: the header does
        not have the offsets of its records.
        """
        return self.record_count - self.hidden_count

    @property
    def start(self) -> SegmentStart:
        """The segment's base offset and time, as in the state."""
        return SegmentStart(self.base_offset, self.modified_ms)

    def with_more(self, later: Segment) -> Segment:
        """Add the totals of `later` batches of the same segment."""
        first_ms = self.first_batch_timestamp_ms
        return self._replace(
            size_bytes=self.size_bytes + later.size_bytes,
            max_timestamp_ms=max(self.max_timestamp_ms, later.max_timestamp_ms),
            first_batch_timestamp_ms=later.first_batch_timestamp_ms
            if first_ms is None
            else first_ms,
            max_event_time_ms=max(self.max_event_time_ms, later.max_event_time_ms),
            max_append_time_ms=max(self.max_append_time_ms, later.max_append_time_ms),
            record_count=self.record_count + later.record_count,
            hidden_count=self.hidden_count + later.hidden_count,
        )

    @property
    def largest_timestamp_ms(self) -> int:
        """The largest record timestamp, or the segment's own time if no record has one."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.modified_ms


def segment_of(base_offsets: Sequence[int], offset: int) -> int:
    """Return the base offset of the last segment at or below `offset`, or else of the first."""
    return base_offsets[max(bisect_right(base_offsets, offset) - 1, 0)]


def between(segments: Sequence[Segment], start: int, end: int) -> Sequence[Segment]:
    """Return the segments of [start, end), and the one that has `start` (LogSegments.values)."""
    if start == end:
        return ()
    first = max(bisect_right([s.base_offset for s in segments], start) - 1, 0)
    return [s for s in segments[first:] if s.base_offset < end]


class Cleanable(NamedTuple):
    """The part of a log that may be cleaned.

    `first_uncleanable_offset` and `clean_end_offset` are base offsets of segments: all segments
    below the second are clean as a whole.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool  # max.compaction.lag.ms has passed

    @property
    def ratio(self) -> float:
        """The share of the bytes that is dirty and cleanable."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_picked(self, min_cleanable_dirty_ratio: float) -> bool:
        """Return whether Kafka's cleaner would clean the log now."""
        is_due = self.is_overdue and self.cleanable_bytes > 0
        return is_due or self.ratio > min_cleanable_dirty_ratio


class Bounds(NamedTuple):
    """The offsets that limit a round, besides the segments."""

    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int
    last_stable_offset: int
    first_unmarked_offset: int
    end_of_plan: int = MAX_LONG  # the end of a stored plan's round


def cleanable(
    segments: Sequence[Segment], bounds: Bounds, config: TopicConfig, now_ms: int
) -> Cleanable:
    """Return the part that the cleaner may clean now, never the last segment: it is active."""
    active = segments[-1].base_offset
    first_dirty = bounds.first_dirty_offset
    if not bounds.log_start_offset <= first_dirty <= bounds.log_end_offset:
        first_dirty = bounds.log_start_offset
    dirty = between(segments, first_dirty, active) if first_dirty <= active else ()
    limits = [bounds.last_stable_offset, bounds.first_unmarked_offset, active, bounds.end_of_plan]
    if config.min_compaction_lag_ms > 0:
        oldest_kept_ms = earlier(now_ms, config.min_compaction_lag_ms)
        limits += [s.base_offset for s in dirty if s.largest_timestamp_ms > oldest_kept_ms][:1]
    limit = max(first_dirty, min(limits))
    base_offsets = [s.base_offset for s in segments]
    first_uncleanable = active if limit >= active else segment_of(base_offsets, limit)
    return Cleanable(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        clean_end_offset=min(first_uncleanable, segment_of(base_offsets, first_dirty)),
        clean_bytes=sum(s.size_bytes for s in between(segments, -1, first_dirty)),
        cleanable_bytes=sum(
            s.size_bytes
            for s in between(segments, min(first_dirty, first_uncleanable), first_uncleanable)
        ),
        is_overdue=_is_overdue(dirty, earlier(now_ms, config.max_compaction_lag_ms)),
    )


def _is_overdue(dirty: Sequence[Segment], clean_until_ms: int) -> bool:
    firsts = [s.first_batch_timestamp_ms for s in dirty if (s.first_batch_timestamp_ms or 0) > 0]
    return any(first is not None and first < clean_until_ms for first in firsts)


def merged(
    segments: Sequence[Segment], first_uncleanable_offset: int, segment_bytes: int
) -> list[Segment]:
    """Return the segments after a round, with neighbours below its end merged as Kafka groups them.

    Groups are made by the sizes before the round. A group has its first member's base offset and
    its last member's time; its totals are not summed.
    """
    below = [s for s in segments if s.base_offset < first_uncleanable_offset]
    heads: list[Segment] = []
    held_bytes = 0  # of the last group
    for i, segment in enumerate(below):
        following = below[i + 1].base_offset if i + 1 < len(below) else first_uncleanable_offset
        held_bytes += segment.size_bytes
        if heads and held_bytes <= segment_bytes and _is_near(heads[-1], segment, following):
            heads[-1] = heads[-1]._replace(modified_ms=segment.modified_ms)
        else:
            heads.append(segment)
            held_bytes = segment.size_bytes
    return [*heads, *segments[len(below) :]]


def _is_near(head: Segment, segment: Segment, next_base: int) -> bool:
    """Return whether the offsets of the group still fit into a 32-bit index."""
    # Kafka too measures from the first segment of the group.
    return segment.size_bytes == 0 or next_base - 1 - head.base_offset <= MAX_INT


def neighbours_to_merge(
    physical: Sequence[tuple[int, int]],
    logical: Sequence[int],
    target_bytes: int,
    at_least: int,
) -> list[list[int]]:
    """Return groups of physical segments, by base offset, to merge into one each.

    A group is within one closed logical segment and has at most `target_bytes`. `physical` has
    (base offset, bytes). The last group may still grow. It is returned only with `at_least`
    members, so that a row is seldom rewritten.
    """
    groups: list[list[int]] = []
    held_bytes, last_place = 0, -2
    for segment, size_bytes in physical:
        place = bisect_right(logical, segment) - 1
        if place != last_place or held_bytes + size_bytes > target_bytes:
            groups.append([])
            held_bytes = 0
        last_place = place
        if 0 <= place < len(logical) - 1 and size_bytes <= target_bytes:
            groups[-1].append(segment)
            held_bytes += size_bytes
    *full, growing = [group for group in groups if group] or [[]]
    merges = [group for group in full if len(group) > 1]
    return [*merges, growing] if len(growing) >= at_least else merges
