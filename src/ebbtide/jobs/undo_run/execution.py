"""Give back a topic's rows and state, and finish what a killed run has begun.

Order: plan written to the state, tags that hold the snapshots to be read, records, batches, the
pause that keeps the next night from removing it all again, the note that the points went back,
state. A retry leaves out the tables that hold a snapshot of the undo; the other steps come out the
same again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial

from ebbtide.errors import CommitConflictError, StateError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.in_flight import (
    Undo,
    check_no_merge,
    is_open,
    open_round,
    open_undo,
    was_undone_since,
)
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.iceberg.work_tags import release_tags
from ebbtide.jobs.undo_run import adopted_rows, own_rows
from ebbtide.jobs.undo_run.plan import UndoPlan, plan_begun
from ebbtide.ledger.holds import Hold, HoldEvent, Kind
from ebbtide.ledger.undo_points import UNDO_RUN, PointsOfPartitions, UndoPoint
from ebbtide.moments import machine_clock, to_datetime
from ebbtide.runner.holds import append_hold
from ebbtide.runner.undo_points import append_point, new_point_id, read_points
from ebbtide.state.topic_state import REPAIR, UNDO, UNDONE, PartitionState, to_properties
from ebbtide.text import number

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Undone:
    """The topic after an undo, and the snapshots by which rows came back."""

    topic: Topic
    snapshots: list[int] = field(default_factory=list)


def begin(plan: UndoPlan) -> UndoPlan:
    """Write the undo to its topic's state, from when on nothing is removed; return it as begun."""
    if plan.is_begun or not plan.points:
        return plan
    topic = compare_and_set(plan.topic, Step.UNDO_STARTED, partial(_started, plan.undo, plan.topic))
    return replace(plan, topic=topic, is_begun=True)


def execute_points(plan: UndoPlan) -> Undone:
    """Take the plan's points back on its topic."""
    plan = begin(plan)
    topic, undo, points = plan.topic, plan.undo, plan.points
    if not points:
        return Undone(topic)
    if topic.is_adopted:
        snapshots = adopted_rows.give_back(topic, undo, points, plan.adopted)
    else:
        snapshots = own_rows.give_back(topic, undo, points, plan.own)
    _pause_returned(topic, undo)
    _note_undone(topic, undo)
    set_state = compare_and_set if topic.is_adopted else set_counted
    after = set_state(topic, Step.UNDO_STATE, partial(_finished, plan))
    release_tags(topic.spark, own_rows.tables(topic), partial(is_open, after))
    log.info("gave back %s records", number(plan.records_returned))
    return Undone(after, snapshots)


def finish_undo(topic: Topic, now_ms: int = 0) -> Topic:
    """Finish the undo in flight, or give it up if it is lost; return the topic afterwards.

    `now_ms` is when an adopted topic's rows are looked at.
    """
    topic = give_up_lost_undo(topic)
    undo = open_undo(topic.properties)
    if undo is None:
        return topic
    log.info("finishes the undo of run %s", undo.run_id)
    return execute_points(plan_begun(topic, undo, points_of(topic, undo), now_ms)).topic


def give_up_lost_undo(topic: Topic) -> Topic:
    """Give up an undo in flight that has given back nothing and cannot, since snapshots are gone.

    Another tool may expire them before they are tagged. Return the topic afterwards.
    """
    undo = open_undo(topic.properties)
    if undo is None or own_rows.is_begun(topic, undo):
        return topic
    points = points_of(topic, undo)
    lost = missing_snapshots(topic, points)
    if topic.is_adopted and not lost:
        history = adopted_rows.history_of(topic, points)
        lost = adopted_rows.refusals_of_history(topic, points, history)
    if not lost:
        return topic
    log.warning("gives up the undo of run %s: %s", undo.run_id, "; ".join(lost.values()))

    def forgotten(current: Topic) -> PropertyChanges | None:
        return {UNDO: None} if _is_in_flight(undo, current) else None

    return compare_and_set(topic, Step.UNDO_STATE, forgotten)


def missing_snapshots(topic: Topic, points: PointsOfPartitions) -> dict[int, str]:
    """Return, by partition, which snapshot of its points another tool has expired."""
    tables = [open_table(topic.spark, table) for table in own_rows.tables(topic)]
    missing: dict[int, str] = {}
    for partition, of_partition in points.items():
        for point in reversed(of_partition):
            snapshots = (point.records_snapshot, point.batches_snapshot)
            for table, snapshot in zip(tables, snapshots, strict=False):
                if snapshot is not None and snapshot not in table.metadata.snapshots:
                    missing[partition] = (
                        f"snapshot {snapshot} of {table}, from before run {point.run_id}, "
                        "is gone: another tool has expired it"
                    )
    return missing


def points_of(topic: Topic, undo: Undo) -> PointsOfPartitions:
    """Return the points of an undo in flight; StateError where a row of them is gone."""
    by_id = {point.point_id: point for point in read_points(topic.spark, topic.name)}
    for partition, ids in undo.points.items():
        if missing := [point_id for point_id in ids if point_id not in by_id]:
            raise StateError(
                f"expected point {missing[0]} in lake.ebbtide.undo_points, which the undo in "
                f"flight on {topic.name} takes back in partition {partition}, found that somebody "
                f"deleted it; restore the table, or let {REPAIR} with keep_changes rebuild the "
                "state from the topic's tables"
            )
    return {
        partition: [by_id[point_id] for point_id in ids] for partition, ids in undo.points.items()
    }


# What a removing run changes of a state, and an ingest does not.
_DECISIVE = ("log_start_offset", "first_dirty_offset", "cleaned_at_ms", "expired_end_offset")


def _started(undo: Undo, planned: Topic, current: Topic) -> PropertyChanges:
    """Write the undo down; CommitConflictError where other work was first."""
    check_no_merge(current)
    other = open_undo(current.properties)
    changed = [p for p in undo.points if not _is_same(planned.partitions[p], current.partitions[p])]
    is_other = other is not None and other.id != undo.id
    is_late = is_other or was_undone_since(planned, current)
    if open_round(current) is not None or changed or is_late:
        raise CommitConflictError(
            f"expected {current.name} as the undo was planned on it, found that another job has "
            "removed from it or begun to; run the job again"
        )
    return {UNDO: undo.to_json()}


def _is_same(planned: PartitionState, current: PartitionState) -> bool:
    return all(getattr(planned, name) == getattr(current, name) for name in _DECISIVE)


def _finished(plan: UndoPlan, current: Topic) -> PropertyChanges | None:
    """Return the changes that end the undo; None where it is no longer in flight."""
    if not _is_in_flight(plan.undo, current):
        return None
    changes: dict[str, str | None] = {UNDO: None, UNDONE: plan.undo.id}
    if current.is_adopted:
        return changes | dict(adopted_rows.changes_after(current, plan.points, plan.now_ms))
    for partition, state in own_rows.states_after(current, plan.points).items():
        changes |= to_properties(partition, state)
    return changes


def _is_in_flight(undo: Undo, current: Topic) -> bool:
    in_flight = open_undo(current.properties)
    return in_flight is not None and in_flight.id == undo.id


def _note_undone(topic: Topic, undo: Undo) -> None:
    """Keep that the points went back."""
    point = UndoPoint(
        point_id=new_point_id(),
        run_id=_run_id(undo),
        job=UNDO_RUN,
        topic=str(topic.name),
        at=machine_clock(),
        undone=undo.points,
    )
    append_point(topic.spark, point, Step.UNDO_NOTED)


def _pause_returned(topic: Topic, undo: Undo) -> None:
    """Hold what returned, so that no night removes it before somebody could change a setting."""
    is_whole = undo.points.keys() == topic.partitions.keys()
    for partition in [None] if is_whole else sorted(undo.points):
        where = "" if partition is None else f"-{partition}"
        hold = Hold(
            hold_id=f"undo-{undo.id[:8]}{where}",
            event=HoldEvent.MADE,
            at=machine_clock(),
            by=UNDO_RUN,
            run_id=_run_id(undo),
            kind=Kind.PAUSE,
            topic=str(topic.name),
            partition=partition,
            reason=f"run {undo.run_id} was undone",
            ends_at=to_datetime(undo.paused_until_ms),
        )
        append_hold(topic.spark, topic.name, hold)


def _run_id(undo: Undo) -> str:
    commits = current_commits()
    return undo.id if commits is None else commits.run_id
