"""Look at the log of an adopted topic: what arrived since the last look, by its segments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ebbtide.errors import (
    CommitConflictError,
    ForeignLogError,
    NotCoveredError,
    UnfinishedWorkError,
)
from ebbtide.iceberg.adopted.arrivals import Arrivals, EventClock, look
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.planned.planned_round import open_round
from ebbtide.iceberg.planned.planned_undo import open_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.adopted.missing import in_words
from ebbtide.log.adopted.segments import cut, is_another_log, new_log, with_arrived
from ebbtide.log.state.topic_state import ADOPTED_SEEN, NEVER, PartitionState, to_changes
from ebbtide.moments import minute
from ebbtide.numbers import MAX_LONG


class Look(NamedTuple):
    """The topic as it was read, a snapshot of its table, and its partitions as of that."""

    topic: Topic
    snapshot: int
    states: Mapping[int, PartitionState]
    unplaced: int = 0
    # Partitions in which rows came below the log start offset.
    late_below_start: Collection[int] = ()

    @property
    def observed(self) -> Topic:
        """The topic with its partitions as the look has found them."""
        of = self.topic
        merged = {**of.properties, **_properties(self.states)}
        left = {name: value for name, value in merged.items() if value is not None}
        return Topic(of.name, left, of.spark)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers of the partitions do not say."""
        notes = [in_words(of.missing, p) for p, of in self.states.items() if of.missing]
        if self.unplaced:
            rows = f"{self.unplaced} rows"
            notes.append(f"{rows} have no partition or no offset: no rule judges them")
        return tuple(notes)

    def seen(self, current: Topic) -> PropertyChanges:
        """Return what the look found, as changes of the state that it began from.

        CommitConflictError where another job has changed it meanwhile.
        """
        if current.properties != self.topic.properties:
            raise CommitConflictError(
                f"expected the state of {current.name} as it was planned on, found that another "
                "job changed it meanwhile; run the job again"
            )
        return {**_properties(self.states), ADOPTED_SEEN: str(self.snapshot)}


def _properties(states: Mapping[int, PartitionState]) -> dict[str, str | None]:
    return {
        name: value
        for partition, state in states.items()
        for name, value in to_changes(partition, state).items()
    }


def look_at_log(
    topic: Topic, rows: AdoptedRows, now_ms: int, ends: Mapping[int, int] | None = None
) -> Look | None:
    """Return a look at the topic; None where its table is empty.

    `ends` are where a kept plan ends in each partition: a segment is closed there.

    NotCoveredError where a setting asks for what such a topic has not, ForeignLogError where the
    rows that arrived are another log's.
    """
    _check_covered(topic)
    if open_undo(topic.properties) is not None:
        raise UnfinishedWorkError(
            f"expected no undo in flight on {topic.name}, found one: undo_run was killed or is at "
            "work; run it again"
        )
    check_no_round(topic)
    seen = topic.properties.get(ADOPTED_SEEN)
    arrivals = look(
        rows,
        topic.partitions,
        None if seen is None else int(seen),
        EventClock(now_ms, topic.config.message_timestamp_after_max_ms),
    )
    if arrivals is None:
        return None
    _check_same_log(topic, rows, arrivals)
    states = _states_after(topic, arrivals, now_ms, ends or {})
    late = [p for p, of in arrivals.by_partition.items() if of.below_start]
    return Look(topic, arrivals.snapshot, states, arrivals.unplaced, late)


def check_no_round(topic: Topic) -> None:
    """Raise UnfinishedWorkError where a cleaner round is in flight, which clean_log finishes."""
    if open_round(topic) is not None:
        raise UnfinishedWorkError(
            f"expected no cleaner round in flight on {topic.name}, found one: clean_log was killed "
            "or is at work; run it again"
        )


def _check_covered(topic: Topic) -> None:
    if topic.config.replicas:
        raise NotCoveredError(
            f"expected no replicas of {topic.name}, whose table others write, found "
            "ebbtide.replicas; remove the setting"
        )


def _check_same_log(topic: Topic, rows: AdoptedRows, arrivals: Arrivals) -> None:
    for partition, state in topic.partitions.items():
        arrived = arrivals.by_partition.get(partition)
        if arrived is not None and is_another_log(state, arrived):
            known_ms = state.max_event_time_ms or NEVER
            raise ForeignLogError(
                f"expected new rows in {rows.table} to go on with partition {partition} of "
                f"{topic.name}, from offset {state.log_end_offset} on, found some from the log's "
                f"beginning that are newer than {minute(known_ms)} UTC, the newest time known: the "
                "live topic or the table was made anew. Nothing is removed. Take rows of the "
                "earlier log out of the table, then run abandon_table and adopt_table"
            )


def _states_after(
    topic: Topic, arrivals: Arrivals, now_ms: int, ends: Mapping[int, int]
) -> dict[int, PartitionState]:
    """Return each partition's state with what arrived, its active segment cut if it is time."""
    states = dict(topic.partitions)
    for partition, rows in arrivals.by_partition.items():
        state = states.get(partition) or new_log(0, now_ms)
        states[partition] = with_arrived(state, rows, now_ms)
    return {p: cut(states[p], topic.config, now_ms, ends.get(p, MAX_LONG)) for p in sorted(states)}
