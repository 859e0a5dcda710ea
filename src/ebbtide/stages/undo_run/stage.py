"""undo_run: take a run back, and with it the later ones of each partition."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.replica_tables import check_is_no_replica, find_replica, replica_names
from ebbtide.iceberg.topics import Topic, load
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.results import Reason
from ebbtide.log.settings.config import DAY_MS
from ebbtide.log.settings.names import TopicName
from ebbtide.log.undo.points import check_is_noted, points_to_undo
from ebbtide.runs.proposals import Order, PlannedJob
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.runs.undo_points import read_points
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.delete_records.truncate import truncate_below_start
from ebbtide.stages.undo_run.execution import execute_points, finish_undo, log, points_of
from ebbtide.stages.undo_run.plan import UndoPlan, plan_begun, plan_points
from ebbtide.stages.undo_run.refusals import refusals
from ebbtide.stages.unfinished import settle

JOB = "undo_run"
# How long nothing is removed from what returned, so that somebody can change the setting first.
PAUSE_MS = 7 * DAY_MS


def propose_undo(spark: SparkSession, name: TopicName, order: Order) -> UndoPlan:
    """Plan to undo the run on the topic and its table replicas.

    RequestError where no partition can go back.
    """
    run_id = order.parameters["run"]
    topic = settle(load(spark, name), JOB, is_plan_only=order.is_plan_only)
    check_is_no_replica(topic, "undo the run on")
    replicas = [of for of in _replicas(topic, run_id, order) if of is not None]
    of_replicas = {
        p: f"of {of.topic.name}: {why}" for of in replicas for p, why in of.refused.items()
    }
    plan = replace(_plan_one(topic, run_id, order, of_replicas), replicas=tuple(replicas))
    if plan.refused and not plan.points:
        raise RequestError(
            f"expected a partition of {name} in which run {run_id} can be undone, found none: "
            + "; ".join(f"partition {p}: {why}" for p, why in plan.refused.items())
        )
    return plan


def execute_undo(plan: UndoPlan) -> JobOutcome:
    """Take the run back, at the table replicas first: once the topic has it, all have."""
    log_partitions(
        log,
        {
            p: f"{len(of)} runs go back, to log start {plan.starts[p]}"
            for p, of in plan.points.items()
        },
    )
    for of in plan.replicas:
        execute_points(of)
        count_own(load(of.topic.spark, of.topic.name))
    undone, outcome = execute_points(plan), plan.outcome()
    outcome.snapshot_ids = undone.snapshots
    if plan.points:
        outcome.topic["paused_until_ms"] = plan.undo.paused_until_ms
    return outcome


UNDO = PlannedJob(propose_undo, execute_undo, is_by_hand=True, needs_approval=lambda _: True)


def _replicas(primary: Topic, run_id: str, order: Order) -> Iterable[UndoPlan | None]:
    """Yield the plan of each table replica; None for one that has no tables yet."""
    for name in replica_names(primary):
        replica = find_replica(primary.spark, name)
        if replica is None:
            yield None
        elif order.is_plan_only:
            check_unchanged(replica)
            yield _plan_one(replica, run_id, order, is_replica=True)
        else:
            replica = settle(count_own(replica), JOB)
            yield _plan_one(replica, run_id, order, is_replica=True)


def _plan_one(
    topic: Topic,
    run_id: str,
    order: Order,
    refused: Mapping[int, str] | None = None,
    *,
    is_replica: bool = False,
) -> UndoPlan:
    """Plan for one topic; a run that went back already, or that a replica lacks, is nothing."""
    in_flight = open_undo(topic.properties)
    if in_flight is not None and in_flight.run_id == run_id:
        return plan_begun(topic, in_flight, points_of(topic, in_flight))
    if in_flight is not None and not order.is_plan_only:
        topic = finish_undo(topic)
    if not order.is_plan_only:
        # What still lies below the log start would leave beside the undo, or be found by none.
        truncate_below_start(topic, order.now_ms)
    noted = read_points(topic.spark, topic.name)
    going = points_to_undo(noted, run_id)
    points = {p: of for p, of in going.items() if p in topic.partitions}
    clock_ms = int(time.time() * 1000)
    undo = Undo.of(run_id, points, max(clock_ms, order.now_ms) + PAUSE_MS)
    if not points:
        if not is_replica:
            check_is_noted(noted, str(topic.name), run_id)
        return UndoPlan(topic, undo, {}, note="" if is_replica else Reason.UNDONE)
    reasons = {
        **refusals(topic, points, clock_ms),
        **_not_planned(points, order.bounds, is_replica),
    }
    reasons |= {p: why for p, why in (refused or {}).items() if p in points}
    return plan_points(topic, undo, points, reasons, keeps_offsets=order.keeps_offsets)


def _not_planned(points: Iterable[int], bounds: Bounds | None, is_replica: bool) -> dict[int, str]:
    """Return the partitions that a kept plan does not have; a replica follows its primary."""
    if bounds is None or is_replica:
        return {}
    return {p: Reason.NOT_PLANNED for p in points if p not in bounds}
