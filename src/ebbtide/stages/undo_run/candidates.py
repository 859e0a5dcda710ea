"""Which points of a topic go back with a run, which cannot and why, and the plan of that.

The topic is the primary, or a replica of it that follows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.topics import Topic, read_again
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.config import DAY_MS, UNDO_MS
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.log.undo.points import (
    NEVER_UNDONE,
    PointsOfPartitions,
    UndoPoint,
    check_is_noted,
    points_to_follow,
    points_to_undo,
)
from ebbtide.moments import earlier, to_datetime
from ebbtide.runs.proposals import Order
from ebbtide.runs.undo_points import read_points
from ebbtide.stages.delete_records.truncate import truncate_below_start
from ebbtide.stages.table_layout import check_no_round, remove_below_start
from ebbtide.stages.undo_run.execution import finish_undo, missing_snapshots, points_of
from ebbtide.stages.undo_run.plan import UndoPlan, plan_begun, plan_points

# How long nothing is removed from what returned, so that somebody can change the setting first.
PAUSE_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class UndoCandidates:
    """The points of a topic that go back with a run, before anything is refused.

    `begun` is the undo of that run in flight, if there is one. `starts` are the log start offsets
    afterwards of the partitions that the run removed from.
    """

    topic: Topic
    run_id: str
    points: PointsOfPartitions
    starts: Mapping[int, int]
    begun: Undo | None

    @classmethod
    def on_primary(cls, topic: Topic, run_id: str, order: Order) -> UndoCandidates:
        """Find the points on the primary; RequestError where the run has none there."""
        topic = _prepared(topic, run_id, order)
        begun = _begun(topic, run_id)
        noted = read_points(topic.spark, topic.name)
        points = points_to_undo(noted, run_id) if begun is None else points_of(topic, begun)
        states = topic.partitions
        points = {p: of for p, of in points.items() if p in states}
        if not points:
            check_is_noted(noted, str(topic.name), run_id)
        of_run = {p for point in noted if point.run_id == run_id for p in point.states}
        starts = {p: states[p].log_start_offset for p in of_run & states.keys()}
        starts |= {p: of[0].states[p].log_start_offset for p, of in points.items()}
        return cls(topic, run_id, points, starts, begun)

    @classmethod
    def on_replica(cls, replica: Topic, primary: UndoCandidates, order: Order) -> UndoCandidates:
        """Find the points on a replica of the primary; none is nothing wrong."""
        run_id = primary.run_id
        replica = _prepared(replica, run_id, order)
        begun, states = _begun(replica, run_id), replica.partitions
        if begun is not None:
            points = points_of(replica, begun)
        else:
            noted = read_points(replica.spark, replica.name)
            points = points_to_follow(noted, run_id, states, primary.starts)
        points = {p: of for p, of in points.items() if p in states}
        return cls(replica, run_id, points, {}, begun)

    def plan(
        self, order: Order, refused: Mapping[int, str], *, is_replica: bool = False
    ) -> UndoPlan:
        """Plan to take the points back, those of `refused` partitions apart."""
        if self.begun is not None:
            return plan_begun(self.topic, self.begun, self.points, order.now_ms)
        clock_ms = int(time.time() * 1000)
        undo = Undo.new(self.run_id, self.points, max(clock_ms, order.now_ms) + PAUSE_MS)
        if not self.points:
            return UndoPlan(self.topic, undo, {}, note="" if is_replica else Reason.UNDONE)
        reasons = refusals(self.topic, self.points, clock_ms)
        if order.bounds is not None and not is_replica:  # a replica follows its primary
            reasons |= {p: Reason.NOT_PLANNED for p in self.points if p not in order.bounds}
        reasons |= {p: why for p, why in refused.items() if p in self.points}
        return plan_points(self.topic, undo, self.points, reasons, order)


def _prepared(topic: Topic, run_id: str, order: Order) -> Topic:
    """Finish the undo of another run, and remove what lies below the log start by now.

    That would leave beside the undo, or be found by none. A plan commits nothing.
    """
    if _begun(topic, run_id) is not None:
        return topic
    if topic.is_adopted:
        check_no_round(topic)
    if order.is_plan_only:
        return topic
    topic = finish_undo(topic, order.now_ms)
    if topic.is_adopted:
        remove_below_start(topic)
        return read_again(topic)
    truncate_below_start(topic, order.now_ms)
    return topic


def _begun(topic: Topic, run_id: str) -> Undo | None:
    in_flight = open_undo(topic.properties)
    return in_flight if in_flight is not None and in_flight.run_id == run_id else None


def refusals(topic: Topic, points: PointsOfPartitions, clock_ms: int) -> dict[int, str]:
    """Return the reason of each partition that has one, as far as points and snapshots tell.

    `clock_ms` is that of the machines that commit, as for the age of snapshots.
    """
    oldest = to_datetime(earlier(clock_ms, topic.config.undo_ms))
    reasons = {p: _by_points(topic.partitions[p], p, of, oldest) for p, of in points.items()}
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
            f"run {points[0].run_id} removed at {_moment(points[0].at)}, which is longer ago than "
            f"{UNDO_MS} allows"
        )
    start = points[0].states[partition].log_start_offset
    later = [*(point.states[partition] for point in points[1:]), current]
    for point, after in zip(points, later, strict=True):
        if point.truncated and after.log_start_offset > start:
            return (
                f"run {point.run_id} truncated the live topic at kafka:"
                f"{' and kafka:'.join(point.truncated)} up to offset {after.log_start_offset}, and "
                "no broker gives that back"
            )
    return ""


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
