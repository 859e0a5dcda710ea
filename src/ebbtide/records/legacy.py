"""Messages of magic 0 and 1, the formats before Kafka 0.11: one message is one batch.

A compressed message is a wrapper whose value is a set of messages.
Source: Kafka's `LegacyRecord` and `AbstractLegacyRecordBatch`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    LOG_APPEND_TIME,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from ebbtide.records.batch import LOG_OVERHEAD_BYTES, BatchRow, corrupt, oversized
from ebbtide.records.compression import Codec, DecompressionError, TooLargeError, decompress

OFFSET_AND_SIZE = struct.Struct(">qi")
# CRC, magic, attributes.
PREFIX = struct.Struct(">IbB")
MAGIC_START = 4
TIMESTAMP = struct.Struct(">q")
LENGTH = struct.Struct(">i")


class MalformedMessageError(ValueError):
    """Bytes that are no message."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.found = actual


class Message(NamedTuple):
    """One message with the fields that its own bytes have."""

    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class LegacyRecord(NamedTuple):
    """One record, with the offset and times that Kafka's reader gives it."""

    offset: int
    timestamp_ms: int
    producer_timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_message(data: bytes | memoryview) -> Message:
    """Read the message at the start of `data`, offset field included, and check its CRC."""
    offset, _ = OFFSET_AND_SIZE.unpack_from(data)
    body = memoryview(data)[LOG_OVERHEAD_BYTES:]
    try:
        crc, magic, attributes = PREFIX.unpack_from(body)
        actual_crc = zlib.crc32(body[MAGIC_START:])
        if actual_crc != crc:
            raise MalformedMessageError(f"CRC-32 {crc:#010x}", f"{actual_crc:#010x}")
        if magic not in (0, 1):
            raise MalformedMessageError("magic 0 or 1", f"{magic}")
        position = PREFIX.size
        timestamp_ms = NO_TIMESTAMP
        if magic == 1:
            (timestamp_ms,) = TIMESTAMP.unpack_from(body, position)
            position += TIMESTAMP.size
        key, position = _read_bytes(body, position)
        value, _ = _read_bytes(body, position)
    except struct.error as short:
        raise MalformedMessageError("a whole message", f"{len(body)} bytes") from short
    return Message(offset, crc, magic, attributes, timestamp_ms, key, value)


def _read_bytes(body: memoryview, position: int) -> tuple[bytes | None, int]:
    (length,) = LENGTH.unpack_from(body, position)
    position += LENGTH.size
    if length < 0:
        return None, position
    if length > len(body) - position:
        raise MalformedMessageError(f"{length} bytes of key or value", f"{len(body) - position}")
    return bytes(body[position : position + length]), position + length


def read_legacy_records(wrapper: Message, max_bytes: int) -> list[LegacyRecord]:
    """Return the records of a message: itself, or those it wraps."""
    is_append_time = wrapper.magic == 1 and bool(wrapper.attributes & LOG_APPEND_TIME)
    if not wrapper.attributes & COMPRESSION_MASK:
        own_ms = NO_TIMESTAMP if is_append_time else wrapper.timestamp_ms
        return [
            LegacyRecord(wrapper.offset, wrapper.timestamp_ms, own_ms, wrapper.key, wrapper.value)
        ]
    inner = _unwrap(wrapper, max_bytes)
    shift = _offset_shift(wrapper, inner)
    records = [
        LegacyRecord(
            message.offset + shift,
            wrapper.timestamp_ms if is_append_time and message.magic == 1 else message.timestamp_ms,
            message.timestamp_ms,
            message.key,
            message.value,
        )
        for message in inner
    ]
    _check_offsets(wrapper, records)
    return records


def _check_offsets(wrapper: Message, records: list[LegacyRecord]) -> None:
    offsets = [record.offset for record in records]
    if offsets[-1] > wrapper.offset:
        raise MalformedMessageError(f"offsets up to {wrapper.offset}", f"{offsets[-1]}")
    for earlier, later in pairwise(offsets):
        if later <= earlier:
            raise MalformedMessageError(f"an offset above {earlier}", f"{later}")


def _unwrap(wrapper: Message, max_bytes: int) -> list[Message]:
    codec = wrapper.attributes & COMPRESSION_MASK
    if codec not in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        raise MalformedMessageError("codec none, gzip, snappy or lz4", f"codec {codec}")
    if wrapper.value is None:
        raise MalformedMessageError("compressed messages", "a null value")
    data = decompress(codec, wrapper.value, magic=wrapper.magic, max_bytes=max_bytes)
    messages = list(_read_set(data))
    if not messages:
        raise MalformedMessageError("compressed messages", "none")
    if any(message.attributes & COMPRESSION_MASK for message in messages):
        raise MalformedMessageError("one layer of compression", "two")
    return messages


def _read_set(data: bytes) -> Iterator[Message]:
    view = memoryview(data)
    position = 0
    # Kafka too stops at a message that is cut off by the set's end: old producers wrote such sets.
    while len(data) - position >= LOG_OVERHEAD_BYTES:
        _, length = OFFSET_AND_SIZE.unpack_from(data, position)
        end = position + LOG_OVERHEAD_BYTES + length
        if length < PREFIX.size:
            raise MalformedMessageError("the length of a message", f"{length}")
        if end > len(data):
            return
        yield read_message(view[position:end])
        position = end


def _offset_shift(wrapper: Message, inner: list[Message]) -> int:
    """Return the number to add to inner offsets: in magic 1 they count from the first record."""
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    shift = wrapper.offset - inner[-1].offset
    if shift < 0:
        raise MalformedMessageError(
            f"a last offset of {wrapper.offset} in a compressed set", f"{inner[-1].offset}"
        )
    return shift


@contextmanager
def opening_batch(path: str, position: int) -> Iterator[None]:
    """Raise CorruptSegmentError or OversizedBatchError if a batch's bytes cannot be opened."""
    try:
        yield
    except MalformedMessageError as bad:
        raise corrupt(path, position, bad.expected, bad.found) from bad
    except TooLargeError as bad:
        raise oversized(path, position, bad.max_bytes) from bad
    except DecompressionError as bad:
        raise corrupt(path, position, "a batch that decompresses", str(bad)) from bad


def legacy_row(
    position: int, message: Message, size_bytes: int, max_decompressed_bytes: int
) -> BatchRow:
    """Return a message as a batch row; magic 0 and 1 have no base timestamp."""
    records = read_legacy_records(message, max_decompressed_bytes)
    return BatchRow(
        position=position,
        base_offset=records[0].offset,
        last_offset=message.offset,
        leader_epoch=NO_LEADER_EPOCH,
        magic=message.magic,
        attributes=message.attributes,
        base_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=message.timestamp_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=len(records),
        size_bytes=size_bytes,
        crc=message.crc,
    )
