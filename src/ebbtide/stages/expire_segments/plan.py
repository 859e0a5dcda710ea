"""Plan what retention removes from a topic: whole logical segments, and single records."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyroaring import BitMap64

from ebbtide.columns.log_headers import LogOutline
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.topics import Topic
from ebbtide.log.holds import that_keep
from ebbtide.log.logical_segments import Segment
from ebbtide.log.plans.guards import Removal
from ebbtide.log.plans.offsets import offset_range
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import (
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.log.retention import (
    Blocker,
    Expiry,
    LogOffsets,
    Rule,
    blocker,
    expire,
    record_limit,
)
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.runs.holds_table import holds_at, pauses_on
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.delete_records.prefixes import find_prefixes
from ebbtide.stages.expire_segments.expired_records import (
    ExpiredRecords,
    Scope,
    find_expired_records,
)
from ebbtide.stages.planned_rows import add_to
from ebbtide.text import number, size

log = logging.getLogger(__name__)

SINGLE = "single_records"
WITHIN_LIMITS = "within the limits"


class PartitionBounds(NamedTuple):
    """Bounds of an expiry: how far the log start may move, and the log that it is judged by."""

    log_start_offset: int
    log_end_offset: int
    max_event_time_ms: int

    def within(self, kept: Mapping[str, int]) -> PartitionBounds:
        """Return the lower of these bounds and a kept plan's."""
        return PartitionBounds(*(min(of, kept[name]) for name, of in self._asdict().items()))


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """The logical segments that go from each partition, by rule, and the single records.

    With `is_bounded` it stays within a kept plan, and may leave what is due.
    """

    topic: Topic
    now_ms: int
    expiries: dict[int, Expiry]
    scopes: dict[int, Scope]
    records: dict[int, ExpiredRecords]
    bounds: dict[int, PartitionBounds]
    is_bounded: bool = False
    pauses: Mapping[int, str] = field(default_factory=dict)  # why a partition is left alone

    @property
    def delete_ratio(self) -> float:
        """Bytes that the limits remove over the bytes of the topic, in [0, 1].

        Single records count with what they take without compression.
        """
        limited = sum(expiry.limited_bytes for expiry in self.expiries.values())
        kept = sum(expiry.kept_bytes for expiry in self.expiries.values())
        records = sum(expired.size_bytes for expired in self.records.values())
        return min(1.0, (limited + records) / (limited + kept)) if limited + kept else 0.0

    @property
    def changed(self) -> list[int]:
        """The partitions that lose something."""
        return [
            partition
            for partition, expiry in self.expiries.items()
            if expiry.removed or partition in self.records
        ]

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic={"delete_ratio": round(self.delete_ratio, 4)})
        for partition, expiry in self.expiries.items():
            outcome.partitions[partition] = self._numbers(partition, expiry)
            outcome.bytes_removed += outcome.partitions[partition]["bytes_removed"]
        return outcome

    @property
    def removal(self) -> Removal:
        """What the limits remove, for the guards; what DeleteRecords has hidden is gone already."""
        segments = [s for e in self.expiries.values() for s, r in e.removed if _is_limit(r)]
        return Removal(
            records=sum(segment.visible_count for segment in segments)
            + sum(expired.rows for expired in self.records.values()),
            bytes=sum(segment.size_bytes for segment in segments),
            share=self.delete_ratio,
            emptied_partitions=sum(map(self._is_emptied, self.expiries)),
        )

    def _is_emptied(self, partition: int) -> bool:
        """Return whether a partition that held records holds none afterwards."""
        expiry = self.expiries[partition]
        lost = sum(s.visible_count for s, rule in expiry.removed if _is_limit(rule))
        kept = sum(segment.visible_count for segment in expiry.kept)
        return lost > 0 and kept <= self._records(partition).rows

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets below the new log start offsets, and those of single records."""
        states = self.topic.partitions
        return {
            p: offset_range(states[p].log_start_offset, expiry.log_start_offset)
            | self._records(p).planned.offsets
            for p, expiry in self.expiries.items()
        }

    @property
    def single_offsets(self) -> dict[int, BitMap64]:
        """The offsets of single records, which a topic with holds is planned with."""
        return {partition: of.planned.offsets for partition, of in self.records.items()}

    def touches(self) -> Touched:
        """Return the partitions that lose something."""
        return Touched(self.changed)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the bounds that an execution stays within."""
        return {
            p: of._replace(log_start_offset=self.expiries[p].log_start_offset)._asdict()
            for p, of in self.bounds.items()
        }

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what goes by which rule, and what stays within the limits."""
        starts = {p: expiry.log_start_offset for p, expiry in self.expiries.items()}
        summaries = {}
        for partition, rows in find_prefixes(self.topic, starts).items():
            add_to(rows, self._records(partition).planned)
            kept, rules = self.expiries[partition].kept, self._by_rule(partition)
            left = sum(s.visible_count for s in kept) - self._records(partition).rows
            summaries[partition] = partition_summary(
                rows,
                rules,
                self.staying(partition, left),
                bytes_removed=sum(rule.get("bytes", 0) for rule in rules.values()),
                shows_keys=self.topic.config.plans_show_keys,
            )
        return summaries

    def staying(self, partition: int, left: int) -> list[Staying]:
        """Return why `left` records of a partition stay."""
        reasons = {self.pauses.get(partition, WITHIN_LIMITS): left}
        if (found := self._blocker(partition)) is not None:
            held = sum(segment.visible_count for segment in found.held)
            reasons = {WITHIN_LIMITS: left - held, found.in_words(self.now_ms): held}
        return [Staying(reason=why, records=count) for why, count in reasons.items() if count > 0]

    def _blocker(self, partition: int) -> Blocker | None:
        """Return the segment that holds back others of a partition, or None if none does."""
        if partition in self.pauses:
            return None
        return blocker(
            self.expiries[partition].kept,
            self.topic.config,
            now_ms=self.now_ms,
            max_event_time_ms=self.bounds[partition].max_event_time_ms,
        )

    def _by_rule(self, partition: int) -> dict[str, RuleNumbers]:
        rules: dict[str, RuleNumbers] = {}
        for rule in Rule:
            gone = [s for s, by in self.expiries[partition].removed if by is rule]
            rules[rule] = RuleNumbers(
                records=sum(segment.visible_count for segment in gone),
                bytes=sum(segment.size_bytes for segment in gone),
                segments=len(gone),
            )
        single = self._records(partition)
        rules[SINGLE] = RuleNumbers(records=single.rows, bytes=single.size_bytes, segments=0)
        return rules

    def _numbers(self, partition: int, expiry: Expiry) -> dict[str, Any]:
        by = Counter(str(rule) for _, rule in expiry.removed)
        records = self._records(partition)
        numbers: dict[str, Any] = {
            "log_start_offset": expiry.log_start_offset,
            "low_watermark": self.topic.low_watermark(expiry.log_start_offset),
            "log_end_offset": self.topic.partitions[partition].log_end_offset,
            "segments_expired": len(expiry.removed),
            "records_in_segments": sum(segment.visible_count for segment, _ in expiry.removed),
            "newest_record_ms": max(
                (segment.largest_timestamp_ms for segment, _ in expiry.removed), default=None
            ),
            "bytes_removed": sum(segment.size_bytes for segment, _ in expiry.removed),
            **_before_and_after(expiry),
            "by": {str(rule): by.get(str(rule), 0) for rule in Rule},
            "records_expired": records.rows,
            "record_bytes_expired": records.size_bytes,
        }
        if partition in self.pauses:
            numbers["note"] = self.pauses[partition]
        elif (found := self._blocker(partition)) is not None:
            numbers["note"] = found.in_words(self.now_ms)
            numbers["segments_held_back"] = len(found.held)
        return numbers

    def _records(self, partition: int) -> ExpiredRecords:
        return self.records.get(partition, ExpiredRecords())


def _is_limit(rule: Rule) -> bool:
    """Return whether a segment goes by a limit, and not for lying below the log start offset."""
    return rule != Rule.LOG_START_OFFSET


def _before_and_after(expiry: Expiry) -> dict[str, int]:
    """Count data records and bytes before and after, as the segments' headers tell.

    clean_log counts the same way. Expired single records are counted separately: headers stay
    unchanged until their segment goes.
    """
    removed = [segment for segment, _ in expiry.removed]
    records_after = sum(segment.visible_count for segment in expiry.kept)
    return {
        "records_before": records_after + sum(segment.visible_count for segment in removed),
        "records_after": records_after,
        "bytes_before": expiry.kept_bytes + sum(segment.size_bytes for segment in removed),
        "bytes_after": expiry.kept_bytes,
    }


def plan_expire(
    topic: Topic, now_ms: int, bounds: Bounds | None = None, *, keeps_offsets: bool = False
) -> ExpirePlan:
    """Plan what retention removes from the topic at `now_ms`; within a kept plan's bounds, if any.

    With `keeps_offsets` it tells the offsets of single records.
    """
    states, config = topic.partitions, topic.config
    if bounds is not None:
        states = {partition: state for partition, state in states.items() if partition in bounds}
    headers = look_at_headers(topic.spark, topic.name.batches_table, _outlines(states))
    holds = holds_at(topic, now_ms)
    pauses = pauses_on(topic, holds)
    expiries, scopes, limits = {}, {}, {}
    for partition, state in states.items():
        bound = bound_of(state, (bounds or {}).get(partition))
        segments = headers[partition].segments
        if partition in pauses:
            expiry = Expiry([], list(segments), state.log_start_offset)
        else:
            expiry = _expiry(state, segments, config, bound, now_ms)
            if (scope := _scope(expiry, config, bound, now_ms)) is not None:
                scopes[partition] = scope
        expiries[partition], limits[partition] = expiry, bound
    keeps_offsets = keeps_offsets or bool(that_keep(holds))
    records = find_expired_records(topic, scopes, keeps_offsets=keeps_offsets)
    _log_going(expiries, records)
    return ExpirePlan(
        topic,
        now_ms,
        expiries,
        scopes,
        records,
        limits,
        is_bounded=bounds is not None,
        pauses=pauses,
    )


def _outlines(states: Mapping[int, PartitionState]) -> dict[int, LogOutline]:
    return {p: LogOutline(state.log_start_offset, state.segments) for p, state in states.items()}


def bound_of(state: PartitionState, kept: Mapping[str, int] | None) -> PartitionBounds:
    """Return how far an expiry may go: to the log's end, and not beyond a kept plan."""
    end = state.log_end_offset
    bound = PartitionBounds(end, end, state.max_event_time_ms)
    return bound if kept is None else bound.within(kept)


def _expiry(
    state: PartitionState,
    segments: Sequence[Segment],
    config: TopicConfig,
    bound: PartitionBounds,
    now_ms: int,
) -> Expiry:
    """Return the segments that the limits let go."""
    return expire(
        segments,
        LogOffsets(state.log_start_offset, state.log_end_offset, bound.log_start_offset),
        config,
        now_ms=now_ms,
        max_event_time_ms=bound.max_event_time_ms,
    )


def _scope(
    expiry: Expiry, config: TopicConfig, bound: PartitionBounds, now_ms: int
) -> Scope | None:
    """Return where single records may go of what is left; None where none may."""
    limit = record_limit(config, now_ms=now_ms, max_event_time_ms=bound.max_event_time_ms)
    if limit is None or expiry.log_start_offset >= bound.log_end_offset:
        return None
    future_ms = config.message_timestamp_after_max_ms
    return Scope(expiry.log_start_offset, bound.log_end_offset, limit, future_ms)


def _log_going(expiries: Mapping[int, Expiry], records: Mapping[int, ExpiredRecords]) -> None:
    log_partitions(log, {p: _going(expiry) for p, expiry in expiries.items() if expiry.removed})
    past = {
        p: f"{number(expired.rows)} records are past the limit" for p, expired in records.items()
    }
    log_partitions(log, past)


def _going(expiry: Expiry) -> str:
    """Describe which segments of a partition go, for the log."""
    by = Counter(str(rule) for _, rule in expiry.removed)
    gone = size(sum(segment.size_bytes for segment, _ in expiry.removed))
    return (
        f"{len(expiry.removed)} segments of {gone} go "
        f"({', '.join(f'{count} by {rule}' for rule, count in by.items())}); "
        f"the log begins at offset {expiry.log_start_offset}"
    )
