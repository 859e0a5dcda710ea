"""undo_run: take a run back, and with it the later ones of each partition.

Table replicas go back first, and are told once the topic is begun. Between a request's last look at
the topic and its commit on a replica, an undo may begin that knows nothing of that yet. Being told,
the replica takes no such commit any more; one that was faster is found then, and the undo is
planned again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, RequestError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.replica_tables import check_is_no_replica, find_replica, replica_names
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import UNDONE
from ebbtide.runs.proposals import Order, PlannedJob
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.undo_run.candidates import UndoCandidates
from ebbtide.stages.undo_run.execution import begin, execute_points, give_up_lost_undo, log
from ebbtide.stages.undo_run.plan import UndoPlan
from ebbtide.stages.unfinished import settle

JOB = "undo_run"


def propose_undo(spark: SparkSession, name: TopicName, order: Order) -> UndoPlan:
    """Plan to undo the run on the topic and its table replicas.

    RequestError where no partition can go back.
    """
    run_id = order.parameters["run"]
    topic = load(spark, name)
    if not topic.is_adopted:
        topic = settle(topic, JOB, is_plan_only=order.is_plan_only)
        check_is_no_replica(topic, "undo the run on")
    elif not order.is_plan_only:
        topic = give_up_lost_undo(topic)
    primary = UndoCandidates.on_primary(topic, run_id, order)
    on_replicas = [] if topic.is_adopted else list(_on_replicas(primary, order))
    replicas = [of.plan(order, {}, is_replica=True) for of in on_replicas]
    of_replicas = {
        p: f"of {of.topic.name}: {why}" for of in replicas for p, why in of.refused.items()
    }
    plan = primary.plan(order, of_replicas)
    # A replica stays as it is where the topic does.
    replicas = [
        of.plan(order, plan.refused, is_replica=True)
        if planned.points.keys() & plan.refused.keys()
        else planned
        for of, planned in zip(on_replicas, replicas, strict=True)
    ]
    if plan.refused and not plan.points:
        raise RequestError(
            f"expected a partition of {name} in which run {run_id} can be undone, found none: "
            + "; ".join(f"partition {p}: {why}" for p, why in plan.refused.items())
        )
    return replace(plan, replicas=tuple(replicas))


def _on_replicas(primary: UndoCandidates, order: Order) -> Iterator[UndoCandidates]:
    """Find what goes back on each table replica that is there."""
    for name in replica_names(primary.topic):
        replica = find_replica(primary.topic.spark, name)
        if replica is None:
            continue
        if order.is_plan_only:
            check_unchanged(replica)
        else:
            replica = settle(count_own(replica), JOB)
        yield UndoCandidates.on_replica(replica, primary, order)


def execute_undo(plan: UndoPlan) -> JobOutcome:
    """Take the run back, at the table replicas first: once the topic has it, all have."""
    going = plan.points.items()
    starts = {p: f"{len(of)} runs go back, to log start {plan.starts[p]}" for p, of in going}
    log_partitions(log, starts)
    replicas = []
    for of_replica in plan.replicas:
        replica = execute_points(of_replica).topic
        count_own(load(replica.spark, replica.name))
        replicas.append(replica)
    begun, outcome = begin(plan), plan.outcome()
    for replica in replicas:
        _tell_replica(replica, begun)
    outcome.snapshot_ids = execute_points(begun).snapshots
    if plan.points:
        outcome.topic["paused_until_ms"] = plan.undo.paused_until_ms
    return outcome


def _tell_replica(replica: Topic, of_primary: UndoPlan) -> None:
    """Leave the id of the primary's undo, which has begun, on a replica.

    CommitConflictError where its log start has moved since the undo has left it.
    """
    told = of_primary.undo.id if of_primary.points else of_primary.topic.properties.get(UNDONE)
    if told is not None:
        compare_and_set(replica, Step.UNDO_TOLD, partial(_told, told, replica))


def _told(undo_id: str, left: Topic, current: Topic) -> PropertyChanges:
    for partition, state in left.partitions.items():
        start = current.partitions[partition].log_start_offset
        if start > state.log_start_offset:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to begin at "
                f"{state.log_start_offset}, where the undo has left it, found that a request has "
                f"moved it to {start} since; run the job again, which takes that back too"
            )
    return {UNDONE: undo_id}


UNDO = PlannedJob(propose_undo, execute_undo, is_by_hand=True, needs_approval=lambda _: True)
