"""The runs of a topic that can be undone, until when, and which later ones go back with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.lake.reader import Lake
from ebbtide.log.undo.points import UNDO_POINTS, UndoPoint, can_be_undone, points_to_undo
from ebbtide.moments import after, before


@dataclass(frozen=True, slots=True)
class UndoableRun:
    """A run that removed from a topic and may go back before `until`.

    `partitions` are those in which it can, with `later_runs`, newest first. Whether the snapshots
    are still there, and whether records of erased keys would return, only the plan tells.
    """

    run_id: str
    at: datetime
    until: datetime
    jobs: tuple[str, ...]
    partitions: tuple[int, ...]
    later_runs: tuple[str, ...]


def undoable_runs(lake: Lake, topic: str, clock: datetime) -> list[UndoableRun]:
    """Return the runs of a topic that can be undone at this time, newest first."""
    undo_ms = lake.topic(topic).config.undo_ms
    points = lake.own_rows(UNDO_POINTS, before(clock, undo_ms), topic=topic)
    run_ids = dict.fromkeys(point.run_id for point in reversed(points) if point.states)
    runs = (_undoable(points, run_id, undo_ms) for run_id in run_ids)
    return [run for run in runs if run is not None]


def _undoable(points: Sequence[UndoPoint], run_id: str, undo_ms: int) -> UndoableRun | None:
    """Return what of a run can go back; None where no partition can."""
    going = {p: of for p, of in points_to_undo(points, run_id).items() if can_be_undone(of)}
    if not going:
        return None
    together = {point for of in going.values() for point in of}
    own = sorted((p for p in together if p.run_id == run_id), key=lambda point: point.at)
    later = sorted(together - set(own), key=lambda point: point.at, reverse=True)
    return UndoableRun(
        run_id=run_id,
        at=own[0].at,
        until=after(own[0].at, undo_ms),
        jobs=tuple(dict.fromkeys(point.job for point in own)),
        partitions=tuple(sorted(going)),
        later_runs=tuple(dict.fromkeys(point.run_id for point in later)),
    )
