"""expire_segments: retention by size, wall clock and event time (KIP-870).

Order: advance the log start offsets, remove the records below them, then single records past the
event-time limit. In an adopted table, one commit removes both kinds of records.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.in_flight import check_no_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.jobs.removed_rows import ExpiredRecords, Scope, add_to, find_prefixes
from ebbtide.jobs.table_layout import ObservedLog, layout_of
from ebbtide.jobs.unfinished import load_settled
from ebbtide.kafka.adopted_segments import without_expired
from ebbtide.kafka.retention import (
    Blocker,
    Expiry,
    LogOffsets,
    Rule,
    blocker,
    expire,
    expiry_basis,
    next_look_ms,
    record_limit,
)
from ebbtide.ledger.holds import that_keep
from ebbtide.ledger.plans import (
    Bounds,
    LeavingRows,
    PartitionSummary,
    Removal,
    RuleNumbers,
    Staying,
    offset_range,
    partition_summary,
)
from ebbtide.runner.holds import holds_at, pauses_on
from ebbtide.runner.job import Job, PlanRequest, Proposal, Touched
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.spark.job_log import log_partitions
from ebbtide.state.covered_offsets import count_missing
from ebbtide.state.topic_state import REMOVING, PartitionState, to_properties
from ebbtide.text import number, size

log = logging.getLogger(__name__)

SINGLE = "single_records"
WITHIN_LIMITS = "within the limits"


class PartitionBounds(NamedTuple):
    """Bounds of a partition's expiry."""

    log_start_offset: int  # highest offset to which the log start may advance
    log_end_offset: int  # retention judges only records below it
    max_event_time_ms: int  # the partition's newest event time, for limits by event time

    def within(self, kept: Mapping[str, int]) -> PartitionBounds:
        """Return the lower of these bounds and a stored plan's, one by one."""
        return PartitionBounds(*(min(bound, kept[name]) for name, bound in self._asdict().items()))


@dataclass(frozen=True, slots=True)
class ExpirePlan(Proposal):
    """The logical segments to remove from each partition, by rule, and the single records."""

    topic: Topic  # its state as of the plan
    now_ms: int
    expiries: dict[int, Expiry] = field(default_factory=dict)
    scopes: dict[int, Scope] = field(default_factory=dict)
    records: dict[int, ExpiredRecords] = field(default_factory=dict)
    bounds: dict[int, PartitionBounds] = field(default_factory=dict)
    is_bounded: bool = False  # stays within a stored plan, so it may retain expired segments
    pauses: Mapping[int, str] = field(default_factory=dict)  # reasons, by paused partition
    log: ObservedLog | None = None  # None for an adopted table without a snapshot

    @property
    def delete_ratio(self) -> float:
        """Share of the topic's bytes that the limits remove, in [0, 1].

        Single records count with their uncompressed size.
        """
        limited = sum(expiry.limited_bytes for expiry in self.expiries.values())
        kept = sum(expiry.kept_bytes for expiry in self.expiries.values())
        records = sum(expired.size_bytes for expired in self.records.values())
        return min(1.0, (limited + records) / (limited + kept)) if limited + kept else 0.0

    @property
    def judged(self) -> set[int]:
        """The partitions that are not paused."""
        return self.expiries.keys() - self.pauses.keys()

    @property
    def changed(self) -> list[int]:
        """The partitions from which segments or single records are removed."""
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
        if self.log is not None:
            outcome.topic |= self.log.result
        return outcome

    @property
    def removal(self) -> Removal:
        """The removal by limits, for the guards; DeleteRecords has already hidden the rest."""
        segments = [s for e in self.expiries.values() for s, r in e.removed if _is_limit(r)]
        return Removal(
            records=sum(segment.visible_count for segment in segments)
            + sum(expired.rows for expired in self.records.values()),
            bytes=sum(segment.size_bytes for segment in segments),
            share=self.delete_ratio,
            emptied_partitions=sum(map(self._is_emptied, self.expiries)),
        )

    def _is_emptied(self, partition: int) -> bool:
        """Return whether the limits remove a partition's last records."""
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

    def touches(self) -> Touched:
        """Return the changed partitions."""
        snapshot = None if self.log is None else self.log.snapshot
        return Touched(self.changed, records_snapshot=snapshot)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the bounds that an execution stays within."""
        return {
            p: bounds._replace(log_start_offset=self.expiries[p].log_start_offset)._asdict()
            for p, bounds in self.bounds.items()
        }

    def summary(self) -> dict[int, PartitionSummary]:
        """Return, by partition, the removals of each rule and the reasons for retained records."""
        summaries = {}
        for partition, rows in self._leaving().items():
            kept, rules = self.expiries[partition].kept, self._by_rule(partition)
            left = sum(s.visible_count for s in kept) - self._records(partition).rows
            summaries[partition] = partition_summary(
                rows,
                rules,
                self._staying(partition, left),
                bytes_removed=sum(rule.get("bytes", 0) for rule in rules.values()),
                shows_keys=self.topic.config.plans_show_keys,
            )
        return summaries

    def _leaving(self) -> Mapping[int, LeavingRows]:
        """Return the rows to remove, by partition. An adopted table's segments have the counts."""
        if not self.topic.is_adopted:
            starts = {p: expiry.log_start_offset for p, expiry in self.expiries.items()}
            found = find_prefixes(self.topic, starts)
            for partition, rows in found.items():
                add_to(rows, self._records(partition).planned)
            return found
        return {
            p: LeavingRows(
                sum(segment.record_count for segment, _ in expiry.removed) + self._records(p).rows
            )
            for p, expiry in self.expiries.items()
        }

    def _staying(self, partition: int, left: int) -> list[Staying]:
        """Return the reasons why `left` records of a partition are retained."""
        reasons = {self.pauses.get(partition, WITHIN_LIMITS): left}
        if (found := self._blocker(partition)) is not None:
            held = sum(segment.visible_count for segment in found.held)
            reasons = {WITHIN_LIMITS: left - held, found.in_words(self.now_ms): held}
        return [Staying(reason=why, records=count) for why, count in reasons.items() if count > 0]

    def _blocker(self, partition: int) -> Blocker | None:
        """Return the segment that keeps later ones from expiring, or None if none does."""
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
            "by_rule": {str(rule): by.get(str(rule), 0) for rule in Rule},
            "records_expired": records.rows,
            "record_bytes_expired": records.size_bytes,
        }
        if missing := self.topic.partitions[partition].missing:
            numbers["missing_offsets"] = count_missing(missing)
        if partition in self.pauses:
            numbers["note"] = self.pauses[partition]
        elif (found := self._blocker(partition)) is not None:
            numbers["note"] = found.in_words(self.now_ms)
            numbers["segments_held_back"] = len(found.held)
        return numbers

    def _records(self, partition: int) -> ExpiredRecords:
        return self.records.get(partition, ExpiredRecords())


def _is_limit(rule: Rule) -> bool:
    """Return whether the rule is a limit, not that a segment is below the log start offset."""
    return rule != Rule.LOG_START_OFFSET


def _before_and_after(expiry: Expiry) -> dict[str, int]:
    """Count data records and bytes before and after, by the segments' batch headers.

    clean_log counts the same way. Expired single records are counted separately, because they
    do not change the headers.
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
    """Plan retention on the topic at `now_ms`, within the bounds of a stored plan if given.

    With `keeps_offsets`, the plan has the offsets of single records.
    """
    layout, config = layout_of(topic), topic.config
    ends = {p: of_plan["log_start_offset"] for p, of_plan in (bounds or {}).items()}
    log_now = layout.observe(now_ms, ends, topic.partitions if bounds is None else bounds)
    if log_now is None:
        return ExpirePlan(topic, now_ms, is_bounded=bounds is not None)
    observed, holds = log_now.observed, holds_at(topic, now_ms)
    plan = ExpirePlan(
        observed,
        now_ms,
        is_bounded=bounds is not None,
        pauses=pauses_on(observed, holds),
        log=log_now,
    )
    for partition, segments in log_now.segments.items():
        if bounds is not None and partition not in bounds:
            continue
        state = observed.partitions[partition]
        end, newest_ms = state.log_end_offset, state.max_event_time_ms
        bound = PartitionBounds(end, end, newest_ms)
        if bounds is not None:
            bound = bound.within(bounds[partition])
        plan.bounds[partition] = bound
        if partition in plan.pauses:
            plan.expiries[partition] = Expiry([], list(segments), state.log_start_offset)
            continue
        expiry = plan.expiries[partition] = expire(
            segments,
            LogOffsets(state.log_start_offset, state.log_end_offset, bound.log_start_offset),
            config,
            now_ms=now_ms,
            max_event_time_ms=bound.max_event_time_ms,
        )
        limit = record_limit(config, now_ms=now_ms, max_event_time_ms=bound.max_event_time_ms)
        start, end = expiry.log_start_offset, bound.log_end_offset
        if limit is not None and start < end:
            future_ms = config.message_timestamp_after_max_ms
            plan.scopes[partition] = Scope(start, end, limit, future_ms)
    keeps_offsets = keeps_offsets or bool(that_keep(holds))
    found = layout.find_old(log_now, plan.scopes, plan.judged, keeps_offsets=keeps_offsets)
    plan.records.update(found)
    _log_going(plan.expiries, plan.records)
    return plan


def _log_going(expiries: Mapping[int, Expiry], records: Mapping[int, ExpiredRecords]) -> None:
    log_partitions(log, {p: _going(expiry) for p, expiry in expiries.items() if expiry.removed})
    past = {
        p: f"{number(expired.rows)} single records expired by event time"
        for p, expired in records.items()
    }
    log_partitions(log, past)


def _going(expiry: Expiry) -> str:
    """Describe a partition's expired segments, for the log."""
    by = Counter(str(rule) for _, rule in expiry.removed)
    gone = size(sum(segment.size_bytes for segment, _ in expiry.removed))
    return (
        f"{len(expiry.removed)} segments of {gone} expired "
        f"({', '.join(f'{count} by {rule}' for rule, count in by.items())}), "
        f"new log start offset {expiry.log_start_offset}"
    )


def execute_expire(plan: ExpirePlan) -> JobOutcome:
    """Advance the log start offsets, remove the records below them, then single records.

    In an adopted table, record the arrived rows in the state too, even if nothing expires.
    """
    outcome = plan.outcome()
    if plan.log is None:
        return outcome
    after = plan.log.topic
    if plan.changed or after.is_adopted:
        after = compare_and_set(after, Step.LOG_START_OFFSET, partial(_moved, plan))
    layout = layout_of(plan.log.topic)
    removed = layout.remove(after, plan.now_ms, plan.judged, plan.scopes, plan.records)
    outcome.rows_removed, outcome.files_removed = removed.rows.total(), removed.files
    outcome.snapshot_ids = removed.snapshot_ids
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = removed.rows[partition]
    if removed.kept:
        outcome.topic["copied_for_holds"] = removed.kept
    if not (plan.is_bounded or after.is_adopted):
        _note_next_expiries(plan)
    return outcome


def _note_next_expiries(plan: ExpirePlan) -> None:
    """Record the time of the next expiry, so that nightly runs skip this job until then.

    While a segment keeps later ones from expiring, record 0: each nightly run then reports it.
    """
    config, now_ms = plan.topic.config, plan.now_ms

    def noted(current: Topic) -> PropertyChanges:
        changes: dict[str, str | None] = {}
        for partition, expiry in plan.expiries.items():
            if partition in plan.pauses:
                continue  # not judged
            state, first = current.partitions[partition], expiry.kept[0]
            is_as_planned = (
                state.log_end_offset == plan.topic.partitions[partition].log_end_offset
                and state.first_segment == first.base_offset
            )
            basis = expiry_basis(state, config)
            if is_as_planned and state.expiry_basis != basis:
                newest_ms = plan.bounds[partition].max_event_time_ms
                next_ms = next_look_ms(
                    expiry.kept, config, now_ms=now_ms, max_event_time_ms=newest_ms
                )
                after = state.moved(next_expiry_ms=next_ms, expiry_basis=basis)
                changes |= to_properties(partition, after)
        return changes

    compare_and_set(plan.topic, Step.NEXT_EXPIRY, noted)


def _moved(plan: ExpirePlan, current: Topic) -> PropertyChanges:
    """Return the state with the new log start offsets and the retained segments."""
    if plan.log is not None and current.is_adopted:
        return _moved_in_adopted(plan, plan.log, current)
    check_no_undo(current, since=plan.topic)
    changes: dict[str, str | None] = {REMOVING: "true"}
    for partition in plan.changed:
        expiry = plan.expiries[partition]
        planned, state = plan.topic.partitions[partition], current.partitions[partition]
        _check_unchanged(current, partition, planned, plan)
        added = state.segments[len(planned.segments) :]
        kept = tuple(segment.start for segment in expiry.kept)
        moved: dict[str, Any] = {
            "log_start_offset": max(state.log_start_offset, expiry.log_start_offset),
            "first_dirty_offset": max(state.first_dirty_offset, expiry.log_start_offset),
            "segments": kept + added,
        }
        if partition in plan.records:
            end_offset = max(state.expired_end_offset, plan.scopes[partition].end)
            moved["expired_end_offset"] = end_offset
        changes |= to_properties(partition, state.moved(**moved))
    return changes


def _moved_in_adopted(plan: ExpirePlan, seen: ObservedLog, current: Topic) -> PropertyChanges:
    changes = dict(seen.seen(current))
    for partition, expiry in plan.expiries.items():
        if expiry.removed:
            after = without_expired(seen.states[partition], expiry.kept, expiry.log_start_offset)
            changes |= to_properties(partition, after)
    return changes


def _check_unchanged(
    current: Topic, partition: int, planned: PartitionState, plan: ExpirePlan
) -> None:
    """Raise CommitConflictError if the partition's segments changed since the plan was made."""
    state = current.partitions[partition]
    is_rolled = plan.expiries[partition].kept[-1].base_offset != planned.active_segment
    has_grown = state.log_end_offset != planned.log_end_offset
    if state.segments[: len(planned.segments)] != planned.segments or (has_grown and is_rolled):
        raise CommitConflictError(
            f"expected the planned segments of {current.name} partition {partition}, found a "
            "change by another writer. Run the job again"
        )


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ExpirePlan:
    topic = load_settled(spark, name, "expire_segments", request)
    bounds, keeps_offsets = request.bounds, request.keeps_offsets
    return plan_expire(topic, request.now_ms, bounds, keeps_offsets=keeps_offsets)


EXPIRE_SEGMENTS = Job("expire_segments", _plan, execute_expire)
