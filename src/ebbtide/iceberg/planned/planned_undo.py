"""A planned undo of a run, written to the state before it starts, so that it can be finished.

It changes two tables and the state by three commits. Between them nobody may work on the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.topics import Topic
from ebbtide.log.state.properties import InFlight, checked_fields
from ebbtide.log.state.topic_state import UNDO, UNDONE
from ebbtide.log.undo.points import PointsOfPartitions
from ebbtide.numbers import MAX_INT, parse_whole


@dataclass(frozen=True, slots=True)
class Undo(InFlight):
    """The run that is undone, and by partition the ids of the points that go back, oldest first.

    Nothing is removed from these partitions until `paused_until_ms`.
    """

    PROPERTY = UNDO
    EXPECTED = "an undo's id, run and points by partition"

    id: str
    run_id: str
    points: dict[int, list[str]]
    paused_until_ms: int

    @classmethod
    def new(cls, run_id: str, points: PointsOfPartitions, paused_until_ms: int) -> Undo:
        """Return an undo with an id that no other has."""
        ids = {p: [point.point_id for point in of] for p, of in points.items()}
        return cls(uuid.uuid4().hex, run_id, ids, paused_until_ms)

    def within(self, partitions: Collection[int]) -> Undo:
        """Return the undo of these partitions alone."""
        points = {p: ids for p, ids in self.points.items() if p in partitions}
        return replace(self, points=points)

    @classmethod
    def _built(cls, values: Any) -> Undo:
        points = {
            parse_whole(partition, MAX_INT): [str(of) for of in ids]
            for partition, ids in values["points"].items()
        }
        return cls(**checked_fields(cls, values | {"points": points}))


def open_undo(properties: Mapping[str, str]) -> Undo | None:
    """Return the undo in flight on a topic of these properties, if any."""
    return Undo.of(properties)


def was_undone_since(topic: Topic, current: Topic) -> bool:
    """Return whether an undo has ended since the topic was read.

    On a replica, also whether one has begun on its primary.
    """
    return topic.properties.get(UNDONE) != current.properties.get(UNDONE)


def check_no_undo(current: Topic, since: Topic) -> None:
    """Raise CommitConflictError where an undo is in flight, or ended since the topic was read.

    A removal that was planned before it would take away what has come back.
    """
    if UNDO in current.properties or was_undone_since(since, current):
        raise CommitConflictError(
            f"expected nobody to undo a run on {current.name} meanwhile, found that somebody does "
            "or did; run the job again, which finishes it first"
        )
