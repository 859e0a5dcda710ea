"""undo_run: take a run back, and with it the later ones of each partition."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.replica_tables import check_is_no_replica
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.proposals import Order, PlannedJob
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.undo_adopted.execution import execute_undo_adopted
from ebbtide.stages.undo_adopted.plan import AdoptedUndoPlan
from ebbtide.stages.undo_adopted.stage import propose_undo_adopted
from ebbtide.stages.undo_run.execution import begin, execute_points, log
from ebbtide.stages.undo_run.going_back import GoingBack
from ebbtide.stages.undo_run.plan import UndoPlan
from ebbtide.stages.undo_run.replicas import (
    find_on_replicas,
    follow,
    take_back_on_replica,
    tell_replica,
)
from ebbtide.stages.unfinished import settle

JOB = "undo_run"


def propose_undo(spark: SparkSession, name: TopicName, order: Order) -> UndoPlan:
    """Plan to undo the run on the topic and its table replicas.

    RequestError where no partition can go back.
    """
    run_id = order.parameters["run"]
    topic = load(spark, name)
    if topic.is_adopted:
        return propose_undo_adopted(topic, order)
    topic = settle(topic, JOB, is_plan_only=order.is_plan_only)
    check_is_no_replica(topic, "undo the run on")
    going = GoingBack.on_primary(topic, run_id, order)
    on_replicas = list(find_on_replicas(going, JOB, order))
    replicas = [of.plan(order, {}, is_replica=True) for of in on_replicas]
    of_replicas = {
        p: f"of {of.topic.name}: {why}" for of in replicas for p, why in of.refused.items()
    }
    plan = going.plan(order, of_replicas)
    plan = replace(plan, replicas=tuple(follow(on_replicas, replicas, plan.refused, order)))
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
    if isinstance(plan, AdoptedUndoPlan):
        outcome = plan.outcome()
        outcome.snapshot_ids = execute_undo_adopted(plan).snapshots
    else:
        outcome = _executed(plan)
    if plan.points:
        outcome.topic["paused_until_ms"] = plan.undo.paused_until_ms
    return outcome


def _executed(plan: UndoPlan) -> JobOutcome:
    """Take the run back on the topic and its table replicas."""
    replicas = [take_back_on_replica(of) for of in plan.replicas]
    begun, outcome = begin(plan), plan.outcome()
    for replica in replicas:
        tell_replica(replica, begun)
    outcome.snapshot_ids = execute_points(begun).snapshots
    return outcome


UNDO = PlannedJob(propose_undo, execute_undo, is_by_hand=True, needs_approval=lambda _: True)
