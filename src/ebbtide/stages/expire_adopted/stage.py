"""expire_segments on an adopted table: retention by size, wall clock and event time (KIP-870).

Order: log start offsets, then the rows below them, and single rows past the event-time limit. Every
run removes whatever still lies below, so the next run finishes a killed one. Segments and their
sizes are those of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pyroaring import BitMap64

from ebbtide.iceberg.adopted.leaving_rows import OldRows, PlacedRows, find_leaving
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.log.adopted.missing import count_missing
from ebbtide.log.adopted.segments import segments_of, without_expired
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import LeavingRows, PartitionSummary, partition_summary
from ebbtide.log.retention import Expiry, LogOffsets, RecordLimit, expire, record_limit
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState, to_properties
from ebbtide.runs.holds_table import holds_at, pauses_on
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.adopted_look import Look, look_at_log
from ebbtide.stages.adopted_removal import remove_below_start
from ebbtide.stages.expire_segments.expired_records import ExpiredRecords
from ebbtide.stages.expire_segments.plan import ExpirePlan, PartitionBounds, bound_of
from ebbtide.stages.planned_rows import PlannedRows


@dataclass(frozen=True, slots=True)
class AdoptedExpirePlan(ExpirePlan):
    """The logical segments that go from each partition of an adopted topic, by rule.

    `topic` has the partitions as the look has found them. Single rows go where they are `old`.
    """

    look: Look | None = None
    old: Mapping[int, OldRows] = field(default_factory=dict)

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan, and which offsets never arrived."""
        outcome = ExpirePlan.outcome(self)
        for partition, numbers in outcome.partitions.items():
            if missing := self.topic.partitions[partition].missing:
                numbers["missing_offsets"] = count_missing(missing)
        if self.look is not None and self.look.notes:
            outcome.topic["note"] = "; ".join(self.look.notes)
        return outcome

    def touches(self) -> Touched:
        """Return the partitions that lose something."""
        snapshot = None if self.look is None else self.look.snapshot
        return Touched(self.changed, records_snapshot=snapshot)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what goes by which rule, as the segments' sums have it."""
        summaries = {}
        for partition, expiry in self.expiries.items():
            records = sum(segment.record_count for segment, _ in expiry.removed)
            rules = self._by_rule(partition)
            left = sum(segment.record_count for segment in expiry.kept)
            left -= self._records(partition).rows
            summaries[partition] = partition_summary(
                LeavingRows(records=records + self._records(partition).rows),
                rules,
                self.staying(partition, left),
                bytes_removed=sum(rule.get("bytes", 0) for rule in rules.values()),
            )
        return summaries


def plan_expire_adopted(
    topic: Topic, now_ms: int, bounds: Bounds | None = None
) -> AdoptedExpirePlan:
    """Plan what retention removes from the adopted topic; within a kept plan's bounds, if any."""
    rows = AdoptedRows.of(topic)
    ends = {p: of["log_start_offset"] for p, of in (bounds or {}).items()}
    look = look_at_log(topic, rows, now_ms, ends)
    if look is None:
        return AdoptedExpirePlan(topic, now_ms, {}, {}, {}, {}, is_bounded=bounds is not None)
    observed = look.observed
    pauses = pauses_on(observed, holds_at(topic, now_ms))
    expiries: dict[int, Expiry] = {}
    limits: dict[int, PartitionBounds] = {}
    old: dict[int, OldRows] = {}
    for partition, state in look.states.items():
        if bounds is not None and partition not in bounds:
            continue
        bound = bound_of(state, (bounds or {}).get(partition))
        if partition in pauses:
            expiry = Expiry([], segments_of(state), state.log_start_offset)
        else:
            expiry = _expiry(state, topic.config, bound, now_ms)
            if (limit := _limit(topic.config, bound, now_ms)) is not None:
                start = expiry.log_start_offset
                old[partition] = OldRows(start, bound.log_end_offset, _before_ms(limit))
        expiries[partition], limits[partition] = expiry, bound
    # Rows that came late go with the removal, so the plan and the guards count them.
    late = {p: look.states[p].log_start_offset for p in look.late_below_start if p in expiries}
    found = find_leaving(rows, look.snapshot, late, old) if old or late else PlacedRows()
    return AdoptedExpirePlan(
        observed,
        now_ms,
        expiries,
        {},
        {p: _expired(found, p, look.states[p]) for p in found.offsets},
        limits,
        is_bounded=bounds is not None,
        pauses=pauses,
        look=look,
        old=old,
    )


def _expiry(
    state: PartitionState, config: TopicConfig, bound: PartitionBounds, now_ms: int
) -> Expiry:
    return expire(
        segments_of(state),
        LogOffsets(state.log_start_offset, state.log_end_offset, bound.log_start_offset),
        config,
        now_ms=now_ms,
        max_event_time_ms=bound.max_event_time_ms,
    )


def _limit(config: TopicConfig, bound: PartitionBounds, now_ms: int) -> RecordLimit | None:
    return record_limit(config, now_ms=now_ms, max_event_time_ms=bound.max_event_time_ms)


def _before_ms(limit: RecordLimit) -> int:
    """Return before when a row is old; its timestamp stands for the time of its append too."""
    both = (limit.event_time_ms, limit.append_time_ms)
    return min(ms for ms in both if ms is not None)


def _expired(found: PlacedRows, partition: int, state: PartitionState) -> ExpiredRecords:
    """Return single rows of a partition; each is taken to have the mean size of its segment.

    One below the log start offset has that of the partition.
    """
    by_segment = found.by_segment(partition, state.segments)
    size_bytes = sum(
        of.size_bytes * by_segment[start.base_offset] // of.record_count
        for start, of in zip(state.segments, state.sums, strict=True)
        if of.record_count
    )
    below = found.rows[partition] - by_segment.total()
    rows = sum(segment.record_count for segment in state.sums)
    held_bytes = sum(segment.size_bytes for segment in state.sums)
    size_bytes += below * held_bytes // rows if rows else 0
    offsets = BitMap64(found.offsets[partition])
    return ExpiredRecords(found.rows[partition], size_bytes, PlannedRows(offsets))


def execute_expire_adopted(plan: AdoptedExpirePlan) -> JobOutcome:
    """Move the log start offsets, and remove what lies below them and single old rows."""
    outcome = plan.outcome()
    if plan.look is None:
        return outcome
    after = compare_and_set(plan.look.topic, Step.LOG_START_OFFSET, partial(_moved, plan))
    removed = remove_below_start(after, plan.old, plan.single_offsets)
    outcome.rows_removed, outcome.snapshot_ids = removed.rows.total(), removed.snapshot_ids
    if removed.kept:
        outcome.topic["kept_by_holds"] = removed.kept
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = removed.rows[partition]
    return outcome


def _moved(plan: AdoptedExpirePlan, current: Topic) -> PropertyChanges:
    """Return what the look found, with the segments gone that expire."""
    assert plan.look is not None
    changes = dict(plan.look.seen(current))
    for partition, expiry in plan.expiries.items():
        if expiry.removed:
            state = plan.look.states[partition]
            after = without_expired(state, expiry.kept, expiry.log_start_offset)
            changes |= to_properties(partition, after)
    return changes
