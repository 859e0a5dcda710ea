"""Work in flight of a topic: merges, undos and rounds, written to its state before they start."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.ledger.undo_points import PointsOfPartitions
from ebbtide.numbers import MAX_INT, MAX_OFFSET, parse_whole, whole
from ebbtide.state.topic_state import MERGE, ROUND, UNDO, UNDONE, InFlight, checked_fields

# A planned merge of physical segments, written to the state before it starts.
#
# The merge moves rows in two tables by two commits. Between them, while the property is set,
# nobody may read both tables by segment.


@dataclass(frozen=True, slots=True)
class Merge(InFlight):
    """{partition: groups of physical segments}; each group is written as its first one.

    Without groups it is done. It then stays as a trace for who has read the topic before.
    """

    PROPERTY = MERGE
    EXPECTED = "a merge's id and its groups by partition"

    id: str
    groups: dict[int, list[list[int]]]

    @classmethod
    def new(cls, groups: dict[int, list[list[int]]]) -> Merge:
        """Return a merge with an id that no other has."""
        return cls(uuid.uuid4().hex, groups)

    def done(self) -> Merge:
        """Return the trace that it leaves."""
        return Merge(self.id, {})

    @classmethod
    def _built(cls, values: Any) -> Merge:
        groups = {
            parse_whole(partition, MAX_INT): [
                [whole(base) for base in group] for group in of_partition
            ]
            for partition, of_partition in values["groups"].items()
        }
        return cls(**checked_fields(cls, values | {"groups": groups}))


def last_merge(topic: Topic) -> Merge | None:
    """Return the merge in flight, or the trace of the last one."""
    return Merge.of(topic.properties)


def open_merge(topic: Topic) -> Merge | None:
    """Return the merge in flight, if any."""
    merge = last_merge(topic)
    return merge if merge is not None and merge.groups else None


def check_no_merge(current: Topic, since: Topic | None = None) -> None:
    """Raise CommitConflictError where a merge is in flight, or began since the topic was read."""
    has_begun = since is not None and last_merge(since) != last_merge(current)
    if has_begun or open_merge(current) is not None:
        raise CommitConflictError(
            f"expected the segments of {current.name} to stay where they are, found a merge of "
            "them in flight; run the job again, or clean_log or expire_snapshots to finish it"
        )


# A planned undo of a run, written to the state before it starts, so that it can be finished.
#
# It changes two tables and the state by three commits. Between them nobody may work on the rows.


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
        ids = {
            p: [point.point_id for point in partition_points]
            for p, partition_points in points.items()
        }
        return cls(uuid.uuid4().hex, run_id, ids, paused_until_ms)

    def within(self, partitions: Collection[int]) -> Undo:
        """Return the undo of these partitions alone."""
        points = {p: ids for p, ids in self.points.items() if p in partitions}
        return replace(self, points=points)

    @classmethod
    def _built(cls, values: Any) -> Undo:
        points = {
            parse_whole(partition, MAX_INT): [str(point_id) for point_id in ids]
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


# A planned cleaner round, written to the state before it starts, so that it can be finished.
#
# A round pins the snapshots it reads. Its plan follows from those and the round alone. So another
# job computes the same plan and only leaves out the commits already in the history.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRound:
    """The part of a round that one partition sees; offsets are half-open bounds."""

    log_start_offset: int
    first_segment_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    is_idle: bool
    held_back_from: int = MAX_OFFSET  # up to where every replica holds the log

    @property
    def dirty(self) -> tuple[int, int]:
        """The records whose keys supersede; none in an idle round."""
        first = self.first_uncleanable_offset if self.is_idle else self.first_dirty_offset
        return first, self.first_uncleanable_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRound(InFlight):
    """One round on one topic; times in ms since the epoch."""

    PROPERTY = ROUND
    EXPECTED = "a cleaner round"

    id: str
    now_ms: int
    delete_retention_ms: int
    producer_id_expiration_ms: int
    segment_bytes: int
    records_snapshot: int
    batches_snapshot: int
    partitions: dict[int, PartitionRound]
    are_records_done: bool = False  # whether its deletions are in the records table
    # Of an adopted topic: rows that leave, by partition and segment.
    removed: dict[int, dict[int, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the value of the property `ebbtide.round`."""
        values = {name: value for name, value in asdict(self).items() if value != {}}
        return json.dumps({"partitions": {}, **values}, separators=(",", ":"))

    @classmethod
    def _built(cls, values: Any) -> CleaningRound:
        partitions = {
            parse_whole(partition, MAX_INT): PartitionRound(**checked_fields(PartitionRound, part))
            for partition, part in values["partitions"].items()
        }
        removed = {
            parse_whole(partition, MAX_INT): {
                int(base): whole(rows) for base, rows in by_base.items()
            }
            for partition, by_base in values.get("removed", {}).items()
        }
        return cls(**checked_fields(cls, values | {"partitions": partitions, "removed": removed}))


def new_round_id() -> str:
    """Return an id that no other round has."""
    return uuid.uuid4().hex


def open_round(topic: Topic) -> CleaningRound | None:
    """Return the round in flight on the topic, if any."""
    return CleaningRound.of(topic.properties)


def is_open(topic: Topic, work_id: str) -> bool:
    """Return whether a round, a merge or an undo of this id is in flight."""
    works = open_round(topic), open_merge(topic), open_undo(topic.properties)
    return work_id in {work.id for work in works if work is not None}


def start_round(topic: Topic, this_round: CleaningRound) -> None:
    """Write the round down; CommitConflictError where another one was first."""

    def change(current: Topic) -> PropertyChanges | None:
        check_no_merge(current)
        check_no_undo(current, since=topic)
        in_flight = open_round(current)
        if in_flight is not None and in_flight.id != this_round.id:
            raise CommitConflictError(
                f"expected no cleaner round on {topic.name}, found one in flight; "
                "run the job again to finish it"
            )
        _check_marked(current, this_round)
        return {ROUND: this_round.to_json()}

    compare_and_set(topic, Step.ROUND_STARTED, change)


def _check_marked(current: Topic, this_round: CleaningRound) -> None:
    """Raise CommitConflictError where what the round covers is being marked again."""
    for partition, part in this_round.partitions.items():
        first_unmarked = current.partitions[partition].first_unmarked_offset
        if first_unmarked < part.first_uncleanable_offset:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} to be marked up to "
                f"{part.first_uncleanable_offset}, found {first_unmarked}: its tombstones are "
                "being marked again; run the job again"
            )
