"""undo_run on an adopted topic: take a run back, and with it the later ones of each partition."""

from __future__ import annotations

import time

from ebbtide.errors import RequestError
from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.topics import Topic, read_again
from ebbtide.log.reasons import Reason
from ebbtide.log.undo.points import check_is_noted, points_to_undo
from ebbtide.runs.proposals import Order
from ebbtide.runs.undo_points import read_points
from ebbtide.stages.table_layout import check_no_round, remove_below_start
from ebbtide.stages.undo_adopted.execution import (
    finish_undo_adopted,
    give_up_lost_undo,
    plan_begun,
)
from ebbtide.stages.undo_adopted.plan import (
    AdoptedUndoPlan,
    history_of,
    plan_returning,
    refusals_of_history,
)
from ebbtide.stages.undo_run.going_back import PAUSE_MS
from ebbtide.stages.undo_run.refusals import refusals


def propose_undo_adopted(topic: Topic, order: Order) -> AdoptedUndoPlan:
    """Plan to undo the run on the topic; RequestError where no partition can go back."""
    run_id = order.parameters["run"]
    if not order.is_plan_only:
        topic = give_up_lost_undo(topic)
    in_flight = open_undo(topic.properties)
    if in_flight is not None and in_flight.run_id == run_id:
        return plan_begun(topic, in_flight, order.now_ms)
    check_no_round(topic)
    if not order.is_plan_only:
        topic = finish_undo_adopted(topic, order.now_ms)
        # What still lies below the log start would leave beside the undo.
        remove_below_start(topic)
        topic = read_again(topic)
    noted = read_points(topic.spark, topic.name)
    points = {p: of for p, of in points_to_undo(noted, run_id).items() if p in topic.partitions}
    clock_ms = int(time.time() * 1000)
    undo = Undo.new(run_id, points, max(clock_ms, order.now_ms) + PAUSE_MS)
    if not points:
        check_is_noted(noted, str(topic.name), run_id)
        return AdoptedUndoPlan(topic, undo, {}, note=Reason.UNDONE)
    refused = refusals(topic, points, clock_ms)
    if order.bounds is not None:
        refused |= {p: Reason.NOT_PLANNED for p in points if p not in order.bounds}
    going = {p: of for p, of in points.items() if p not in refused}
    if going:
        history = history_of(topic, going)
        refused |= refusals_of_history(topic, going, history)
    if len(refused) == len(points):
        raise RequestError(
            f"expected a partition of {topic.name} in which run {run_id} can be undone, found "
            "none: " + "; ".join(f"partition {p}: {why}" for p, why in sorted(refused.items()))
        )
    return plan_returning(topic, undo, points, history, order.now_ms, refused)
