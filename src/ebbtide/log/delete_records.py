"""One partition's answer to a DeleteRecords request, with Kafka's error codes.

Kafka: Partition.deleteRecordsOnLeader, ReplicaManager.deleteRecords, Errors (KIP-107).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ebbtide.log.config import COMPACT, DELETE, TopicConfig

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


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
    """An answer that changes nothing."""
    return Answer(log_start_offset, INVALID_LOW_WATERMARK, error, note)


def topic_error(topic: str, config: TopicConfig) -> ErrorCode:
    """Why no partition of the topic may be truncated; NONE where they may.

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
