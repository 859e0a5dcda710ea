"""Find what a replica lacks of its primary, and its state before and after it is copied.

Kafka: AbstractFetcherThread (fetchOffsetAndTruncate, truncateFullyAndStartAt),
UnifiedLog.maybeIncrementLogStartOffset on a follower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.log.logical_segments import SegmentStart, segment_of
from ebbtide.log.settings.replicas import REPLICAS
from ebbtide.log.state.properties import InFlight, checked_fields
from ebbtide.log.state.topic_state import NEVER, REPLICATION, PartitionState, is_state, parse_states
from ebbtide.numbers import whole

# Settings that a replica decides itself; all others follow the primary's.
_OWN = frozenset({REPLICAS, "ebbtide.enabled", "ebbtide.source"})

States = Mapping[int, PartitionState]


def settings_to_follow(
    primary: Mapping[str, str], replica: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the property changes that give a replica its primary's settings.

    None stands for a removal. The replica's state and its own choices stay as they are.
    """
    wanted, current = _settings(primary), _settings(replica)
    removed: dict[str, str | None] = {name: None for name in current if name not in wanted}
    return removed | {name: v for name, v in wanted.items() if current.get(name) != v}


def _settings(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name.startswith(("kafka.", "ebbtide.")) and not is_state(name) and name not in _OWN
    }


def is_behind(primary: Mapping[str, str], replica: Mapping[str, str]) -> bool:
    """Return whether a replica lacks something of its primary, by the properties of both."""
    if REPLICATION in replica or settings_to_follow(primary, replica):
        return True
    return not is_up_to_date(parse_states(replica), parse_states(primary))


def is_up_to_date(replica: States, primary: States) -> bool:
    """Return whether the replica lacks nothing that the primary's partitions have."""
    return all(
        (state := replica.get(partition)) is not None
        and state_before(state, leader) == state
        and state_after(state, leader) == state
        for partition, leader in primary.items()
    )


def is_outrun(replica: PartitionState, primary: PartitionState) -> bool:
    """Return whether the primary starts after the replica's end, so that its rows are useless."""
    return replica.log_end_offset < primary.log_start_offset


def state_before(replica: PartitionState | None, primary: PartitionState) -> PartitionState:
    """Return the replica's state before anything is appended: it starts no lower than the primary.

    One that is outrun, or not there yet, is empty at the primary's start.
    """
    start = primary.log_start_offset
    if replica is not None and not is_outrun(replica, primary):
        return replica.moved(log_start_offset=max(replica.log_start_offset, start))
    base = segment_of([base for base, _ in primary.segments], start)
    empty = PartitionState(
        log_start_offset=start,
        log_end_offset=start,
        first_dirty_offset=start,
        first_unmarked_offset=start,
        segments=(SegmentStart(base, dict(primary.segments)[base]),),
    )
    if replica is None:
        return empty
    return replica.moved(
        log_start_offset=start,
        log_end_offset=start,
        first_dirty_offset=start,
        first_unmarked_offset=start,
        segments=empty.segments,
        cleaned_end_offset=NEVER,
        next_clean_ms=0,
    )


def state_after(replica: PartitionState, primary: PartitionState) -> PartitionState:
    """Return the replica's state once it holds all up to the primary's end; it cleans by itself.

    Marks come with the records, so the first unmarked offset follows the primary's where nothing
    before was left to be marked. What the primary had lost by then, the replica never gets.
    """
    end, expired_end = replica.log_end_offset, replica.expired_end_offset
    base, modified_ms = replica.segments[-1]
    if primary.log_end_offset > end:
        expired_end = max(expired_end, primary.expired_end_offset)
        holding = segment_of([base for base, _ in primary.segments], base)
        modified_ms = max(modified_ms, dict(primary.segments)[holding])
    begun = [segment for segment in primary.segments if segment.base_offset >= max(end, base + 1)]
    first_unmarked = replica.first_unmarked_offset
    if first_unmarked >= end:
        first_unmarked = max(first_unmarked, primary.first_unmarked_offset)
    return replica.moved(
        log_end_offset=primary.log_end_offset,
        first_unmarked_offset=first_unmarked,
        segments=(*replica.segments[:-1], SegmentStart(base, modified_ms), *begun),
        expired_end_offset=expired_end,
        max_event_time_ms=max(replica.max_event_time_ms, primary.max_event_time_ms),
    )


@dataclass(frozen=True, slots=True)
class Replication(InFlight):
    """A replication in flight, recorded on the replica: the last one to begin goes on alone.

    `emptied` are the partitions whose earlier rows must all go. `taken_over` is true where another
    replication had begun before and may have left rows.
    """

    PROPERTY = REPLICATION
    EXPECTED = "the id of a replication and what it empties"

    id: str
    emptied: list[int]
    taken_over: bool

    @classmethod
    def _built(cls, values: Any) -> Replication:
        emptied = [whole(partition) for partition in values["emptied"]]
        return cls(**checked_fields(cls, values | {"emptied": emptied}))
