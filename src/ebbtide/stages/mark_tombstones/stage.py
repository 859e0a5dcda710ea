"""mark_tombstones: find the tombstones among the records that were not marked yet (KIP-87).

A record is a tombstone by its null value, by bit 5 of its own attributes, by a header or by a
predicate; in all cases except the first it may carry a value. Order: move first unmarked offsets
back where records are to be marked again, quarantine records that the log must not hold, write
marks, move first unmarked offsets forward.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.planned.planned_round import open_round
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, current_snapshot
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    partition_summary,
)
from ebbtide.log.requests.from_offset import FromOffset, offsets_to_mark_again_from, ranges_to_mark
from ebbtide.log.settings.changes import changed
from ebbtide.log.state.topic_state import to_properties
from ebbtide.runs.held.keeping import keep_leaving
from ebbtide.runs.proposals import LOG_END, Proposal, log_ends
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.mark_tombstones.changed_marks import (
    TO_QUARANTINE,
    Counts,
    MarkChanges,
    changed_records,
    count_changes,
    find_changes,
)
from ebbtide.stages.mark_tombstones.quarantine import (
    Forbidden,
    RunOf,
    quarantine_note,
    take_to_quarantine,
)
from ebbtide.stages.mark_tombstones.tombstones import TombstoneRule, tombstone_rule
from ebbtide.stages.mark_tombstones.written_marks import prepare_marks
from ebbtide.text import number

QUARANTINED = "quarantined"  # in a plan's summary, as if by a rule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MarkPlan(Proposal):
    """The offsets to look at, and the records there whose mark changes or that must go."""

    topic: Topic
    ranges: Mapping[int, tuple[int, int]]
    again_from: Mapping[int, int]  # where partitions are marked again from
    snapshot: int | None  # the one that was looked at; None where the table has none
    rule: TombstoneRule
    changes: MarkChanges = field(default_factory=dict)
    now_ms: int = 0  # the run's

    @property
    def counts(self) -> dict[int, Counts]:
        """The number of records that change, by partition."""
        return count_changes(self.changes, self.topic.partitions)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets that go to the quarantine."""
        nothing = dict.fromkeys(self.topic.partitions, BitMap64())
        return {**nothing, **self.to_quarantine}

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return where the log ended, beyond which an execution marks nothing."""
        return log_ends(self.topic)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return how many records go to the quarantine: these are all that leave the log."""
        removes = self.removes()
        return {
            p: partition_summary(
                LeavingRows(len(offsets)), {QUARANTINED: RuleNumbers(records=len(offsets))}
            )
            for p, offsets in removes.items()
        }

    def marked(self) -> Topic:
        """Return the topic with the state that it has once all is marked."""
        changes = _marked(self.topic, self)
        return replace(self.topic, properties=changed(self.topic.properties, changes))

    @property
    def to_quarantine(self) -> dict[int, BitMap64]:
        """The offsets of records that go to quarantine, by partition."""
        going: dict[int, BitMap64] = {}
        for (partition, _), by_code in self.changes.items():
            if offsets := by_code.get(TO_QUARANTINE):
                going[partition] = going.get(partition, BitMap64()) | offsets
        return going

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome()
        for partition, counts in self.counts.items():
            outcome.partitions[partition] = self.topic.offsets_of(partition) | counts.to_dict()
            outcome.rows_removed += counts.quarantined
        if outcome.rows_removed:
            table = self.topic.name.quarantine_table
            outcome.topic = {
                "quarantine": table,
                "note": quarantine_note(outcome.rows_removed, table),
            }
        return outcome


def plan_mark(
    topic: Topic, again: Sequence[FromOffset] = (), bounds: Bounds | None = None
) -> MarkPlan:
    """Find the tombstones in [first unmarked offset, log end offset) of each partition.

    `again` says where to begin before that, `bounds` are a kept plan's; ConfigurationError for a
    rule that cannot be.
    """
    rule = tombstone_rule(topic.spark, topic.config)
    again_from = _again_from(topic, again)
    ends = None if bounds is None else {p: of[LOG_END] for p, of in bounds.items()}
    ranges = ranges_to_mark(topic.partitions, again_from, ends)
    snapshot = current_snapshot(topic.spark, topic.name.records_table) if ranges else None
    plan = MarkPlan(topic, ranges, again_from, snapshot, rule)
    if snapshot is None:
        return plan
    return replace(plan, changes=find_changes(topic, rule, ranges, snapshot))


def _again_from(topic: Topic, again: Sequence[FromOffset]) -> dict[int, int]:
    in_flight = open_round(topic)
    parts = {} if in_flight is None else in_flight.partitions
    cleaned_up_to = {p: part.first_uncleanable_offset for p, part in parts.items()}
    return offsets_to_mark_again_from(topic.partitions, cleaned_up_to, again)


def execute_mark(plan: MarkPlan, run: RunOf) -> JobOutcome:
    """Mark what the plan found, then move the first unmarked offsets past it."""
    counts = plan.counts
    lines = {p: _described(first, end, counts[p]) for p, (first, end) in plan.ranges.items()}
    log_partitions(log, lines)
    outcome, topic = plan.outcome(), plan.topic
    if plan.again_from:
        compare_and_set(topic, Step.MARK_AGAIN, lambda current: _moved_back(current, plan))
    if plan.snapshot is not None and outcome.rows_removed:
        if kept := keep_leaving(topic, plan.to_quarantine):
            outcome.topic["kept_by_holds"] = kept
        with plan.rule.failing_clearly():
            outcome.snapshot_ids += take_to_quarantine(topic, _forbidden(plan), run)
    if plan.snapshot is not None and plan.changes:
        prepared = prepare_marks(topic, plan.snapshot, plan.changes)
        outcome.snapshot_ids.append(commit(Step.MARK_RECORDS, prepared))
    if plan.ranges:
        compare_and_set(topic, Step.MARK_STATE, lambda current: _marked(current, plan))
    return outcome


def _forbidden(plan: MarkPlan) -> Forbidden:
    """Return the records that the plan takes to quarantine."""
    assert plan.snapshot is not None
    changed = changed_records(plan.topic, plan.rule, plan.ranges, plan.snapshot)
    last_offsets: dict[int, int] = {}
    for (partition, _), by_code in plan.changes.items():
        if offsets := by_code.get(TO_QUARANTINE):
            last_offsets[partition] = max(last_offsets.get(partition, 0), offsets.max())
    count = sum(counts.quarantined for counts in plan.counts.values())
    return Forbidden(changed.where(F.col("becomes") == TO_QUARANTINE), count, last_offsets)


def _described(first: int, end: int, counts: Counts) -> str:
    """Describe the offsets [first, end) to be marked, for the log."""
    return (
        f"offsets {first} to {end}: marks {number(counts.marked)}, unmarks "
        f"{number(counts.unmarked)}, takes {number(counts.quarantined)} to quarantine"
    )


def _moved_back(current: Topic, plan: MarkPlan) -> PropertyChanges:
    """Move first unmarked offsets back, so that the cleaner stays below what is marked again.

    The moved state also lets the next run go on with a killed one.
    """
    asked = [FromOffset(partition, offset) for partition, offset in plan.again_from.items()]
    changes: dict[str, str | None] = {}
    for partition, offset in _again_from(current, asked).items():
        state = current.partitions[partition]
        moved: dict[str, Any] = {
            "first_unmarked_offset": min(state.first_unmarked_offset, offset),
        }
        changes |= to_properties(partition, state.moved(**moved))
    return changes


def _marked(current: Topic, plan: MarkPlan) -> PropertyChanges:
    changes: dict[str, str | None] = {}
    for partition, (first, end) in plan.ranges.items():
        state = current.partitions[partition]
        planned = min(first, plan.topic.partitions[partition].first_unmarked_offset)
        if state.first_unmarked_offset < planned:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to be marked up to {planned}, "
                f"found {state.first_unmarked_offset}: another run marks it again; run the job "
                "again when it is done"
            )
        first_unmarked = max(state.first_unmarked_offset, end)
        changes |= to_properties(partition, state.moved(first_unmarked_offset=first_unmarked))
    return changes
