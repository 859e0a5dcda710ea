"""A planned cleaner round, written to the state before it starts, so that it can be finished.

A round pins the snapshots it reads. Its plan follows from those and the round alone. So another job
computes the same plan and only leaves out the commits already in the history.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.planned.planned_merge import check_no_merge, open_merge
from ebbtide.iceberg.planned.planned_undo import check_no_undo, open_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.log.state.properties import InFlight, checked_fields
from ebbtide.log.state.topic_state import ROUND
from ebbtide.numbers import MAX_INT, MAX_OFFSET, parse_whole, whole


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
            parse_whole(partition, MAX_INT): {int(base): whole(rows) for base, rows in of.items()}
            for partition, of in values.get("removed", {}).items()
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
