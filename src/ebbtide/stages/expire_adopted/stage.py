"""expire_segments on an adopted table: retention by size, wall clock and event time (KIP-870).

Order: log start offsets, then the rows below them. Every run removes whatever still lies below, so
the next run finishes a killed one. Segments and their sizes are those of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.log.adopted.segments import segments_of, without_expired
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import LeavingRows, PartitionSummary, partition_summary
from ebbtide.log.retention import LogOffsets, expire
from ebbtide.log.state.topic_state import NEVER, to_properties
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.adopted_look import Look, look_at_log
from ebbtide.stages.adopted_prefix import remove_below_start
from ebbtide.stages.expire_segments.plan import ExpirePlan, PartitionBounds


@dataclass(frozen=True, slots=True)
class AdoptedExpirePlan(ExpirePlan):
    """The logical segments that go from each partition of an adopted topic, by rule.

    `topic` has the partitions as the look has found them.
    """

    look: Look | None = None

    def touches(self) -> Touched:
        """Return nothing: an adopted table has no undo."""
        return Touched()

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what goes by which rule, as the segments' sums have it."""
        summaries = {}
        for partition, expiry in self.expiries.items():
            records = sum(segment.record_count for segment, _ in expiry.removed)
            rules = self._by_rule(partition)
            summaries[partition] = partition_summary(
                LeavingRows(records=records),
                rules,
                bytes_removed=sum(rule.get("bytes", 0) for rule in rules.values()),
            )
        return summaries


def plan_expire_adopted(
    topic: Topic, now_ms: int, bounds: Bounds | None = None
) -> AdoptedExpirePlan:
    """Plan what retention removes from the adopted topic; within a kept plan's bounds, if any."""
    if topic.config.expires_records:
        raise NotCoveredError(
            f"expected ebbtide.retention.granularity of {topic.name}, whose table others write, to "
            "be segment, found record; unset it"
        )
    ends = {p: of["log_start_offset"] for p, of in (bounds or {}).items()}
    look = look_at_log(topic, AdoptedRows.of(topic), now_ms, ends)
    states = {} if look is None else look.states
    observed = topic if look is None else look.observed
    expiries, limits = {}, {}
    for partition, state in states.items():
        if bounds is not None and partition not in bounds:
            continue
        known_ms = NEVER if state.max_event_time_ms is None else state.max_event_time_ms
        bound = PartitionBounds(state.log_end_offset, state.log_end_offset, known_ms)
        if bounds is not None:
            bound = bound.within(bounds[partition])
        expiries[partition] = expire(
            segments_of(state),
            LogOffsets(state.log_start_offset, state.log_end_offset, bound.log_start_offset),
            topic.config,
            now_ms=now_ms,
            max_event_time_ms=bound.max_event_time_ms,
        )
        limits[partition] = bound
    return AdoptedExpirePlan(
        observed, now_ms, expiries, {}, {}, {}, limits, is_bounded=bounds is not None, look=look
    )


def execute_expire_adopted(plan: AdoptedExpirePlan) -> JobOutcome:
    """Move the log start offsets, and remove what lies below them."""
    outcome = plan.outcome()
    if plan.look is None:
        return outcome
    after = compare_and_set(plan.look.topic, Step.LOG_START_OFFSET, partial(_moved, plan))
    removed = remove_below_start(after)
    outcome.rows_removed, outcome.snapshot_ids = removed.rows.total(), removed.snapshot_ids
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
