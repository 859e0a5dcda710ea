"""One partition's answer to a DeleteRecords request, with Kafka's error codes.

Kafka: Partition.deleteRecordsOnLeader, ReplicaManager.deleteRecords, Errors (KIP-107).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from ebbtide.log.settings.config import COMPACT, DELETE, TopicConfig
from ebbtide.log.settings.names import INTERNAL_TOPICS
from ebbtide.log.state.topic_state import PartitionState

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


class Answer(NamedTuple):
    """A partition's result; `log_start_offset` is where the log starts after it."""

    log_start_offset: int
    low_watermark: int
    error: ErrorCode = ErrorCode.NONE
    note: str = ""  # what the code alone does not say


def refused(error: ErrorCode, log_start_offset: int = -1, note: str = "") -> Answer:
    """Return an answer that changes nothing."""
    return Answer(log_start_offset, INVALID_LOW_WATERMARK, error, note)


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


def answer(requested_offset: int, *, log_start_offset: int, high_watermark: int) -> Answer:
    """Move the log start offset up to the requested one, never down, never past the end."""
    offset = high_watermark if requested_offset == HIGH_WATERMARK else requested_offset
    if not 0 <= offset <= high_watermark:
        return refused(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset)
    moved = max(log_start_offset, offset)
    return Answer(moved, moved)


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
) -> Answer:
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
