"""Answers to a DeleteRecords request, with Kafka's error codes, and how far replicas lag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ebbtide.numbers import whole
from ebbtide.settings.config import COMPACT, DELETE, TopicConfig
from ebbtide.settings.names import INTERNAL_TOPICS
from ebbtide.settings.upstream import REPLICAS
from ebbtide.state.logical_segments import SegmentStart, segment_of
from ebbtide.state.topic_state import (
    NEVER,
    REPLICATION,
    InFlight,
    PartitionState,
    checked_fields,
    is_state,
    parse_states,
)

# One partition's answer to a DeleteRecords request, with Kafka's error codes.
#
# Kafka: Partition.deleteRecordsOnLeader, ReplicaManager.deleteRecords, Errors (KIP-107).


HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


class ErrorCode(IntEnum):
    """The codes that a DeleteRecords response can carry here, by Kafka's numbers."""

    UNKNOWN_SERVER_ERROR = -1  # and whatever else a broker answers; the note has its words
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    POLICY_VIOLATION = 44


class PartitionAnswer(NamedTuple):
    """A partition's result; `log_start_offset` is where the log starts after it."""

    log_start_offset: int
    low_watermark: int
    error: ErrorCode = ErrorCode.NONE
    note: str = ""  # what the code alone does not say


def refused(error: ErrorCode, log_start_offset: int = -1, note: str = "") -> PartitionAnswer:
    """Return an answer that changes nothing."""
    return PartitionAnswer(log_start_offset, INVALID_LOW_WATERMARK, error, note)


def topic_error(topic: str, config: TopicConfig) -> ErrorCode:
    """Return why no partition of the topic may be truncated; NONE where they may.

    An empty or absent policy allows it, as Kafka 4.2 and later do; compact alone does not.
    """
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    policy = config.cleanup_policy or frozenset()
    if COMPACT in policy and DELETE not in policy:
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.NONE


def answer(requested_offset: int, *, log_start_offset: int, high_watermark: int) -> PartitionAnswer:
    """Move the log start offset up to the requested one, never down, never past the end."""
    offset = high_watermark if requested_offset == HIGH_WATERMARK else requested_offset
    if not 0 <= offset <= high_watermark:
        return refused(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset)
    moved = max(log_start_offset, offset)
    return PartitionAnswer(moved, moved)


# Why a partition is refused and what to do; {start}, {end} and {partitions} are the topic's.
WAYS_OUT = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker gave no known code; its own log says more",
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "the log holds {start} to {end}; ask for an offset from 0 to {end}, or for -1, its end"
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "the lake has no such partition of that topic; {partitions}"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: "the broker is choosing a leader; ask again in a moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader has moved to another broker; ask again",
    ErrorCode.REQUEST_TIMED_OUT: (
        "a replica has not come so far within timeout_ms; ask again, or run replicate_log first"
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Kafka keeps this topic for itself; leave it alone",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "somebody who guards the topic refused; give this user the right to delete there"
    ),
    ErrorCode.POLICY_VIOLATION: (
        "cleanup.policy is compact alone, and Kafka refuses that too; set "
        "kafka.cleanup.policy=compact,delete with configure_topic, or erase keys with erase_keys"
    ),
}


def answer_partition(
    topic: str,
    config: TopicConfig,
    states: Mapping[int, PartitionState],
    partition: int,
    offset: int,
) -> PartitionAnswer:
    """Return one partition's answer; a refusal carries its reason and the way out."""
    state, error = states.get(partition), topic_error(topic, config)
    if state is None:
        reply = refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif error is not ErrorCode.NONE:
        reply = refused(error, state.log_start_offset)
    else:
        start, end = state.log_start_offset, state.log_end_offset
        reply = answer(offset, log_start_offset=start, high_watermark=end)
    return reply._replace(note=way_out(reply.error, states, partition))


def way_out(
    error: ErrorCode, states: Mapping[int, PartitionState] | None = None, partition: int = -1
) -> str:
    """Return why a partition is refused and what to do; empty where nothing is refused."""
    state = (states or {}).get(partition)
    known = ", ".join(map(str, states or ()))
    return WAYS_OUT.get(error, "").format(
        start=state.log_start_offset if state else "",
        end=state.log_end_offset if state else "",
        partitions=f"it has {known}" if known else "Browse > Retention lists the topics there are",
    )


# Find what a replica lacks of its primary, and its state before and after it is copied.
#
# Kafka: AbstractFetcherThread (fetchOffsetAndTruncate, truncateFullyAndStartAt),
# UnifiedLog.maybeIncrementLogStartOffset on a follower.


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
