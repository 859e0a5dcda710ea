"""A topic's work in flight: merges, undos and rounds, written to its state before they start."""

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

# A merge of physical segments is written to the state before it starts.
#
# It moves rows in two tables by two commits. While its property is set, no job may read both
# tables by segment.


@dataclass(frozen=True, slots=True)
class Merge(InFlight):
    """A merge of physical segments: each group is written as its first segment.

    A finished merge stays in the property without groups, so that a job that read the topic before
    it can detect it.
    """

    PROPERTY = MERGE
    EXPECTED = "a merge's id and its groups by partition"

    id: str
    groups: dict[int, list[list[int]]]  # base offsets of segments, by partition

    @classmethod
    def new(cls, groups: dict[int, list[list[int]]]) -> Merge:
        """Return a merge with a new id."""
        return cls(uuid.uuid4().hex, groups)

    def done(self) -> Merge:
        """Return the merge as it stays in the property once it is finished."""
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
    """Return the merge in flight, or the last finished one."""
    return Merge.of(topic.properties)


def open_merge(topic: Topic) -> Merge | None:
    """Return the merge in flight, if any."""
    merge = last_merge(topic)
    return merge if merge is not None and merge.groups else None


def check_no_merge(current: Topic, since: Topic | None = None) -> None:
    """Raise CommitConflictError if a merge is in flight, or began since the topic was read."""
    has_begun = since is not None and last_merge(since) != last_merge(current)
    if has_begun or open_merge(current) is not None:
        raise CommitConflictError(
            f"expected no merge of segments of {current.name} meanwhile, found that one has begun. "
            "Run the job again. To finish a merge in flight: run clean_log or expire_snapshots"
        )


# An undo of a run is written to the state before it starts, so that any job can finish it.
#
# It changes two tables and the state by three commits. Between them no other job may change rows.


@dataclass(frozen=True, slots=True)
class Undo(InFlight):
    """An undo of a run. Nothing is removed from its partitions until `paused_until_ms`."""

    PROPERTY = UNDO
    EXPECTED = "an undo's id, run and points by partition"

    id: str
    run_id: str
    points: dict[int, list[str]]  # ids of the points to undo, oldest first, by partition
    paused_until_ms: int
    # On a replica, the partitions that its primary pauses: one hold_records ends both pauses.
    paused: list[int] | None = None

    def to_json(self) -> str:
        """Return the value of the property, without `paused` on a primary."""
        values = asdict(self)
        if self.paused is None:
            del values["paused"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def new(cls, run_id: str, points: PointsOfPartitions, paused_until_ms: int) -> Undo:
        """Return an undo with a new id."""
        ids = {
            p: [point.point_id for point in partition_points]
            for p, partition_points in points.items()
        }
        return cls(uuid.uuid4().hex, run_id, ids, paused_until_ms)

    def within(self, partitions: Collection[int]) -> Undo:
        """Return the undo of these partitions only."""
        points = {p: ids for p, ids in self.points.items() if p in partitions}
        return replace(self, points=points)

    @classmethod
    def _built(cls, values: Any) -> Undo:
        points = {
            parse_whole(partition, MAX_INT): [str(point_id) for point_id in ids]
            for partition, ids in values["points"].items()
        }
        if "paused" in values:
            values["paused"] = [whole(partition) for partition in values["paused"]]
        return cls(**checked_fields(cls, values | {"points": points}))


def open_undo(properties: Mapping[str, str]) -> Undo | None:
    """Return the undo in flight on a topic with these properties, or None."""
    return Undo.of(properties)


def was_undone_since(topic: Topic, current: Topic) -> bool:
    """Return whether an undo has ended since the topic was read.

    On a replica, also whether an undo has begun on its primary.
    """
    return topic.properties.get(UNDONE) != current.properties.get(UNDONE)


def check_no_undo(current: Topic, since: Topic) -> None:
    """Raise CommitConflictError if an undo is in flight, or ended since the topic was read.

    A removal that was planned before the undo would remove the restored records.
    """
    if UNDO in current.properties or was_undone_since(since, current):
        raise CommitConflictError(
            f"expected no undo on {current.name} meanwhile, found that one has begun or ended. "
            "Run the job again; it first finishes an undo in flight"
        )


# A cleaner round is written to the state before it starts, so that any job can finish it.
#
# A round pins the snapshots that it reads. Its plan follows from the round and these snapshots
# alone. So another job computes the same plan, and skips the commits that are in the history.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRound:
    """One partition's part of a round; offsets are half-open bounds."""

    log_start_offset: int
    first_segment_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    is_idle: bool
    held_back_from: int = MAX_OFFSET  # offset up to which all replicas have the log

    @property
    def dirty(self) -> tuple[int, int]:
        """Offsets of the records whose keys supersede older ones; empty in an idle round."""
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
    are_records_done: bool = False  # True: the records table has the round's deletes
    # Of an adopted topic: number of rows to remove, by partition and segment.
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
    """Return a new id for a round."""
    return uuid.uuid4().hex


def open_round(topic: Topic) -> CleaningRound | None:
    """Return the round in flight on the topic, if any."""
    return CleaningRound.of(topic.properties)


def is_open(topic: Topic, work_id: str) -> bool:
    """Return whether a round, a merge or an undo with this id is in flight."""
    works = open_round(topic), open_merge(topic), open_undo(topic.properties)
    return work_id in {work.id for work in works if work is not None}


def start_round(topic: Topic, this_round: CleaningRound) -> None:
    """Write the round to the state.

    `topic` is as the round was planned. Raise CommitConflictError if another round is in flight, or
    ended since then: a round that rests on what was dirty before it would clean twice at one `now`.
    """

    def change(current: Topic) -> PropertyChanges | None:
        check_no_merge(current)
        check_no_undo(current, since=topic)
        in_flight = open_round(current)
        if in_flight is not None and in_flight.id != this_round.id:
            raise CommitConflictError(
                f"expected no cleaner round on {topic.name}, found one in flight. "
                "Run the job again to finish it"
            )
        _check_marked(current, this_round)
        if in_flight is None:
            _check_not_cleaned(topic, current, this_round)
        return {ROUND: this_round.to_json()}

    compare_and_set(topic, Step.ROUND_STARTED, change)


def _check_not_cleaned(planned: Topic, current: Topic, this_round: CleaningRound) -> None:
    """Raise CommitConflictError if one of the partitions was cleaned or repaired since the plan."""
    for partition in this_round.partitions:
        then = planned.partitions[partition].cleaned_at_ms
        if current.partitions[partition].cleaned_at_ms != then:
            raise CommitConflictError(
                f"expected {current.name} partition {partition} as it was when the round was "
                "planned, found that another job has cleaned it or repaired its state meanwhile. "
                "Run the job again"
            )


def _check_marked(current: Topic, this_round: CleaningRound) -> None:
    """Raise CommitConflictError if tombstones of the round's offsets are being marked again."""
    for partition, part in this_round.partitions.items():
        first_unmarked = current.partitions[partition].first_unmarked_offset
        if first_unmarked < part.first_uncleanable_offset:
            raise CommitConflictError(
                f"expected marked tombstones in {current.name} partition {partition} up to offset "
                f"{part.first_uncleanable_offset}, found them up to {first_unmarked}: "
                "mark_tombstones has started again. Run the job again"
            )
