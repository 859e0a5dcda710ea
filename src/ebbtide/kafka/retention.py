"""Rules of retention: which segments and records it removes, and where the log then starts.

Kafka: UnifiedLog.deleteOldSegments and deletableSegments; event time: KIP-870.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from ebbtide.moments import earlier, later, minute
from ebbtide.numbers import MAX_LONG
from ebbtide.settings.config import TopicConfig
from ebbtide.state.logical_segments import Segment
from ebbtide.state.topic_state import NEVER, PartitionState
from ebbtide.text import number

# The settings that retention depends on.
_LIMITS = (
    *("is_deleted", "retention_bytes", "retention_ms", "retention_max_eventtime_ms"),
    *("needs_all_time_limits", "expires_records", "message_timestamp_after_max_ms"),
)


class Rule(StrEnum):
    """The rules that remove segments, in the order in which they apply."""

    LOG_START_OFFSET = "log_start_offset"
    SIZE = "size"
    TIME = "time"
    EVENT_TIME = "event_time"
    TIME_AND_EVENT_TIME = "time_and_event_time"  # replaces both if a segment must exceed both


class Expiry(NamedTuple):
    """Segments to remove, oldest first, and the retained segments and log start offset."""

    removed: list[tuple[Segment, Rule]]
    kept: list[Segment]
    log_start_offset: int

    @property
    def limited_bytes(self) -> int:
        """Bytes that a limit removes; segments below the log start offset do not count."""
        by_limits = (segment for segment, rule in self.removed if rule != Rule.LOG_START_OFFSET)
        return sum(segment.size_bytes for segment in by_limits)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the retained segments."""
        return sum(segment.size_bytes for segment in self.kept)


class LogOffsets(NamedTuple):
    """The start and end of a log, and the high watermark up to which it may be removed."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int


class Blocker(NamedTuple):
    """The first retained segment, if later ones have reached a time limit.

    Segments are removed in order, so the first one blocks the later ones.
    """

    segment: Segment
    newest_ms: int  # its time that the limit is compared with
    held: Sequence[Segment]  # the later segments
    next_base_offset: int  # of the segment after it

    def in_words(self, now_ms: int) -> str:
        """Return a sentence: the segment, how many it blocks, its newest time, and what to do."""
        count = len(self.held)
        date = f"{minute(self.newest_ms)} UTC"
        date += ", which is in the future" if self.newest_ms > now_ms else ""
        return (
            f"segment {self.segment.base_offset} blocks {number(count)} later "
            f"{'segment' if count == 1 else 'segments'} past a time limit: its newest record is of "
            f"{date}, and segments are removed in order. To remove it, run delete_records with "
            f"offset {self.next_base_offset}"
        )


class RecordLimit(NamedTuple):
    """Limits for single records, in ms since the epoch.

    A record expires if its event time is lower and, if `append_time_ms` is set, its append time
    too. An event time too far in the future counts as the append time.
    """

    event_time_ms: int
    append_time_ms: int | None = None


# Called with a segment and its successor's base offset (None for the active one).
Condition = Callable[[Segment, int | None], bool]


def expire(
    segments: Sequence[Segment],
    offsets: LogOffsets,
    config: TopicConfig,
    *,
    now_ms: int,
    max_event_time_ms: int,
) -> Expiry:
    """Remove whole segments from the start, rule by rule, by their limits at `now_ms`.

    A rule whose setting is absent removes nothing. If the active segment is removed, an empty one
    with `modified_ms` = `now_ms` replaces it at the log end offset, as Kafka rolls a segment.
    """
    expiry = Expiry([], list(segments), offsets.log_start_offset)
    expiry = _apply(expiry, Rule.LOG_START_OFFSET, _is_below_log_start(expiry), offsets, now_ms)
    if not config.is_deleted:
        return expiry
    size_limit = config.retention_bytes
    if size_limit is not None and size_limit >= 0:
        expiry = _apply(expiry, Rule.SIZE, _is_over_size(expiry, size_limit), offsets, now_ms)
    for rule, condition in _time_conditions(config, now_ms, max_event_time_ms):
        expiry = _apply(expiry, rule, condition, offsets, now_ms)
    return expiry


def blocker(
    kept: Sequence[Segment], config: TopicConfig, *, now_ms: int, max_event_time_ms: int
) -> Blocker | None:
    """Return the segment that blocks later ones from expiring by time, or None.

    `kept` are the segments that retention retains at `now_ms`. The last one is active and does not
    count as blocked.
    """
    if not config.is_deleted or len(kept) < 2:
        return None
    for rule, condition in _time_conditions(config, now_ms, max_event_time_ms):
        closed = pairwise(kept[1:])
        held = [s for s, after in closed if s.record_count and condition(s, after.base_offset)]
        if held:
            newest_ms = kept[0].largest_timestamp_ms
            if rule is Rule.EVENT_TIME:
                newest_ms = kept[0].max_event_time_ms
            return Blocker(kept[0], newest_ms, held, kept[1].base_offset)
    return None


def next_expiry_ms(kept: Sequence[Segment], config: TopicConfig) -> int:
    """Return when retention may next remove something, if neither log nor settings change.

    The time is in ms since the epoch. `kept` are the segments retained now. NEVER means that no
    time limit applies, 0 that the time is not known.
    """
    limit_ms, first = _limit(config.retention_ms), kept[0]
    is_empty = len(kept) == 1 and not first.size_bytes
    if not config.is_deleted or limit_ms is None or is_empty:
        return NEVER
    event_limit_ms = _limit(config.retention_max_eventtime_ms)
    if config.expires_records and event_limit_ms is not None and config.needs_all_time_limits:
        return 0  # single records also expire by their append time, which is not known here
    return _due_ms(first, config, limit_ms)


def next_look_ms(
    kept: Sequence[Segment], config: TopicConfig, *, now_ms: int, max_event_time_ms: int
) -> int:
    """Return when a run of retention may next remove segments or report them as blocked.

    The time is in ms since the epoch, as in `next_expiry_ms`. It is 0 while a segment is blocked,
    because each nightly run reports that again.
    """
    if blocker(kept, config, now_ms=now_ms, max_event_time_ms=max_event_time_ms) is not None:
        return 0
    next_ms, limit_ms = next_expiry_ms(kept, config), _limit(config.retention_ms)
    if next_ms == 0 or limit_ms is None or not config.is_deleted:
        return next_ms
    closed = (segment for segment in kept[1:-1] if segment.record_count)
    dues = [next_ms, *(_due_ms(segment, config, limit_ms) for segment in closed)]
    return min((ms for ms in dues if ms != NEVER), default=NEVER)


def _due_ms(segment: Segment, config: TopicConfig, limit_ms: int) -> int:
    """Return when a segment exceeds `retention.ms`, or NEVER if that is beyond the largest long."""
    by_append_time = _limit(config.retention_max_eventtime_ms) is not None
    due_ms = later(_newest_ms(segment, by_append_time=by_append_time), later(limit_ms, 1))
    return NEVER if due_ms == MAX_LONG else due_ms


def expiry_basis(state: PartitionState, config: TopicConfig) -> int:
    """Return a hash that changes if the partition's log or the topic's settings change.

    A cleaner round changes it too: it may remove the newest record of a segment, which then expires
    sooner.
    """
    # Plain tuples: the hash is stored in tables, so it must not depend on a type's name.
    segments = tuple(tuple(segment) for segment in state.segments)
    of_log = (state.log_start_offset, state.log_end_offset, segments, state.cleaned_at_ms)
    limits = [getattr(config, name) for name in _LIMITS]
    told = repr((of_log, state.max_event_time_ms, state.expired_end_offset, limits))
    return int.from_bytes(sha256(told.encode()).digest()[:7], "big")


def is_retained_at(state: PartitionState, config: TopicConfig, now_ms: int) -> bool:
    """Return whether retention at `now_ms` would find no work, by what its last run recorded."""
    is_same = state.expiry_basis == expiry_basis(state, config)
    return is_same and (state.next_expiry_ms == NEVER or now_ms < state.next_expiry_ms)


def record_limit(config: TopicConfig, *, now_ms: int, max_event_time_ms: int) -> RecordLimit | None:
    """Return the limits by which retention removes single records, or None if there are none."""
    event_limit_ms = _limit(config.retention_max_eventtime_ms)
    if not (config.is_deleted and config.expires_records) or event_limit_ms is None:
        return None
    limit_ms = _limit(config.retention_ms) if config.needs_all_time_limits else None
    before_ms = [earlier(max_event_time_ms, event_limit_ms)]
    before_ms += [] if limit_ms is None else [earlier(now_ms, limit_ms)]
    return RecordLimit(*before_ms) if min(before_ms) > 0 else None


def _time_conditions(
    config: TopicConfig, now_ms: int, max_event_time_ms: int
) -> list[tuple[Rule, Condition]]:
    conditions: list[tuple[Rule, Condition]] = []
    limit_ms, event_limit_ms = (
        _limit(config.retention_ms),
        _limit(config.retention_max_eventtime_ms),
    )
    if limit_ms is not None:
        condition = _is_older(now_ms, limit_ms, by_append_time=event_limit_ms is not None)
        conditions.append((Rule.TIME, condition))
    if event_limit_ms is not None:
        conditions.append((Rule.EVENT_TIME, _is_event_older(max_event_time_ms, event_limit_ms)))
    if len(conditions) > 1 and config.needs_all_time_limits:
        return [(Rule.TIME_AND_EVENT_TIME, _all_of([condition for _, condition in conditions]))]
    return conditions


def _limit(setting: int | None) -> int | None:
    """Return a limit as set; a value below 0 means none, as in Kafka."""
    return None if setting is None or setting < 0 else setting


def _apply(
    expiry: Expiry, rule: Rule, condition: Condition, offsets: LogOffsets, now_ms: int
) -> Expiry:
    kept = expiry.kept
    gone = 0
    for i, segment in enumerate(kept):
        following = kept[i + 1].base_offset if i + 1 < len(kept) else None
        upper = offsets.log_end_offset if following is None else following
        is_last_and_empty = following is None and segment.size_bytes == 0
        if is_last_and_empty or offsets.high_watermark < upper or not condition(segment, following):
            break
        gone += 1
    if not gone:
        return expiry
    removed, remaining = kept[:gone], kept[gone:]
    if not remaining:
        remaining = [Segment(offsets.log_end_offset, now_ms)]
    return Expiry(
        [*expiry.removed, *((segment, rule) for segment in removed)],
        remaining,
        max(expiry.log_start_offset, remaining[0].base_offset),
    )


def _all_of(conditions: Sequence[Condition]) -> Condition:
    return lambda segment, following: all(says(segment, following) for says in conditions)


def _is_below_log_start(expiry: Expiry) -> Condition:
    return lambda _, following: following is not None and following <= expiry.log_start_offset


def _is_over_size(expiry: Expiry, limit_bytes: int) -> Condition:
    excess = expiry.kept_bytes - limit_bytes

    def condition(segment: Segment, _following: int | None) -> bool:
        nonlocal excess
        if excess < segment.size_bytes:
            return False
        excess -= segment.size_bytes
        return True

    return condition


def _is_older(now_ms: int, limit_ms: int, *, by_append_time: bool) -> Condition:
    """Match segments strictly older than the limit; by append time if event time is limited."""

    def condition(segment: Segment, _following: int | None) -> bool:
        newest_ms = _newest_ms(segment, by_append_time=by_append_time)
        return newest_ms < earlier(now_ms, limit_ms)

    return condition


def _newest_ms(segment: Segment, *, by_append_time: bool) -> int:
    return segment.max_append_time_ms if by_append_time else segment.largest_timestamp_ms


def _is_event_older(max_event_time_ms: int, limit_ms: int) -> Condition:
    """Match segments that lag the partition's max event time by more than the limit (KIP-870).

    A segment without a data record matches too: empty batches and markers have no event time, and
    must not block later segments.
    """

    def condition(segment: Segment, _following: int | None) -> bool:
        newest_ms = segment.max_event_time_ms
        is_behind = 0 <= newest_ms < earlier(max_event_time_ms, limit_ms)
        return is_behind or segment.record_count == 0

    return condition
