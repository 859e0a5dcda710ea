"""Give back a topic's rows and state, and finish what a killed run has begun.

Order: plan written to the state, tags that hold the snapshots to be read, records, batches, the
pause that keeps the next night from removing it all again, the note that the points went back,
state. A retry leaves out the tables that hold a snapshot of the undo; the other steps come out the
same again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from ebbtide.errors import CommitConflictError, StateError
from ebbtide.iceberg.commits import Step, current_commits
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.planned.planned_merge import check_no_merge
from ebbtide.iceberg.planned.planned_round import is_open, open_round
from ebbtide.iceberg.planned.planned_undo import Undo, open_undo, was_undone_since
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.iceberg.work_tags import WorkTag, release_tags, tag_before
from ebbtide.log.holds import Event, Hold, Kind
from ebbtide.log.state.topic_state import REPAIR, UNDO, PartitionState
from ebbtide.log.undo.points import UNDO_RUN, PointsOfPartitions, UndoPoint
from ebbtide.moments import to_datetime
from ebbtide.runs.holds_table import append_hold
from ebbtide.runs.undo_points import append_point, new_point_id, read_points
from ebbtide.stages.undo_run.plan import UndoPlan, plan_begun
from ebbtide.stages.undo_run.refusals import missing_snapshots
from ebbtide.stages.undo_run.returning_rows import Places
from ebbtide.stages.undo_run.undone_partitions import finished
from ebbtide.stages.undo_run.written_rows import Target, committed, give_back
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
    topic = compare_and_set(plan.topic, Step.UNDO_STARTED, partial(started, plan.undo, plan.topic))
    return replace(plan, topic=topic, is_begun=True)


def execute_points(plan: UndoPlan) -> Undone:
    """Take the plan's points back on its topic."""
    plan = begin(plan)
    topic, undo = plan.topic, plan.undo
    if not plan.points:
        return Undone(topic)
    _hold_snapshots(topic, undo, plan.points)
    undone = Undone(topic)
    places = Places.of(topic, plan.points)
    for target, returned in zip(Target.of(topic), (plan.records, plan.batches), strict=True):
        snapshot = committed(topic, target, undo.id)
        if snapshot is None:
            snapshot = give_back(topic, target, returned, places, undo.id)
        if snapshot is not None:
            undone.snapshots.append(snapshot)
    pause_returned(topic, undo)
    note_undone(topic, undo)
    undone.topic = set_counted(topic, Step.UNDO_STATE, partial(finished, undo, plan.points))
    release_tags(topic.spark, _tables(topic), partial(is_open, undone.topic))
    log.info("gave back %s records", number(plan.records_returned))
    return undone


def finish_undo(topic: Topic) -> Topic:
    """Finish the undo in flight, if there is one; return the topic afterwards."""
    undo = open_undo(topic.properties)
    if undo is None:
        return topic
    log.info("finishes the undo of run %s", undo.run_id)
    return execute_points(plan_begun(topic, undo, points_of(topic, undo))).topic


def give_up_lost_undo(topic: Topic) -> Topic:
    """Give up an undo in flight that has given back nothing and cannot, since snapshots are gone.

    Another tool may expire them before they are tagged. Return the topic afterwards.
    """
    undo = open_undo(topic.properties)
    if undo is None:
        return topic
    reason = "; ".join(missing_snapshots(topic, points_of(topic, undo)).values())
    is_begun = any(committed(topic, of, undo.id) is not None for of in Target.of(topic))
    if is_begun or not reason:
        return topic
    log.warning("gives up the undo of run %s: %s", undo.run_id, reason)

    def forgotten(current: Topic) -> PropertyChanges | None:
        in_flight = open_undo(current.properties)
        return {UNDO: None} if in_flight is not None and in_flight.id == undo.id else None

    return compare_and_set(topic, Step.UNDO_STATE, forgotten)


def _hold_snapshots(topic: Topic, undo: Undo, points: PointsOfPartitions) -> None:
    """Tag the points' snapshots, so that no other tool expires them before the undo has ended."""
    together = {point for of in points.values() for point in of}
    of_tables = ([p.records_snapshot for p in together], [p.batches_snapshot for p in together])
    for table, snapshots in zip(_tables(topic), of_tables, strict=True):
        held = {snapshot for snapshot in snapshots if snapshot is not None}
        if any(of.table == table and committed(topic, of, undo.id) for of in Target.of(topic)):
            continue  # what it was to give is given
        tag_before(topic.spark, table, WorkTag("undo", undo.id), held)


def _tables(topic: Topic) -> tuple[str, str]:
    return topic.name.records_table, topic.name.batches_table


def points_of(topic: Topic, undo: Undo) -> PointsOfPartitions:
    """Return the points of an undo in flight; StateError where a row of them is gone."""
    by_id = {point.point_id: point for point in read_points(topic.spark, topic.name)}
    for partition, ids in undo.points.items():
        if missing := [of for of in ids if of not in by_id]:
            raise StateError(
                f"expected point {missing[0]} in lake.ebbtide.undo_points, which the undo in "
                f"flight on {topic.name} takes back in partition {partition}, found that somebody "
                f"deleted it; restore the table, or let {REPAIR} with keep_changes rebuild the "
                "state from the topic's tables"
            )
    return {partition: [by_id[of] for of in ids] for partition, ids in undo.points.items()}


# What a removing run changes of a state, and an ingest does not.
_DECISIVE = ("log_start_offset", "first_dirty_offset", "cleaned_at_ms", "expired_end_offset")


def started(undo: Undo, planned: Topic, current: Topic) -> PropertyChanges:
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


def note_undone(topic: Topic, undo: Undo) -> None:
    """Keep that the points went back."""
    point = UndoPoint(
        point_id=new_point_id(),
        run_id=_run_id(undo),
        job=UNDO_RUN,
        topic=str(topic.name),
        at=datetime.now(UTC),
        undone=undo.points,
    )
    append_point(topic.spark, point, Step.UNDO_NOTED)


def pause_returned(topic: Topic, undo: Undo) -> None:
    """Hold what returned, so that no night removes it before somebody could change a setting."""
    is_whole = undo.points.keys() == topic.partitions.keys()
    for partition in [None] if is_whole else sorted(undo.points):
        where = "" if partition is None else f"-{partition}"
        hold = Hold(
            hold_id=f"undo-{undo.id[:8]}{where}",
            event=Event.MADE,
            at=datetime.now(UTC),
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
