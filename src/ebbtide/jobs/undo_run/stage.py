"""undo_run: undo a run, and the later runs of each partition.

Table replicas are undone before the primary. A concurrent DeleteRecords request may have checked
the primary before the undo began, and commit to a replica after it. So the undo's id is recorded on
each replica once the undo of the primary has begun: a later commit of the request conflicts. If
the request has already committed, the undo is planned again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, RequestError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.in_flight import Undo, open_undo
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    check_is_no_replica,
    compare_and_set,
    find_replica,
    load,
    read_again,
    replica_names,
)
from ebbtide.jobs.removed_rows import truncate_below_start
from ebbtide.jobs.table_layout import check_no_round, check_same_log, remove_below_start
from ebbtide.jobs.undo_run import adopted_rows
from ebbtide.jobs.undo_run.execution import (
    begin,
    execute_points,
    finish_undo,
    give_up_lost_undo,
    log,
    missing_snapshots,
    points_of,
)
from ebbtide.jobs.undo_run.plan import UndoPlan, plan_begun, plan_points
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.reasons import Reason
from ebbtide.ledger.undo_points import (
    NEVER_UNDONE,
    PointsOfPartitions,
    UndoPoint,
    check_is_noted,
    points_to_follow,
    points_to_undo,
)
from ebbtide.moments import earlier, machine_clock, to_datetime, to_ms
from ebbtide.runner.job import Job, PlanRequest, asked_of_each
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.config import DAY_MS, UNDO_MS
from ebbtide.settings.names import TopicName
from ebbtide.spark.job_log import log_partitions
from ebbtide.state.topic_state import UNDONE, PartitionState

# Find the points to undo with a run, on the primary or on a replica, and plan their undo.


# Removals from undone partitions are paused for this long, to leave time to change a setting.
PAUSE_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class UndoCandidates:
    """The points of a topic to undo with a run, before any is refused."""

    topic: Topic
    run_id: str
    points: PointsOfPartitions
    starts: Mapping[int, int]  # log start offsets after the undo, of the run's partitions
    begun: Undo | None  # the undo of the run, if it is in flight

    @classmethod
    def on_primary(cls, topic: Topic, run_id: str, request: PlanRequest) -> UndoCandidates:
        """Find the points on the primary. Raise RequestError if the run has none."""
        topic = _prepared(topic, run_id, request)
        begun = _begun(topic, run_id)
        noted = read_points(topic.spark, topic.name)
        points = points_to_undo(noted, run_id) if begun is None else points_of(topic, begun)
        states = topic.partitions
        points = {p: partition_points for p, partition_points in points.items() if p in states}
        if not points:
            check_is_noted(noted, str(topic.name), run_id)
        of_run = {p for point in noted if point.run_id == run_id for p in point.states}
        starts = {p: states[p].log_start_offset for p in of_run & states.keys()}
        starts |= {
            p: partition_points[0].states[p].log_start_offset
            for p, partition_points in points.items()
        }
        return cls(topic, run_id, points, starts, begun)

    @classmethod
    def on_replica(
        cls, replica: Topic, primary: UndoCandidates, request: PlanRequest
    ) -> UndoCandidates:
        """Find the points on a replica of the primary; there may be none."""
        run_id = primary.run_id
        replica = _prepared(replica, run_id, request)
        begun, states = _begun(replica, run_id), replica.partitions
        if begun is not None:
            points = points_of(replica, begun)
        else:
            noted = read_points(replica.spark, replica.name)
            points = points_to_follow(noted, run_id, states, primary.starts)
        points = {p: partition_points for p, partition_points in points.items() if p in states}
        return cls(replica, run_id, points, {}, begun)

    def plan(
        self, request: PlanRequest, refused: Mapping[int, str], *, is_replica: bool = False
    ) -> UndoPlan:
        """Plan to undo the points, without those of `refused` partitions."""
        if self.begun is not None:
            return plan_begun(self.topic, self.begun, self.points, request.now_ms)
        clock_ms = to_ms(machine_clock())
        undo = Undo.new(self.run_id, self.points, max(clock_ms, request.now_ms) + PAUSE_MS)
        if not self.points:
            return UndoPlan(self.topic, undo, {}, note="" if is_replica else Reason.UNDONE)
        reasons = refusals(self.topic, self.points, clock_ms)
        if request.bounds is not None and not is_replica:  # a replica follows its primary
            reasons |= {p: Reason.NOT_PLANNED for p in self.points if p not in request.bounds}
        reasons |= {p: why for p, why in refused.items() if p in self.points}
        return plan_points(self.topic, undo, self.points, reasons, request)


def _prepared(topic: Topic, run_id: str, request: PlanRequest) -> Topic:
    """Finish the undo of another run, and remove the rows below the log start offsets first.

    Otherwise another job could remove these rows during the undo. In an adopted table, only
    partitions to undo are changed, because no plan lists the other removals. If the undo is only
    planned, nothing is committed. Raise ForeignLogError if an adopted table has rows of another
    log.
    """
    if topic.is_adopted:
        check_same_log(topic)
    if _begun(topic, run_id) is not None:
        return topic
    if topic.is_adopted:
        check_no_round(topic)
    if request.is_plan_only:
        return topic
    topic = finish_undo(topic, request.now_ms)
    if topic.is_adopted:
        remove_below_start(topic, _going(topic, run_id, request))
        return read_again(topic)
    truncate_below_start(topic, request.now_ms)
    return topic


def _going(topic: Topic, run_id: str, request: PlanRequest) -> Collection[int]:
    """Return the partitions of an adopted topic that the plan will not refuse."""
    points = points_to_undo(read_points(topic.spark, topic.name), run_id)
    planned = topic.partitions if request.bounds is None else request.bounds
    points = {p: points[p] for p in points.keys() & topic.partitions.keys() & planned.keys()}
    refused = refusals(topic, points, to_ms(machine_clock()))
    points = {p: points[p] for p in points.keys() - refused.keys()}
    history = adopted_rows.history_of(topic, points)
    return points.keys() - adopted_rows.refusals_of_history(topic, points, history).keys()


def _begun(topic: Topic, run_id: str) -> Undo | None:
    in_flight = open_undo(topic.properties)
    return in_flight if in_flight is not None and in_flight.run_id == run_id else None


def refusals(topic: Topic, points: PointsOfPartitions, clock_ms: int) -> dict[int, str]:
    """Return, by partition, the reason in its points and snapshots why it cannot be undone.

    `clock_ms` is the machine clock, which also sets the times of points.
    """
    oldest = to_datetime(earlier(clock_ms, topic.config.undo_retention_ms))
    reasons = {
        p: _by_points(topic.partitions[p], p, partition_points, oldest)
        for p, partition_points in points.items()
    }
    reasons = {partition: reason for partition, reason in reasons.items() if reason}
    return {**missing_snapshots(topic, points), **reasons}


def _by_points(
    current: PartitionState, partition: int, points: Sequence[UndoPoint], oldest: datetime
) -> str:
    final = next((point for point in points if point.job in NEVER_UNDONE), None)
    if final is not None:
        what, why = NEVER_UNDONE[final.job]
        return f"{what} by run {final.run_id} at {_moment(final.at)}, and {why}"
    if points[0].at < oldest:
        return (
            f"run {points[0].run_id} removed records at {_moment(points[0].at)}, longer ago than "
            f"{UNDO_MS} allows"
        )
    start = points[0].states[partition].log_start_offset
    later = [*(point.states[partition] for point in points[1:]), current]
    for point, after in zip(points, later, strict=True):
        if point.truncated and after.log_start_offset > start:
            return (
                f"run {point.run_id} deleted records of the live topic at kafka:"
                f"{' and kafka:'.join(point.truncated)} below offset {after.log_start_offset}, and "
                "no broker can restore them"
            )
    return ""


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


JOB = "undo_run"


def propose_undo(spark: SparkSession, name: TopicName, request: PlanRequest) -> UndoPlan:
    """Plan to undo the run on the topic and its table replicas.

    Raise RequestError if it can be undone in no partition.
    """
    run_id = request.parameters["run"]
    topic = load(spark, name)
    if not topic.is_adopted:
        topic = settle(topic, JOB, is_plan_only=request.is_plan_only)
        check_is_no_replica(topic, "undo the run on")
    elif not request.is_plan_only:
        topic = give_up_lost_undo(topic)
    primary = UndoCandidates.on_primary(topic, run_id, request)
    on_replicas = [] if topic.is_adopted else list(_on_replicas(primary, request))
    replicas = [candidates.plan(request, {}, is_replica=True) for candidates in on_replicas]
    of_replicas = {
        p: f"on replica {replica_plan.topic.name}: {why}"
        for replica_plan in replicas
        for p, why in replica_plan.refused.items()
    }
    plan = primary.plan(request, of_replicas)
    # A partition that is refused on the primary is not undone on replicas.
    replicas = [
        candidates.plan(request, plan.refused, is_replica=True)
        if planned.points.keys() & plan.refused.keys()
        else planned
        for candidates, planned in zip(on_replicas, replicas, strict=True)
    ]
    if plan.refused and not plan.points:
        raise RequestError(
            f"expected a partition of {name} in which run {run_id} can be undone, found none: "
            + "; ".join(f"partition {p}: {why}" for p, why in plan.refused.items())
        )
    if plan.points:
        paused = sorted(plan.undo.points)
        replicas = [
            each if each.is_begun else replace(each, undo=replace(each.undo, paused=paused))
            for each in replicas
        ]
    return replace(plan, replicas=tuple(replicas))


def _on_replicas(primary: UndoCandidates, request: PlanRequest) -> Iterator[UndoCandidates]:
    """Find the points to undo on each table replica that exists."""
    for name in replica_names(primary.topic):
        replica = find_replica(primary.topic.spark, name)
        if replica is None:
            continue
        if request.is_plan_only:
            check_unchanged(replica)
        else:
            replica = settle(count_own(replica), JOB)
        yield UndoCandidates.on_replica(replica, primary, request)


def execute_undo(plan: UndoPlan) -> JobOutcome:
    """Undo the run, on the table replicas first: once the primary is undone, all are."""
    going = plan.points.items()
    starts = {
        p: f"undoing {len(points)} runs, new log start offset {plan.starts[p]}"
        for p, points in going
    }
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
    """Record the id of the primary's undo, which has begun, on a replica.

    Raise CommitConflictError if the replica's log start offset has advanced since its undo.
    """
    told = of_primary.undo.id if of_primary.points else of_primary.topic.properties.get(UNDONE)
    if told is not None:
        compare_and_set(replica, Step.UNDO_TOLD, partial(_told, told, replica))


def _told(undo_id: str, left: Topic, current: Topic) -> PropertyChanges:
    for partition, state in left.partitions.items():
        start = current.partitions[partition].log_start_offset
        if start > state.log_start_offset:
            raise CommitConflictError(
                f"expected log start offset {state.log_start_offset} of {current.name} partition "
                f"{partition} after its undo, found {start}: a request has advanced it since. Run "
                "the job again to undo that too"
            )
    return {UNDONE: undo_id}


UNDO_RUN = Job(
    JOB,
    propose_undo,
    execute_undo,
    asked=asked_of_each("run"),
    is_by_hand=lambda _: True,
    needs_approval=lambda _: True,
)
