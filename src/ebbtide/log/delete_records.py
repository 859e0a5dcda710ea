"""One partition's answer to a DeleteRecords request, with Kafka's error codes.

Kafka: Partition.deleteRecordsOnLeader, ReplicaManager.deleteRecords, Errors (KIP-107).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from ebbtide.errors import RequestError
from ebbtide.log.config import COMPACT, DELETE, TopicConfig
from ebbtide.log.names import TopicName

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class ErrorCode(IntEnum):
    """The codes that a DeleteRecords response can carry here."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    INVALID_TOPIC_EXCEPTION = 17
    POLICY_VIOLATION = 44


class Answer(NamedTuple):
    """A partition's result; `log_start_offset` is where the log starts after it."""

    log_start_offset: int
    low_watermark: int
    error: ErrorCode = ErrorCode.NONE


def refused(error: ErrorCode, log_start_offset: int = -1) -> Answer:
    """An answer that changes nothing."""
    return Answer(log_start_offset, INVALID_LOW_WATERMARK, error)


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


# {topic: {partition: offset}}
Request = dict[TopicName, dict[int, int]]


def parse_request(text: str) -> Request:
    """The request in the KIP's shape, as JSON; RequestError names the field that is wrong."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"expected a request in JSON, found {error}") from None
    request: Request = {}
    for i, entry in enumerate(_field(document, "topics", list, "request")):
        where = f"topics[{i}]"
        name = TopicName.parse(_field(entry, "topic", str, where))
        if name in request:
            raise RequestError(f"expected each topic once, found {name} again in {where}")
        request[name] = _parse_partitions(_field(entry, "partitions", list, where), where)
    if not request:
        raise RequestError("expected at least one topic in topics, found none")
    return request


def _parse_partitions(entries: list[Any], where: str) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for i, entry in enumerate(entries):
        at = f"{where}.partitions[{i}]"
        partition = _field(entry, "partition", int, at)
        if partition in offsets:
            raise RequestError(f"expected each partition once, found {partition} again in {at}")
        offsets[partition] = _field(entry, "offset", int, at)
    if not offsets:
        raise RequestError(f"expected at least one partition in {where}, found none")
    return offsets


def _field(document: object, name: str, kind: type[Any], where: str) -> Any:
    if not isinstance(document, Mapping) or name not in document:
        raise RequestError(f"expected the field {name!r} in {where}, found {document!r}")
    value = document[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RequestError(f"expected {kind.__name__} for {name} in {where}, found {value!r}")
    return value
