"""Which points of a topic go back with a run, and the plan of that.

The topic is the primary, or a replica of it that follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.topics import Topic
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.config import DAY_MS
from ebbtide.log.undo.points import (
    PointsOfPartitions,
    check_is_noted,
    points_to_follow,
    points_to_undo,
)
from ebbtide.runs.proposals import Order
from ebbtide.runs.undo_points import read_points
from ebbtide.stages.delete_records.truncate import truncate_below_start
from ebbtide.stages.undo_run.execution import finish_undo, points_of
from ebbtide.stages.undo_run.plan import UndoPlan, plan_begun, plan_points
from ebbtide.stages.undo_run.refusals import refusals

# How long nothing is removed from what returned, so that somebody can change the setting first.
PAUSE_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class GoingBack:
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
    def on_primary(cls, topic: Topic, run_id: str, order: Order) -> GoingBack:
        """Find the points on the primary; RequestError where the run has none there."""
        topic = _prepared(topic, run_id, order)
        begun = _begun(topic, run_id)
        noted = read_points(topic.spark, topic.name)
        points = points_to_undo(noted, run_id) if begun is None else points_of(topic, begun)
        if not points:
            check_is_noted(noted, str(topic.name), run_id)
        states = topic.partitions
        points = {p: of for p, of in points.items() if p in states}
        of_run = {p for point in noted if point.run_id == run_id for p in point.states}
        starts = {p: states[p].log_start_offset for p in of_run & states.keys()}
        starts |= {p: of[0].states[p].log_start_offset for p, of in points.items()}
        return cls(topic, run_id, points, starts, begun)

    @classmethod
    def on_replica(cls, replica: Topic, primary: GoingBack, order: Order) -> GoingBack:
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
            return plan_begun(self.topic, self.begun, self.points)
        clock_ms = int(time.time() * 1000)
        undo = Undo.new(self.run_id, self.points, max(clock_ms, order.now_ms) + PAUSE_MS)
        if not self.points:
            return UndoPlan(self.topic, undo, {}, note="" if is_replica else Reason.UNDONE)
        bounds = None if is_replica else order.bounds  # a replica follows its primary
        reasons = {
            **refusals(self.topic, self.points, clock_ms),
            **_not_planned(self.points, bounds),
            **{p: why for p, why in refused.items() if p in self.points},
        }
        return plan_points(
            self.topic, undo, self.points, reasons, keeps_offsets=order.keeps_offsets
        )


def _prepared(topic: Topic, run_id: str, order: Order) -> Topic:
    """Finish the undo of another run, and remove what lies below the log start by now.

    That would leave beside the undo, or be found by none. A plan commits nothing.
    """
    if order.is_plan_only or _begun(topic, run_id) is not None:
        return topic
    topic = finish_undo(topic)
    truncate_below_start(topic, order.now_ms)
    return topic


def _begun(topic: Topic, run_id: str) -> Undo | None:
    in_flight = open_undo(topic.properties)
    return in_flight if in_flight is not None and in_flight.run_id == run_id else None


def _not_planned(points: Iterable[int], bounds: Bounds | None) -> dict[int, str]:
    """Return the partitions that a kept plan does not have."""
    if bounds is None:
        return {}
    return {p: Reason.NOT_PLANNED for p in points if p not in bounds}
