"""Restore rows of an adopted table that ebbtide's commits since an undo point removed.

The rows are read from the snapshots before and after each of these commits, which the owner may
expire: an adopted table has ebbtide's tags only while work is in flight. The snapshot with the
restored rows has the undo's id in its summary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.adopted.arrivals import EventClock, look
from ebbtide.iceberg.adopted.returning_rows import (
    UNDONE_SINCE,
    Removals,
    can_give_back,
    prepare_return,
    rows_removed,
)
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import TOPIC, Step, commit
from ebbtide.iceberg.in_flight import Undo, open_undo
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    check_still_adopted,
    current_snapshot,
    find_snapshot,
    read_again,
)
from ebbtide.iceberg.work_tags import WorkTag, tag_before
from ebbtide.jobs.removed_rows import PlannedRows
from ebbtide.jobs.table_layout import arrivals_of, check_same_log
from ebbtide.jobs.undo_run.own_rows import ReturningRecords
from ebbtide.kafka.adopted_segments import new_log, with_arrived
from ebbtide.ledger.undo_points import NEVER_UNDONE, PointsOfPartitions, state_to_return_to
from ebbtide.spark.expressions import number_sets
from ebbtide.state.topic_state import ADOPTED_SEEN, UNDO, PartitionState, to_changes


class ReturningCommit(NamedTuple):
    """A commit by ebbtide that removed rows, and the partitions to restore them in."""

    made: Snapshot
    partitions: Sequence[int]


class AdoptedRemovals(NamedTuple):
    """The commits whose rows are restored."""

    commits: Sequence[ReturningCommit] = ()
    seen: int = 0  # the newest snapshot in the history

    def rows(self, topic: Topic) -> list[DataFrame]:
        """Return the rows to restore, by commit."""
        rows = AdoptedRows.of(topic)
        return [rows_removed(rows, *each) for each in self.commits]


def history_of(topic: Topic, points: PointsOfPartitions) -> Removals:
    """Read the table's history since the oldest of the points' snapshots; all must exist."""
    if not points:
        return Removals(str(topic.name), (), 0, True)
    snapshots = open_table(topic.spark, topic.name.records_table).metadata.snapshots
    firsts = {_snapshot_of(points, partition) for partition in points}
    oldest = min(firsts, key=lambda snapshot: snapshots[snapshot].sequence_number)
    return Removals.since(topic, oldest)


def _snapshot_of(points: PointsOfPartitions, partition: int) -> int:
    """Return the snapshot before the first run to undo in a partition."""
    snapshot = points[partition][0].records_snapshot
    assert snapshot is not None, "an adopted table has rows before they are removed"
    return snapshot


def refusals_of_history(
    topic: Topic, points: PointsOfPartitions, history: Removals
) -> dict[int, str]:
    """Return, by partition, the reason in the table's history why it cannot be undone."""
    if not history.is_whole:
        why = "after the run, another tool has rolled the table back or expired a snapshot"
        return dict.fromkeys(points, why)
    if not can_give_back(AdoptedRows.of(topic)):
        why = "a data file of the table has no bounds of the offset, so an overwrite is not safe"
        return dict.fromkeys(points, why)
    reasons = {p: _reason(topic, history, _snapshot_of(points, p), p) for p in points}
    return {partition: reason for partition, reason in reasons.items() if reason}


def _reason(topic: Topic, history: Removals, snapshot: int, partition: int) -> str:
    if (other := history.of_others_after(snapshot)) is not None:
        return f"after the run, another tool has removed rows, maybe the same ones: {other}"
    table = open_table(topic.spark, topic.name.records_table).metadata
    for made in history.standing_after(snapshot, partition):
        if made.job in NEVER_UNDONE:
            what, why = NEVER_UNDONE[made.job]
            return f"{what} in snapshot {made.id}, and {why}"
        for needed in (made.parent, made.id):
            found = None if needed is None else table.snapshots.get(needed)
            if found is None:
                return f"another tool has expired snapshot {needed}"
            if found.schema_id != table.schema["schema-id"]:
                return f"the table's columns have changed since snapshot {needed}"
    return ""


def find_removals(
    topic: Topic, points: PointsOfPartitions, history: Removals
) -> tuple[AdoptedRemovals, dict[int, ReturningRecords]]:
    """Find the commits whose rows are restored, and the offsets of these rows."""
    partitions: dict[int, list[int]] = {}
    commits: dict[int, Snapshot] = {}
    for partition in points:
        for made in history.standing_after(_snapshot_of(points, partition), partition):
            commits[made.id] = made
            partitions.setdefault(made.id, []).append(partition)
    returning = [
        ReturningCommit(made, partitions[snapshot_id]) for snapshot_id, made in commits.items()
    ]
    removals = AdoptedRemovals(returning, history.newest)
    parts = [part.select("partition", "offset") for part in removals.rows(topic)]
    if not parts:
        return removals, {}
    together = reduce(DataFrame.unionByName, parts).persist()
    try:
        counts = together.groupBy("partition").count().collect()
        sets = number_sets(together, ["partition"], "offset")
    finally:
        together.unpersist()
    records = {p: ReturningRecords(count, PlannedRows(sets[(p,)])) for p, count in counts}
    return (removals if records else AdoptedRemovals()), records


def committed(topic: Topic, undo: Undo) -> int | None:
    """Return the snapshot with the rows that the undo restored, or None before that commit."""
    return find_snapshot(topic.spark, topic.name.records_table, UNDO, undo.id)


def give_back(
    topic: Topic, undo: Undo, points: PointsOfPartitions, removals: AdoptedRemovals
) -> list[int]:
    """Tag the snapshots to read, commit the rows, and return the new snapshot's id in a list.

    Raise CommitConflictError if another writer removed rows meanwhile, ForeignLogError if rows of
    another log have arrived.
    """
    snapshot = committed(topic, undo)
    if snapshot is None and removals.commits:
        check_same_log(topic)
        around = {
            snapshot_id for made, _ in removals.commits for snapshot_id in (made.parent, made.id)
        }
        tag = WorkTag("undo", undo.id)
        read = {snapshot for snapshot in around if snapshot is not None}
        tag_before(topic.spark, topic.name.records_table, tag, read)
        since = {p: _snapshot_of(points, p) for p in points}
        told = {UNDO: undo.id, UNDONE_SINCE: json.dumps(since), TOPIC: str(topic.name)}
        rows = AdoptedRows.of(topic)
        prepared = prepare_return(rows, removals.rows(topic), removals.seen, told)

        def give() -> int:
            done = committed(topic, undo)  # another job may have ended this undo meanwhile
            if done is not None:
                return done
            check_still_adopted(topic)
            if open_undo(read_again(topic).properties) != undo:
                raise CommitConflictError(
                    f"expected undo {undo.id} in flight on {topic.name}, found that another job "
                    "ended it. No row was restored"
                )
            return prepared()

        snapshot = commit(Step.UNDO_RECORDS, give)
    return [] if snapshot is None else [snapshot]


def changes_after(current: Topic, points: PointsOfPartitions, now_ms: int) -> PropertyChanges:
    """Return the state changes after the rows are restored, with the rows that arrived since."""
    snapshot = current_snapshot(current.spark, current.name.records_table)
    assert snapshot is not None, f"{current.name} has no snapshot"
    changes: dict[str, str | None] = {ADOPTED_SEEN: str(snapshot)}
    for partition, state in _states_after(current, points, snapshot, now_ms):
        changes |= to_changes(partition, state)
    return changes


def _states_after(
    current: Topic, points: PointsOfPartitions, snapshot: int, now_ms: int
) -> Iterator[tuple[int, PartitionState]]:
    """Yield each changed partition's state as of a snapshot, with the rows that arrived.

    An undone partition starts from its state before the first undone run.
    """
    rows, states = AdoptedRows.of(current), current.partitions
    clock = EventClock(now_ms, current.config.message_timestamp_after_max_ms)
    others = arrivals_of(current, now_ms, snapshot)
    assert others is not None
    for partition, arrived in others.by_partition.items():
        if partition not in points:
            state = states.get(partition) or new_log(0, now_ms)
            yield partition, with_arrived(state, arrived, now_ms)
    for first in sorted({_snapshot_of(points, partition) for partition in points}):
        returning = {
            p: state_to_return_to([point.states[p] for point in partition_points], states[p])
            for p, partition_points in points.items()
            if _snapshot_of(points, p) == first
        }
        arrivals = look(rows, returning, first, clock, snapshot)
        assert arrivals is not None
        for partition, state in returning.items():
            arrived_to = arrivals.by_partition.get(partition)
            after = state if arrived_to is None else with_arrived(state, arrived_to, now_ms)
            yield partition, after
