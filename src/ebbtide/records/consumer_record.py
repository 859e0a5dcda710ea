"""The records of segment files one by one, as a consumer gets them, with KIP-87's `isTombstone`.

Source: KIP-87 and Kafka's `ConsumerRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from ebbtide.errors import RequestError, SourceError
from ebbtide.records.arrays import to_ms
from ebbtide.records.attributes import LOG_APPEND_TIME, NO_LEADER_EPOCH, NO_TIMESTAMP, TOMBSTONE
from ebbtide.records.decoding import shown_key, with_own_keys
from ebbtide.records.log_directory import PartitionDirectory, list_log_directory
from ebbtide.records.log_directory_writer import without_kept_time
from ebbtide.records.segment_reader import (
    MAX_BATCH_BYTES,
    read_records,
    require_whole,
    walk_segment,
)
from ebbtide.stores.store import join

RecordHeaders = tuple[tuple[str, bytes | None], ...]


class TimestampType(IntEnum):
    """The source of a record's timestamp."""

    NO_TIMESTAMP_TYPE = -1  # magic 0
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """A data record; its transaction may be aborted or undecided."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # -1: none
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    leader_epoch: int | None  # None for magic 0 and 1
    is_tombstone: bool


def is_tombstone(
    magic: int, attributes: int, value: bytes | None, *, is_explicit: bool = False
) -> bool:
    """Return whether a record's own fields make it a tombstone.

    Before magic 2, a null value does. In magic 2, bit 5 of the record's attributes does. A null
    value does too unless `is_explicit`, because today's producers do not set the bit.
    """
    if magic < 2:
        return value is None
    return bool(attributes & TOMBSTONE) or (value is None and not is_explicit)


def read_topic(uri: str, topic: str, *, is_explicit: bool = False) -> Iterator[ConsumerRecord]:
    """Yield a topic's records in a log directory, by partition and offset.

    Raise RequestError if the directory has no partition of the topic.
    """
    directories = [d for d in list_log_directory(uri) if d.topic == topic]
    if not directories:
        raise RequestError(
            f"expected partitions of {topic} in {uri}, found none. Look for directories "
            f"{join(uri, topic)}-0 and following"
        )
    for directory in directories:
        yield from read_partition(directory, is_explicit=is_explicit)


def read_partition(
    directory: PartitionDirectory, *, is_explicit: bool = False
) -> Iterator[ConsumerRecord]:
    """Yield a partition's records from its log start offset to its high watermark, if known."""
    if directory.error is not None:
        raise directory.error
    first, end = directory.log_start_offset or 0, directory.high_watermark
    next_offset = 0
    for segment in directory.segments:
        is_last = segment == directory.segments[-1]
        for record in read_segment(
            segment.path,
            directory.topic,
            directory.partition,
            is_last=is_last,
            is_explicit=is_explicit,
        ):
            if record.offset < next_offset:
                raise SourceError(
                    f"{segment.path}: expected offsets at or above {next_offset}, the end of the "
                    f"previous file, found {record.offset}. Copy the directory again, and delete "
                    "files from the copy that the broker no longer has",
                    segment.path,
                )
            next_offset = record.offset + 1
            if end is not None and record.offset >= end:
                return
            if record.offset >= first:
                yield record


def read_segment(
    path: str, topic: str, partition: int, *, is_last: bool = True, is_explicit: bool = False
) -> Iterator[ConsumerRecord]:
    """Yield a segment file's records; only a log's last file may end in a torn batch."""
    walk = walk_segment(path, max_batch_bytes=MAX_BATCH_BYTES)
    if not is_last:
        require_whole(walk, path)
    batches = _batches_of(walk.batches)
    for chunk in read_records(path, 0, walk.valid_bytes):
        for row in _rows(pa.Table.from_batches([chunk])):
            batch = batches[row["batch"]]
            headers, timestamp_ms = _headers_and_time(row)
            yield ConsumerRecord(
                topic=topic,
                partition=partition,
                offset=row["offset"],
                timestamp_ms=timestamp_ms,
                timestamp_type=batch.timestamp_type,
                key=row["key"],
                value=row["value"],
                headers=headers,
                leader_epoch=batch.leader_epoch,
                is_tombstone=is_tombstone(
                    batch.magic, row["attributes"], row["value"], is_explicit=is_explicit
                ),
            )


class _Batch(NamedTuple):
    """The header fields that a batch's records need."""

    magic: int
    timestamp_type: TimestampType
    leader_epoch: int | None


def _batches_of(walked: pa.RecordBatch) -> dict[int, _Batch]:
    names = ("base_offset", "magic", "attributes", "leader_epoch")
    columns = [walked[name].to_pylist() for name in names]
    return {
        base_offset: _Batch(
            magic,
            _timestamp_type(magic, attributes),
            None if leader_epoch == NO_LEADER_EPOCH else leader_epoch,
        )
        for base_offset, magic, attributes, leader_epoch in zip(*columns, strict=True)
    }


def _timestamp_type(magic: int, attributes: int) -> TimestampType:
    if magic == 0:
        return TimestampType.NO_TIMESTAMP_TYPE
    is_append_time = bool(attributes & LOG_APPEND_TIME)
    return TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME


def _rows(chunk: pa.Table) -> Iterator[dict[str, Any]]:
    names = ("offset", "batch", "key", "value", "headers", "attributes")
    columns = [*(chunk[name].to_pylist() for name in names), to_ms(chunk["timestamp"]).tolist()]
    fields = (*names, "timestamp_ms")
    return (dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True))


def _headers_and_time(row: dict[str, Any]) -> tuple[RecordHeaders, int]:
    """Return the original headers and timestamp; a header may hold a timestamp that did not fit."""
    timestamp_ms: int = row["timestamp_ms"]
    headers = [(header["key"].encode(), header["value"]) for header in row["headers"]]
    if timestamp_ms == NO_TIMESTAMP:
        headers, timestamp_ms = without_kept_time(headers, timestamp_ms)
    own = ((shown_key(key), value) for key, value in with_own_keys(headers))
    return tuple(own), timestamp_ms
