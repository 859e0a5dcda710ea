"""What a removing run noted before it removed, and which runs' notes are still to be taken back."""

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
# Jobs that are never undone, and so nothing before them: what each did, and why not.
NEVER_UNDONE = {
    "erase_keys": ("keys were erased", "an erasure is never undone"),
    "repair_state": ("changes of others were kept", "what was before is not known to be right"),
    "adopt_table": ("the table was adopted", "what was before may be of another log"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UndoPoint:
    """A topic before a job of a run removed from it, a row of `lake.ebbtide.undo_points`.

    The snapshots are of both data tables, None for a table without one. `states` are those of the
    partitions that the job changed. `truncated` names the connections of live topics that it
    truncated too. A point of `undo_run` names in `undone` the points that went back, by partition.
    """

    point_id: str
    run_id: str
    job: str
    topic: str
    at: datetime
    records_snapshot: int | None = None
    batches_snapshot: int | None = None
    states: Mapping[int, PartitionState] = field(default_factory=dict)
    truncated: Sequence[str] = ()
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
    truncated STRING COMMENT 'JSON: connections of live topics that the job truncates too',
    undone STRING COMMENT 'JSON: of undo_run, the points that went back, by partition'
    """,
    day="at",
    build=_point,
    cells={
        "states": Cell(_state_properties, json.loads),
        "truncated": DENSE_JSON,
        "undone": DENSE_JSON,
    },
    # Rows never change, so nobody needs its snapshots, of which a night makes one a removal.
    properties={"history.expire.max-snapshot-age-ms": str(60 * 60 * 1000)},
)


# Points by partition, oldest first.
PointsOfPartitions = Mapping[int, Sequence[UndoPoint]]


def standing_points(points: Iterable[UndoPoint]) -> PointsOfPartitions:
    """Return the points of a topic that no undo has taken back yet."""
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
    """Return what goes back with a run: in each of its partitions its points and all later ones."""
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
    """Return what goes back on a replica, whose partitions are `current`, when its primary does.

    That is what the run removed from it and all later runs, and where its log still begins after
    one of `starts`, the primary's log start offsets afterwards, what brought it there.
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
    """Return the points since the log began anew beyond its end, as that of an outrun replica."""
    states = [*(point.states[partition] for point in points), current]
    outrun = [
        number
        for number, (before, after) in enumerate(pairwise(states), start=1)
        if after.log_start_offset > before.log_end_offset
    ]
    return points[outrun[-1] :] if outrun else points


def _number_above(before: Sequence[int], current: int, wanted: int) -> int:
    """Return how many of the newest points to take back, so that a log begins at `wanted`.

    `before` are the log start offsets before each point, oldest first, `current` is where it begins
    now. Where it was never as low as that, it goes as low as it was.
    """
    lowest = max(wanted, min(before, default=current))
    if current <= lowest:
        return 0
    return len(before) - max(n for n, start in enumerate(before) if start <= lowest)


def check_is_noted(points: Sequence[UndoPoint], topic: str, run_id: str) -> None:
    """Raise RequestError where no point of the topic is the run's."""
    if any(point.run_id == run_id for point in points):
        return
    newest_first = sorted(
        {point for standing in standing_points(points).values() for point in standing},
        key=lambda point: point.at,
        reverse=True,
    )
    runs = list(dict.fromkeys(point.run_id for point in newest_first))[:MAX_NAMED]
    raise RequestError(
        f"expected a run that removed from {topic} and can be undone, found that {run_id} is "
        f"none; these can: {', '.join(runs) or 'none'}"
    )


def can_be_undone(points: Sequence[UndoPoint]) -> bool:
    """Return whether none of these points is of a job that is never undone."""
    return all(point.job not in NEVER_UNDONE for point in points)


# The state of a partition once the runs since a point are undone: as before, and what came since.
#
# An ingest moves the end, adds segments and stamps the active one; the other fields are a
# removing run's, and go back.


def undone_state(
    before: Sequence[PartitionState],
    current: PartitionState,
    *,
    filled_segments: Collection[int],
    quarantined_end: int,
) -> PartitionState:
    """Return the state that takes the place of `current`.

    `before` are the states before each undone run, oldest first. `filled_segments` are the physical
    segments that hold batches, `quarantined_end` is the offset after the last quarantined
    record, NEVER without one.
    """
    first = before[0]
    return replace(
        first,
        log_end_offset=current.log_end_offset,
        first_dirty_offset=min(first.first_dirty_offset, current.first_dirty_offset),
        # Rows come back with the marks that they had in the newest of these states.
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
    """Return the first state's segments, and what ingests have added or stamped since."""
    # Retention that removes the whole log begins a segment at its end, which nobody else began.
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
    """Return an adopted topic's state before the first undone run, with the segments cut since.

    Those are empty: what has arrived since is still to be added.
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
