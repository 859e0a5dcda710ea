"""Answers to a DeleteRecords request, with Kafka's error codes, and the lag of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ebbtide.numbers import whole
from ebbtide.settings.config import COMPACT, DEADLINE_MS, DELETE, TopicConfig, parse_config
from ebbtide.settings.names import INTERNAL_TOPICS
from ebbtide.settings.upstream import REPLICAS
from ebbtide.state.deletes import AllDeletes, Stage, counted_end, pending, with_found
from ebbtide.state.logical_segments import SegmentStart, segment_of
from ebbtide.state.topic_state import (
    NEVER,
    PRIMARY,
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
    """The error codes of a DeleteRecords response that can occur here, by Kafka's numbers."""

    UNKNOWN_SERVER_ERROR = -1  # also for any other answer of a broker, which is in the note
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
    """A partition's result; `log_start_offset` is the one after the request."""

    log_start_offset: int
    low_watermark: int
    error: ErrorCode = ErrorCode.NONE
    note: str = ""  # the reason for a refusal, and what to do


def refused(error: ErrorCode, log_start_offset: int = -1, note: str = "") -> PartitionAnswer:
    """Return an answer that changes nothing."""
    return PartitionAnswer(log_start_offset, INVALID_LOW_WATERMARK, error, note)


def topic_error(topic: str, config: TopicConfig) -> ErrorCode:
    """Return the error for all partitions of the topic, or NONE if DeleteRecords is allowed.

    An empty or absent policy allows it, as in Kafka 4.2 and later. Compact alone does not.
    """
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    policy = config.cleanup_policy or frozenset()
    if COMPACT in policy and DELETE not in policy:
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.NONE


def answer(requested_offset: int, *, log_start_offset: int, high_watermark: int) -> PartitionAnswer:
    """Advance the log start offset to the requested one; it never decreases.

    Refuse an offset above the high watermark.
    """
    offset = high_watermark if requested_offset == HIGH_WATERMARK else requested_offset
    if not 0 <= offset <= high_watermark:
        return refused(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset)
    moved = max(log_start_offset, offset)
    return PartitionAnswer(moved, moved)


# The reason for a refusal, and what to do; {start}, {end} and {partitions} are the topic's.
WAYS_OUT = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "the broker sent no known code; see the broker's log",
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "the log has offsets {start} to {end}; request 0 to {end}, or -1 for the high watermark"
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "the topic has no such partition in the lake; {partitions}"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader; repeat the request in a moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the leader has moved to another broker; repeat the request",
    ErrorCode.REQUEST_TIMED_OUT: (
        "a replica did not reach the offset within timeout_ms; "
        "repeat the request, or run replicate_log first"
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: "this is an internal topic of Kafka; do not change it",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "this user may not delete records of the topic; grant the user DELETE on it"
    ),
    ErrorCode.POLICY_VIOLATION: (
        "cleanup.policy is compact alone, which Kafka refuses too; set "
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
    """Return one partition's answer; a refusal has the reason and what to do in its note."""
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
    """Return the reason for a refusal and what to do, or "" if nothing is refused."""
    state = (states or {}).get(partition)
    known = ", ".join(map(str, states or ()))
    return WAYS_OUT.get(error, "").format(
        start=state.log_start_offset if state else "",
        end=state.log_end_offset if state else "",
        partitions=f"it has {known}" if known else "Browse > Retention lists the topics",
    )


# How far a replica is behind its primary, and its state before and after the next copy.
#
# Kafka: AbstractFetcherThread (fetchOffsetAndTruncate, truncateFullyAndStartAt),
# UnifiedLog.maybeIncrementLogStartOffset on a follower.


# Settings that each replica has itself; all other settings follow the primary's.
_OWN = frozenset({REPLICAS, "ebbtide.enabled", "ebbtide.source"})

States = Mapping[int, PartitionState]


def settings_to_follow(
    primary: Mapping[str, str], replica: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the property changes that give a replica its primary's settings.

    None unsets a setting. The replica's state and its own settings are unchanged.
    """
    wanted, current = _settings(primary), _settings(replica)
    removed: dict[str, str | None] = {name: None for name in current if name not in wanted}
    return removed | {name: v for name, v in wanted.items() if current.get(name) != v}


def deadline_gap(primary: Mapping[str, str], replica: Mapping[str, str]) -> str | None:
    """Return why a replica's tables may miss the primary's deadline of erasure, or None."""
    wanted, found = primary.get(DEADLINE_MS), replica.get(DEADLINE_MS)
    if wanted is not None and found != wanted:
        return f"its {DEADLINE_MS} is {found or 'not set'}, expected {wanted}: run replicate_log"
    if wanted is not None and not parse_config(replica).is_enabled:
        return "nightly runs skip it: set ebbtide.enabled=true on the replica"
    return None


def _settings(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name.startswith(("kafka.", "ebbtide.")) and not is_state(name) and name not in _OWN
    }


def is_behind(primary: Mapping[str, str], replica: Mapping[str, str]) -> bool:
    """Return whether a replica is behind its primary, by the properties of both."""
    if REPLICATION in replica or PRIMARY not in replica or settings_to_follow(primary, replica):
        return True
    return not is_up_to_date(parse_states(replica), parse_states(primary))


def is_up_to_date(replica: States, primary: States) -> bool:
    """Return whether the replica has all that the primary's partitions have."""
    return all(
        (state := replica.get(partition)) is not None
        and state_before(state, leader) == state
        and state_after(state, leader) == state
        for partition, leader in primary.items()
    )


def is_outrun(replica: PartitionState, primary: PartitionState) -> bool:
    """Return whether the primary starts after the replica's end: the replica's rows are useless."""
    return replica.log_end_offset < primary.log_start_offset


def state_before(replica: PartitionState | None, primary: PartitionState) -> PartitionState:
    """Return the replica's state before anything is appended: it starts no lower than the primary.

    If the replica is outrun, or does not exist yet, it is empty at the primary's start.
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
    """Return the replica's state once it has all up to the primary's end; it cleans by itself.

    Tombstone marks are copied with the records. So the first unmarked offset follows the primary's
    if no older record was unmarked. The replica never gets records that the primary has removed by
    then.
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
        deletes=_deletes_after(replica, primary, first_unmarked),
    )


def _deletes_after(
    replica: PartitionState, primary: PartitionState, first_unmarked: int
) -> AllDeletes:
    """Return the replica's deletes with those that the primary has counted up to its mark.

    So a replica that no nightly run works on becomes overdue too.
    """
    start, end = counted_end(replica.deletes) or 0, counted_end(primary.deletes)
    if end is None or end <= start or not end == primary.first_unmarked_offset == first_unmarked:
        return replica.deletes
    found = (
        group._replace(stage=Stage.MARKED, first_offset=max(start, group.first_offset))
        for group in pending(primary.deletes)
        if group.stage in (Stage.MARKED, Stage.HORIZON_SET) and group.end_offset > start
    )
    return with_found(replica.deletes, start, end, found)


@dataclass(frozen=True, slots=True)
class Replication(InFlight):
    """A replication in flight, recorded on the replica.

    If several begin, only the last one goes on.
    """

    PROPERTY = REPLICATION
    EXPECTED = "the id of a replication and what it empties"

    id: str
    emptied: list[int]  # partitions whose earlier rows must all be removed
    taken_over: bool  # another replication had begun before and may have left rows

    @classmethod
    def _built(cls, values: Any) -> Replication:
        emptied = [whole(partition) for partition in values["emptied"]]
        return cls(**checked_fields(cls, values | {"emptied": emptied}))
