"""repair_state: repair a topic whose rows or state somebody else has changed.

Either the change is rolled back, if the snapshots from before it still exist: then nothing is lost
and the state stays. Or the tables are kept as they are, and the state is rebuilt from them so that
nothing is removed that might be needed (docs/repair_state.md).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError, StateError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.foreign_changes import Counted, Look, count_own, counted_anew, look_at
from ebbtide.iceberg.history import newest_untouched
from ebbtide.iceberg.state_table import overwrite_state
from ebbtide.iceberg.topics import Topic, load, load_without_state, table_ids
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.rebuilding import Asked, rebuilt_states
from ebbtide.log.state.topic_state import (
    REPLICA_OF,
    TABLES,
    PartitionState,
    settings_of,
    state_of,
    to_properties,
)
from ebbtide.runs.held.keeping import keep_removed
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.runs.undo_points import note_before
from ebbtide.stages.repair_state.repaired_rows import (
    StrayRows,
    find_removals,
    read_log_in_tables,
    rebuild_all_headers,
    remove_rows,
)

log = logging.getLogger(__name__)

TAKE_BACK, KEEP = "take back", "keep"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The changes found in a topic, and its repair.

    `targets` are the snapshots that tables go back to, where the change is taken back.
    """

    topic: Topic
    now_ms: int
    what: list[str]  # what others did, a line each
    way: str
    targets: dict[str, int] = field(default_factory=dict)
    removals: dict[str, StrayRows] = field(default_factory=dict)
    states: dict[int, PartitionState] = field(default_factory=dict)
    problem: str | None = None  # why the change cannot be taken back

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        topic: dict[str, Any] = {"found": "; ".join(self.what) or "nothing", "way": self.way}
        if not self.what:
            topic["note"] = "nobody else has changed the topic; there is nothing to repair"
        for table, snapshot in self.targets.items():
            topic[f"{table}_back_to_snapshot"] = str(snapshot)
        if self.problem:
            topic["cannot_be_taken_back"] = self.problem
        outcome = JobOutcome(topic=topic)
        for partition in sorted({*self.topic.partitions, *self.states}):
            outcome.partitions[partition] = self._numbers(partition)
        outcome.rows_removed = sum(of.total for of in self.removals.values())
        return outcome

    def _numbers(self, partition: int) -> dict[str, Any]:
        before, after = self.topic.partitions.get(partition), self.states.get(partition)
        state = after or before
        assert state is not None
        numbers: dict[str, Any] = {
            "log_start_offset": state.log_start_offset,
            "low_watermark": self.topic.low_watermark(state.log_start_offset),
            "log_end_offset": state.log_end_offset,
        }
        for table, removal in self.removals.items():
            numbers[f"{table}_removed"] = dict(removal.by_reason.get(partition, {}))
        if after is not None and before is not None and after != before:
            moved = [n for n in ("log_end_offset", "segments") if _differ(before, after, n)]
            numbers["cleaned_again_from"] = after.first_dirty_offset
            numbers["rebuilt"] = ", ".join(moved) or "-"
        return numbers


def _differ(before: PartitionState, after: PartitionState, name: str) -> bool:
    return bool(getattr(before, name) != getattr(after, name))


def plan_repair(
    spark: SparkSession, name: TopicName, now_ms: int, asked: Asked, *, keeps: bool
) -> RepairPlan:
    """Plan what to repair and how.

    `keeps` leaves the tables as others left them instead of taking their change back. Where the
    state itself is lost or was edited, there is no other way.
    """
    try:
        topic = load(spark, name)
    except StateError as error:
        return _plan_keep(load_without_state(spark, name), now_ms, asked, [str(error)])
    looks = look_at(topic)
    what = [f"{look.table.what}: {line}" for look in looks for line in look.foreign]
    if not what:
        return RepairPlan(topic, now_ms, [], "none")
    if keeps:
        return _plan_keep(topic, now_ms, asked, what)
    targets, problems = {}, []
    for look in looks:
        before_change = _before_change(spark, look) if look.foreign else None
        if isinstance(before_change, int):
            targets[look.table.what] = before_change
        elif before_change is not None:
            problems.append(f"{look.table.what}: {before_change}")
    problem = "; ".join(problems) or None
    return RepairPlan(topic, now_ms, what, TAKE_BACK, targets, problem=problem)


def _before_change(spark: SparkSession, look: Look) -> int | str:
    """Return the snapshot to go back to, or why there is none."""
    if look.seen is None or look.seen.snapshot is None:
        return "it had no rows of ebbtide's before, so there is no snapshot to go back to"
    return newest_untouched(spark, java_table(spark, look.table.table), look.seen.snapshot)


def _plan_keep(topic: Topic, now_ms: int, asked: Asked, what: list[str]) -> RepairPlan:
    states = rebuilt_states(topic.partitions, read_log_in_tables(topic), asked, now_ms)
    removals = find_removals(topic, states)
    return RepairPlan(topic, now_ms, what, KEEP, removals=removals, states=states)


def execute_repair(plan: RepairPlan) -> JobOutcome:
    """Repair the topic; RequestError where the requested way is not possible.

    A killed repair is planned anew, and then finds less to do.
    """
    for line in plan.what:
        log.warning("others have changed the topic: %s", line)
    if not plan.what:
        return plan.outcome()
    if plan.problem:
        raise RequestError(
            f"expected to take back what was done to {plan.topic.name}, found that this is not "
            f"possible: {plan.problem}; repair it with keep_changes, which leaves the tables as "
            "they are and rebuilds the state from them"
        )
    outcome = _take_back(plan) if plan.way == TAKE_BACK else _keep(plan)
    # What others removed, and what the repair did, is in snapshots until they expire.
    if kept := keep_removed(load(plan.topic.spark, plan.topic.name)):
        outcome.topic["kept_by_holds"] = kept
    return outcome


def _take_back(plan: RepairPlan) -> JobOutcome:
    spark, outcome = plan.topic.spark, plan.outcome()
    steps = (Step.REPAIR_RECORDS, Step.REPAIR_BATCHES)
    for table, step in zip(Counted.of(plan.topic.name), steps, strict=True):
        if table.what in plan.targets:
            target = plan.targets[table.what]
            back = java_table(spark, table.table).manageSnapshots().setCurrentSnapshot(target)
            commit(step, back.commit)
            outcome.snapshot_ids.append(target)
    count_own(load(spark, plan.topic.name))
    return outcome


def _keep(plan: RepairPlan) -> JobOutcome:
    """Return rows first and the state last: until then the topic stands still."""
    topic, outcome = plan.topic, plan.outcome()
    repaired = Topic(topic.spark, topic.name, _properties(plan))
    note_before(repaired, Touched(repaired.partitions))  # no run before it can be undone
    steps = (Step.REPAIR_RECORDS, Step.REPAIR_BATCHES)
    for table, step in zip(Counted.of(topic.name), steps, strict=True):
        if table.what in plan.removals:
            deleted = remove_rows(topic, table.table, plan.removals[table.what], step)
            outcome.files_removed += len(deleted.files)
            outcome.snapshot_ids += deleted.snapshots
    outcome.topic["headers_rebuilt"] = rebuild_all_headers(repaired, plan.now_ms)
    state = {**state_of(_properties(plan)), **counted_anew(repaired)}
    state[TABLES] = table_ids(topic.spark, topic.name)
    commit(Step.REPAIR_STATE, partial(overwrite_state, topic.spark, topic.name, state))
    return outcome


def _properties(plan: RepairPlan) -> dict[str, str]:
    """Return the settings and the state, without work in flight, whose input rows changed."""
    properties = settings_of(plan.topic.properties)
    if REPLICA_OF in plan.topic.properties:
        properties[REPLICA_OF] = plan.topic.properties[REPLICA_OF]
    for partition, state in plan.states.items():
        properties |= to_properties(partition, state)
    return properties
