"""Restore a topic's rows and state, and finish an undo of a killed run.

Order: write the undo to the state, tag the snapshots to read, restore records, then batches, add a
pause so that the next nightly run does not remove the records again, note the points as undone,
write the state. A retry skips the tables that have a snapshot of the undo; all other steps can be
repeated.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial

from ebbtide.errors import CommitConflictError, StateError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.file_commits import run_mark
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
    """The topic after an undo, and the snapshots with the restored rows."""

    topic: Topic
    snapshots: list[int] = field(default_factory=list)


def begin(plan: UndoPlan) -> UndoPlan:
    """Write the undo to the topic's state, which blocks removals; return the plan as begun."""
    if plan.is_begun or not plan.points:
        return plan
    topic = compare_and_set(plan.topic, Step.UNDO_STARTED, partial(_started, plan.undo, plan.topic))
    return replace(plan, topic=topic, is_begun=True)


def execute_points(plan: UndoPlan) -> Undone:
    """Undo the plan's points on its topic."""
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
    log.info("restored %s records", number(plan.records_returned))
    return Undone(after, snapshots)


def finish_undo(topic: Topic, now_ms: int = 0) -> Topic:
    """Finish the undo in flight, or abandon it if snapshots are gone, and return the topic.

    `now_ms` is the run's `now`, for the rows that arrived in an adopted table.
    """
    topic = give_up_lost_undo(topic)
    undo = open_undo(topic.properties)
    if undo is None:
        return topic
    log.info("finishing the undo of run %s", undo.run_id)
    return execute_points(plan_begun(topic, undo, points_of(topic, undo), now_ms)).topic


def give_up_lost_undo(topic: Topic) -> Topic:
    """Abandon an undo in flight that has restored no row and no longer can; return the topic.

    Another tool may have expired its snapshots before they were tagged.
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
    log.warning("abandoning the undo of run %s: %s", undo.run_id, "; ".join(lost.values()))

    def forgotten(current: Topic) -> PropertyChanges | None:
        return {UNDO: None} if _is_in_flight(undo, current) else None

    return compare_and_set(topic, Step.UNDO_STATE, forgotten)


def missing_snapshots(topic: Topic, points: PointsOfPartitions) -> dict[int, str]:
    """Return, by partition, the reason if another tool has expired a snapshot of its points."""
    tables = [open_table(topic.spark, table) for table in own_rows.tables(topic)]
    missing: dict[int, str] = {}
    for partition, of_partition in points.items():
        for point in reversed(of_partition):
            snapshots = (point.records_snapshot, point.batches_snapshot)
            for table, snapshot in zip(tables, snapshots, strict=False):
                if snapshot is not None and snapshot not in table.metadata.snapshots:
                    missing[partition] = (
                        f"another tool has expired snapshot {snapshot} of {table}, from before run "
                        f"{point.run_id}"
                    )
    return missing


def points_of(topic: Topic, undo: Undo) -> PointsOfPartitions:
    """Return the points of an undo in flight. Raise StateError if a row of them is gone."""
    by_id = {point.point_id: point for point in read_points(topic.spark, topic.name)}
    for partition, ids in undo.points.items():
        if missing := [point_id for point_id in ids if point_id not in by_id]:
            raise StateError(
                f"expected point {missing[0]} of the undo in flight on {topic.name} partition "
                f"{partition} in lake.ebbtide.undo_points, found none: its row was deleted. "
                f"Restore the table, or run {REPAIR} with keep_changes, which rebuilds the state "
                "from the topic's tables"
            )
    return {
        partition: [by_id[point_id] for point_id in ids] for partition, ids in undo.points.items()
    }


# Fields of a state that a removal changes and an ingest does not.
_DECISIVE = ("log_start_offset", "first_dirty_offset", "cleaned_at_ms", "expired_end_offset")


def _started(undo: Undo, planned: Topic, current: Topic) -> PropertyChanges:
    """Return the change that records the undo.

    Raise CommitConflictError if another job has removed records or begun work since the plan.
    """
    check_no_merge(current)
    other = open_undo(current.properties)
    changed = [p for p in undo.points if not _is_same(planned.partitions[p], current.partitions[p])]
    is_other = other is not None and other.id != undo.id
    is_late = is_other or was_undone_since(planned, current)
    if open_round(current) is not None or changed or is_late:
        raise CommitConflictError(
            f"expected {current.name} as of the undo's plan, found a removal or other work of "
            "another job. Run the job again"
        )
    return {UNDO: undo.to_json()}


def _is_same(planned: PartitionState, current: PartitionState) -> bool:
    return all(getattr(planned, name) == getattr(current, name) for name in _DECISIVE)


def _finished(plan: UndoPlan, current: Topic) -> PropertyChanges | None:
    """Return the state changes that end the undo, or None if it is no longer in flight."""
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
    """Store a point that marks the undo's points as undone."""
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
    """Pause removals from the undone partitions, so that there is time to change a setting."""
    paused = set(undo.points if undo.paused is None else undo.paused)
    is_whole = paused >= topic.partitions.keys()
    for partition in [None] if is_whole else sorted(paused):
        where = "" if partition is None else f"-{partition}"
        hold = Hold(
            # A replica's pause has the same id as that of its primary.
            hold_id=f"undo-{run_mark(undo.run_id)[:8]}{where}",
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
