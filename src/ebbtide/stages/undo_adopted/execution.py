"""Give back an adopted topic's rows and state, and finish what a killed run has begun.

Order: plan written to the state, tags on the snapshots to be read, rows, the pause, the note that
the points went back, state, tags away. Rows that came back are known by the undo's id in the
summary of their snapshot.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial

from ebbtide.iceberg.adopted.arrivals import EventClock, look
from ebbtide.iceberg.adopted.returning_rows import UNDONE_SINCE, prepare_return
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import TOPIC, Step, commit
from ebbtide.iceberg.planned.planned_round import is_open
from ebbtide.iceberg.planned.planned_undo import Undo, open_undo
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    find_snapshot,
)
from ebbtide.iceberg.work_tags import WorkTag, release_tags, tag_before
from ebbtide.log.adopted.segments import new_log, with_arrived
from ebbtide.log.adopted.undone import state_to_return_to
from ebbtide.log.state.topic_state import ADOPTED_SEEN, UNDO, UNDONE, PartitionState, to_changes
from ebbtide.log.undo.points import PointsOfPartitions
from ebbtide.stages.undo_adopted.plan import (
    AdoptedUndoPlan,
    history_of,
    plan_returning,
    refusals_of_history,
    snapshot_of,
)
from ebbtide.stages.undo_run.execution import (
    Undone,
    note_undone,
    pause_returned,
    points_of,
    started,
)
from ebbtide.stages.undo_run.refusals import missing_snapshots
from ebbtide.text import number

log = logging.getLogger(__name__)


def execute_undo_adopted(plan: AdoptedUndoPlan) -> Undone:
    """Take the plan's points back."""
    topic, undo = plan.topic, plan.undo
    if not plan.points:
        return Undone(topic)
    if not plan.is_begun:
        topic = compare_and_set(topic, Step.UNDO_STARTED, partial(started, undo, topic))
    spark, table = topic.spark, topic.name.records_table
    undone = Undone(topic)
    snapshot = find_snapshot(spark, table, UNDO, undo.id)
    if snapshot is None and plan.records_returned:
        tag_before(spark, table, WorkTag("undo", undo.id), plan.snapshots)
        snapshot = _given_back(plan)
    if snapshot is not None:
        undone.snapshots.append(snapshot)
    pause_returned(topic, undo)
    note_undone(topic, undo)
    finish = partial(_finished, undo, plan.points, plan.now_ms)
    undone.topic = compare_and_set(topic, Step.UNDO_STATE, finish)
    release_tags(spark, [table], partial(is_open, undone.topic))
    log.info("gave back %s records", number(plan.records_returned))
    return undone


def _given_back(plan: AdoptedUndoPlan) -> int:
    """Commit the rows; CommitConflictError where somebody else removed some meanwhile."""
    topic = plan.topic
    since = {p: snapshot_of(plan.points, p) for p in plan.points}
    told = {UNDO: plan.undo.id, UNDONE_SINCE: json.dumps(since), TOPIC: str(topic.name)}
    prepared = prepare_return(AdoptedRows.of(topic), plan.rows(), plan.seen, told)
    return commit(Step.UNDO_RECORDS, prepared)


def finish_undo_adopted(topic: Topic, now_ms: int) -> Topic:
    """Finish the undo in flight, or give up one that cannot be; return the topic afterwards."""
    topic = give_up_lost_undo(topic)
    undo = open_undo(topic.properties)
    if undo is None:
        return topic
    log.info("finishes the undo of run %s", undo.run_id)
    return execute_undo_adopted(plan_begun(topic, undo, now_ms)).topic


def give_up_lost_undo(topic: Topic) -> Topic:
    """Give up an undo in flight that has given back nothing and cannot any more."""
    undo = open_undo(topic.properties)
    if undo is None or find_snapshot(topic.spark, topic.name.records_table, UNDO, undo.id):
        return topic
    points = points_of(topic, undo)
    lost = missing_snapshots(topic, points)
    lost = lost or refusals_of_history(topic, points, history_of(topic, points))
    if not lost:
        return topic
    log.warning("gives up the undo of run %s: %s", undo.run_id, "; ".join(lost.values()))
    return compare_and_set(topic, Step.UNDO_STATE, partial(_forgotten, undo))


def plan_begun(topic: Topic, undo: Undo, now_ms: int) -> AdoptedUndoPlan:
    """Plan what is left of an undo that a killed run has begun; nothing once rows are back."""
    points = points_of(topic, undo)
    if find_snapshot(topic.spark, topic.name.records_table, UNDO, undo.id) is not None:
        return AdoptedUndoPlan(topic, undo, points, is_begun=True, now_ms=now_ms)
    history = history_of(topic, points)
    return plan_returning(topic, undo, points, history, now_ms, is_begun=True)


def _forgotten(undo: Undo, current: Topic) -> PropertyChanges | None:
    return {UNDO: None} if _is_in_flight(undo, current) else None


def _is_in_flight(undo: Undo, current: Topic) -> bool:
    in_flight = open_undo(current.properties)
    return in_flight is not None and in_flight.id == undo.id


def _finished(
    undo: Undo, points: PointsOfPartitions, now_ms: int, current: Topic
) -> PropertyChanges | None:
    """Return the changes that end the undo; None where it is no longer in flight."""
    if not _is_in_flight(undo, current):
        return None
    snapshot = current_snapshot(current.spark, current.name.records_table)
    assert snapshot is not None, f"{current.name} has no snapshot"
    changes: dict[str, str | None] = {UNDO: None, UNDONE: undo.id, ADOPTED_SEEN: str(snapshot)}
    for partition, state in _states_after(current, points, snapshot, now_ms):
        changes |= to_changes(partition, state)
    return changes


def _states_after(
    current: Topic, points: PointsOfPartitions, snapshot: int, now_ms: int
) -> Iterator[tuple[int, PartitionState]]:
    """Yield each partition's state as of a snapshot: with what arrived since it was kept last.

    Those that go back were kept before the first of the undone runs.
    """
    rows, states = AdoptedRows.of(current), current.partitions
    clock = EventClock(now_ms, current.config.message_timestamp_after_max_ms)
    seen = current.properties.get(ADOPTED_SEEN)
    others = look(rows, states, None if seen is None else int(seen), clock, snapshot)
    assert others is not None
    for partition, arrived in others.by_partition.items():
        if partition not in points:
            state = states.get(partition) or new_log(0, now_ms)
            yield partition, with_arrived(state, arrived, now_ms)
    for first in sorted({snapshot_of(points, partition) for partition in points}):
        returning = {
            p: state_to_return_to([point.states[p] for point in of], states[p])
            for p, of in points.items()
            if snapshot_of(points, p) == first
        }
        arrivals = look(rows, returning, first, clock, snapshot)
        assert arrivals is not None
        for partition, state in returning.items():
            arrived_to = arrivals.by_partition.get(partition)
            after = state if arrived_to is None else with_arrived(state, arrived_to, now_ms)
            yield partition, after
