"""repair_state: repair a topic whose rows or state somebody else has changed.

Either the change is rolled back, if the snapshots from before it still exist: then nothing is lost
and the state stays. Or the tables are kept as they are, and the state is rebuilt from them so that
nothing is removed that might be needed (docs/repair_state.md).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.lost_lists import forget_lost
from ebbtide.iceberg.foreign_changes import Counted, count_own, counted_anew
from ebbtide.iceberg.state_table import overwrite_state
from ebbtide.iceberg.topics import Topic, load, table_ids
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.rebuilding import Asked
from ebbtide.log.state.topic_state import (
    REPAIR,
    REPLICA_OF,
    TABLES,
    settings_of,
    state_of,
    to_properties,
)
from ebbtide.runs.held.keeping import keep_removed
from ebbtide.runs.proposals import Order, Parameters, PlannedJob, Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.runs.undo_points import note_before
from ebbtide.stages.repair_state.plan import (
    TAKE_BACK,
    RepairPlan,
    check_as_planned,
    find_way,
    plan_repair,
)
from ebbtide.stages.repair_state.repaired_rows import rebuild_all_headers, remove_rows
from ebbtide.stages.unfinished import settle

log = logging.getLogger(__name__)


def asked_parameters(asked: Asked, *, keeps: bool) -> dict[str, Any]:
    """Return what is asked of a repair, as a plan keeps it."""
    return {
        "keep_changes": keeps,
        "log_start_offset": {str(p): n for p, n in asked.log_start_offsets.items()},
        "max_event_time_ms": {str(p): n for p, n in asked.max_event_times_ms.items()},
    }


def propose_repair(spark: SparkSession, name: TopicName, order: Order) -> RepairPlan:
    """Plan the repair; PlanExceededError where it is no more what the kept plan says."""
    plan = plan_repair(
        spark,
        name,
        order.now_ms,
        _asked(order.parameters),
        keeps=order.parameters["keep_changes"],
        keeps_offsets=order.keeps_offsets,
    )
    settle(plan.topic, REPAIR, is_plan_only=order.is_plan_only)
    if order.bounds is not None:
        check_as_planned(plan, order.parameters)
    return plan


def execute_repair(plan: RepairPlan) -> JobOutcome:
    """Repair the topic; RequestError where the requested way is not possible.

    A killed repair is planned anew, and then finds less to do.
    """
    for line in plan.what:
        log.warning("others have changed the topic: %s", line)
    if not plan.what:
        return plan.outcome()
    if (refusal := plan.refusal()) is not None:
        raise refusal
    for table in Counted.of(plan.topic.name):
        forget_lost(plan.topic.spark, table.table)
    outcome = _take_back(plan) if plan.way == TAKE_BACK else _keep(plan)
    # What others removed, and what the repair did, is in snapshots until they expire.
    if kept := keep_removed(load(plan.topic.spark, plan.topic.name)):
        outcome.topic["kept_by_holds"] = kept
    return outcome


def _resolve(spark: SparkSession, name: TopicName, order: Order) -> Parameters:
    """Add what the repair would change beside the rows, so that a kept plan says it."""
    asked = _asked(order.parameters)
    way = find_way(spark, name, order.now_ms, asked, keeps=order.parameters["keep_changes"])
    return {**order.parameters, **way.decisions()}


REPAIR_STATE = PlannedJob(
    propose_repair,
    execute_repair,
    is_by_hand=True,
    needs_approval=lambda plan: bool(plan.what),
    resolve=_resolve,
    repairs=True,
)


def _asked(parameters: Parameters) -> Asked:
    names = ("log_start_offset", "max_event_time_ms")
    return Asked(*({int(p): n for p, n in parameters[name].items()} for name in names))


def _take_back(plan: RepairPlan) -> JobOutcome:
    spark, outcome = plan.topic.spark, plan.outcome()
    steps = (Step.REPAIR_RECORDS, Step.REPAIR_BATCHES)
    for table, step in zip(Counted.of(plan.topic.name), steps, strict=True):
        if table.what in plan.targets:
            target = plan.targets[table.what]
            back = open_table(spark, table.table).java.manageSnapshots().setCurrentSnapshot(target)
            commit(step, back.commit)
            outcome.snapshot_ids.append(target)
    count_own(load(spark, plan.topic.name))
    return outcome


def _keep(plan: RepairPlan) -> JobOutcome:
    """Return rows first and the state last: until then the topic stands still."""
    topic, outcome = plan.topic, plan.outcome()
    repaired = Topic(topic.name, _properties(plan), topic.spark)
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
