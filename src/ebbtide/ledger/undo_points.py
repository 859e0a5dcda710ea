"""Undo points: the state before each removal, and the points that an undo of a run includes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.kafka.adopted_segments import EMPTY
from ebbtide.ledger.own_tables import DENSE_JSON, Cell, OwnTable
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState, parse_states, to_properties

MAX_NAMED = 5  # runs of an error
UNDO_RUN = "undo_run"  # the job
# Jobs that cannot be undone, nor anything before them: what each did, and the reason.
NEVER_UNDONE = {
    "erase_keys": ("keys were erased", "an erasure cannot be undone"),
    "repair_state": ("a foreign change was accepted", "the state before it may be wrong"),
    "adopt_table": ("the table was adopted", "the state before it may be of another log"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UndoPoint:
    """A topic before a job of a run removed records: a row of `lake.ebbtide.undo_points`."""

    point_id: str
    run_id: str
    job: str
    topic: str
    at: datetime
    records_snapshot: int | None = None  # None: the table has none
    batches_snapshot: int | None = None
    # Of the partitions that the job changes.
    states: Mapping[int, PartitionState] = field(default_factory=dict)
    truncated: Sequence[str] = ()  # connections of live topics with DeleteRecords by the job
    # Of undo_run: the ids of the undone points, by partition.
    undone: Mapping[int, Sequence[str]] = field(default_factory=dict)


def _state_properties(states: Mapping[int, PartitionState]) -> str:
    properties: dict[str, str] = {}
    for partition, state in states.items():
        properties |= to_properties(partition, state)
    return json.dumps(properties, separators=(",", ":"))


def _point(
    *,
    topic: str,
    states: Mapping[str, str],
    truncated: Sequence[str],
    undone: Mapping[str, Sequence[str]],
    **fields: Any,
) -> UndoPoint:
    return UndoPoint(
        **fields,
        topic=topic,
        states=parse_states(states, topic),
        truncated=tuple(truncated),
        undone={int(partition): ids for partition, ids in undone.items()},
    )


UNDO_POINTS = OwnTable(
    name="undo_points",
    columns="""
    point_id STRING, run_id STRING, job STRING, topic STRING, `at` TIMESTAMP,
    records_snapshot BIGINT COMMENT 'the snapshot before the job removed anything',
    batches_snapshot BIGINT,
    states STRING COMMENT 'JSON: the state of each partition that the job changed, as properties',
    truncated STRING COMMENT 'JSON: connections of live topics with DeleteRecords by the job',
    undone STRING COMMENT 'JSON: of undo_run, the undone points by partition'
    """,
    day="at",
    build=_point,
    cells={
        "states": Cell(_state_properties, json.loads),
        "truncated": DENSE_JSON,
        "undone": DENSE_JSON,
    },
    # Rows never change, so old snapshots are useless; each removal makes one.
    properties={"history.expire.max-snapshot-age-ms": str(60 * 60 * 1000)},
)


# Points by partition, oldest first.
PointsOfPartitions = Mapping[int, Sequence[UndoPoint]]


def standing_points(points: Iterable[UndoPoint]) -> PointsOfPartitions:
    """Return the points of a topic that are not undone yet."""
    oldest_first = sorted(points, key=lambda point: point.at)
    undone = {
        (partition, point_id)
        for point in oldest_first
        for partition, ids in point.undone.items()
        for point_id in ids
    }
    standing: dict[int, list[UndoPoint]] = {}
    for point in oldest_first:
        for partition in point.states:
            if (partition, point.point_id) not in undone:
                standing.setdefault(partition, []).append(point)
    return standing


def points_to_undo(points: Iterable[UndoPoint], run_id: str) -> PointsOfPartitions:
    """Return the points to undo with a run: in each of its partitions, its points and all later
    ones.
    """
    chosen: dict[int, Sequence[UndoPoint]] = {}
    for partition, of_partition in standing_points(points).items():
        first = next((n for n, p in enumerate(of_partition) if p.run_id == run_id), None)
        if first is not None:
            chosen[partition] = of_partition[first:]
    return chosen


def points_to_follow(
    points: Iterable[UndoPoint],
    run_id: str,
    current: Mapping[int, PartitionState],
    starts: Mapping[int, int],
) -> PointsOfPartitions:
    """Return the points to undo on a replica if its primary undoes a run.

    These are the run's points and all later ones. If a partition of `current` would still start
    above its offset in `starts`, the primary's log start offsets after the undo, the points that
    advanced it are included.
    """
    points = list(points)
    of_run = points_to_undo(points, run_id)
    chosen: dict[int, Sequence[UndoPoint]] = {}
    for partition, standing in standing_points(points).items():
        if partition not in current:
            continue
        state = current[partition]
        held = _since_begun_anew(standing, partition, state)
        too_high = _number_above(
            [point.states[partition].log_start_offset for point in held],
            state.log_start_offset,
            starts.get(partition, state.log_start_offset),
        )
        number = min(len(held), max(too_high, len(of_run.get(partition, ()))))
        if number:
            chosen[partition] = held[-number:]
    return chosen


def _since_begun_anew(
    points: Sequence[UndoPoint], partition: int, current: PartitionState
) -> Sequence[UndoPoint]:
    """Return the points since the log was emptied and began beyond its end, as on an outrun
    replica.
    """
    states = [*(point.states[partition] for point in points), current]
    outrun = [
        number
        for number, (before, after) in enumerate(pairwise(states), start=1)
        if after.log_start_offset > before.log_end_offset
    ]
    return points[outrun[-1] :] if outrun else points


def _number_above(before: Sequence[int], current: int, wanted: int) -> int:
    """Return how many of the newest points to undo so that the log starts at or below `wanted`.

    `before` has the log start offset before each point, oldest first; `current` is the one now. If
    none is low enough, the log goes back to the lowest.
    """
    lowest = max(wanted, min(before, default=current))
    if current <= lowest:
        return 0
    return len(before) - max(n for n, start in enumerate(before) if start <= lowest)


def check_is_noted(points: Sequence[UndoPoint], topic: str, run_id: str) -> None:
    """Raise RequestError if the topic has no point of the run."""
    if any(point.run_id == run_id for point in points):
        return
    newest_first = sorted(
        {point for standing in standing_points(points).values() for point in standing},
        key=lambda point: point.at,
        reverse=True,
    )
    runs = list(dict.fromkeys(point.run_id for point in newest_first))[:MAX_NAMED]
    raise RequestError(
        f"expected a run that removed records from {topic} and can be undone, found {run_id}. "
        f"Runs that can: {', '.join(runs) or 'none'}"
    )


def can_be_undone(points: Sequence[UndoPoint]) -> bool:
    """Return whether all points are of jobs that can be undone."""
    return all(point.job not in NEVER_UNDONE for point in points)


# The state of a partition after an undo: the state before, with what ingests added since.
#
# An ingest advances the log end, adds segments and changes the active one's time. All other fields
# are those of removing jobs, and are undone.


def undone_state(
    before: Sequence[PartitionState],
    current: PartitionState,
    *,
    filled_segments: Collection[int],
    quarantined_end: int,
) -> PartitionState:
    """Return the state that replaces `current`.

    `before` has the states before each undone run, oldest first; `filled_segments` the physical
    segments with batches; `quarantined_end` the offset after the last quarantined record, or NEVER.
    """
    first = before[0]
    return replace(
        first,
        log_end_offset=current.log_end_offset,
        first_dirty_offset=min(first.first_dirty_offset, current.first_dirty_offset),
        # Rows are restored with their marks of the newest of these states.
        first_unmarked_offset=min(s.first_unmarked_offset for s in (*before, current)),
        segments=_segments(before, current, filled_segments),
        max_event_time_ms=current.max_event_time_ms,
        expired_end_offset=max(
            first.expired_end_offset, min(current.expired_end_offset, quarantined_end)
        ),
        first_appended_offset=current.first_appended_offset,
        place=current.place,
    )


def _segments(
    before: Sequence[PartitionState], current: PartitionState, filled_segments: Collection[int]
) -> tuple[SegmentStart, ...]:
    """Return the first state's segments with those that ingests added or changed since."""
    # Retention that removes the whole log begins a segment at its end; no ingest began that.
    rolled = {state.log_end_offset for state in before} - set(filled_segments)
    segments = list(before[0].segments)
    for state in (*before[1:], current):
        for base, modified_ms in state.segments:
            last = segments[-1]
            if base == last.base_offset or (
                base > last.base_offset and base in rolled and state.log_end_offset > base
            ):
                segments[-1] = SegmentStart(last.base_offset, modified_ms)
            elif base > last.base_offset and base not in rolled:
                segments.append(SegmentStart(base, modified_ms))
    return tuple(segments)


def state_to_return_to(before: Sequence[PartitionState], current: PartitionState) -> PartitionState:
    """Return an adopted topic's state before the first undone run, with the segments begun since.

    These are empty; the caller adds the rows that arrived since.
    """
    first = before[0]
    segments = list(first.segments)
    for state in (*before[1:], current):
        segments += [
            segment for segment in state.segments if segment.base_offset > segments[-1].base_offset
        ]
    added = len(segments) - len(first.segments)
    return replace(
        first,
        log_end_offset=max(first.log_end_offset, segments[-1].base_offset),
        segments=tuple(segments),
        sums=(*first.sums, *[EMPTY] * added),
        place=current.place,
    )
