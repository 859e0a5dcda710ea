"""A record batch as one row, the two Arrow schemas, and the v2 batch header.

Source: Kafka's `DefaultRecordBatch` and `ControlRecordType`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from ebbtide.errors import CorruptSegmentError, OversizedBatchError
from ebbtide.records.attributes import COMPRESSION_MASK
from ebbtide.records.compression import decompress
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.records.varint import VARINT_BYTES, VARLONG_BYTES, decode_varint

BATCH_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("magic", pa.int32()),
        ("attributes", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("record_count", pa.int32()),
        ("size_bytes", pa.int32()),
        ("crc", pa.int64()),
        ("control_type", pa.string()),
        ("control_key", pa.binary()),
        ("control_value", pa.binary()),
    ]
)

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("producer_timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("attributes", pa.int32()),
        ("size_bytes", pa.int32()),
    ]
)

CONTROL_TYPES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)


class BatchRow(NamedTuple):
    """One row of BATCH_SCHEMA."""

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    attributes: int  # unsigned: 16 bits of a v2 batch, 8 of an older message
    base_timestamp_ms: int  # the delete horizon while DELETE_HORIZON is set
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    size_bytes: int  # the whole batch on disk
    crc: int
    control_type: str | None = None
    control_key: bytes | None = None
    control_value: bytes | None = None


class BatchHeader(NamedTuple):
    """The first 61 bytes of a v2 batch."""

    base_offset: int
    length: int  # bytes after this field
    leader_epoch: int
    magic: int
    crc: int  # CRC-32C of every byte after this field
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


# Big-endian, one letter a field above.
HEADER = struct.Struct(">qiibIHiqqqhii")
CRC_START = 17
CRC_COVERS_FROM = 21
# Base offset and length lie before what the length counts.
LOG_OVERHEAD_BYTES = 12


class Control(NamedTuple):
    """A control batch's record; all fields are null in a batch that cleaning emptied."""

    type: str | None = None
    key: bytes | None = None
    value: bytes | None = None


_COPY_AGAIN = "copy the file again from its broker, or leave its topic out"


def corrupt(
    path: str, position: int, expected: str, actual: str, remedy: str = _COPY_AGAIN
) -> CorruptSegmentError:
    """Return the error for bytes at `position` that Kafka would not have written."""
    return CorruptSegmentError(
        f"{path}: expected {expected} at position {position}, found {actual}; {remedy}", path
    )


def oversized(path: str, position: int, max_bytes: int) -> OversizedBatchError:
    """Return the error for a batch at `position` that decompresses to more than it may."""
    return OversizedBatchError(
        f"{path}: expected a batch of at most {max_bytes} bytes decompressed at position "
        f"{position}, found more; set {MAX_DECOMPRESSED} higher if the batch is meant to be "
        "so large, or leave its topic out",
        path,
    )


def read_header(batch: memoryview) -> BatchHeader:
    """Return the header of a whole v2 batch."""
    return BatchHeader._make(HEADER.unpack_from(batch))


def v2_row(position: int, header: BatchHeader, control: Control) -> BatchRow:
    """Return the row of a v2 batch."""
    return BatchRow(
        position,
        header.base_offset,
        header.base_offset + header.last_offset_delta,
        header.leader_epoch,
        header.magic,
        header.attributes,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        LOG_OVERHEAD_BYTES + header.length,
        header.crc,
        *control,
    )


def read_control(header: BatchHeader, batch: memoryview, max_bytes: int) -> Control:
    """Read a control batch's record; ValueError or IndexError where it is malformed."""
    if not header.record_count:
        return Control()
    codec = header.attributes & COMPRESSION_MASK
    records = decompress(codec, batch[HEADER.size :], magic=2, max_bytes=max_bytes)
    _, position = decode_varint(records, 0, VARINT_BYTES)
    _, position = decode_varint(records, position + 1, VARLONG_BYTES)
    _, position = decode_varint(records, position, VARINT_BYTES)
    key, position = _read_bytes(records, position)
    value, position = _read_bytes(records, position)
    if key is None or len(key) < 4:
        raise ValueError("a control record without a type")
    number = int.from_bytes(key[2:4], "big", signed=True)
    known = 0 <= number < len(CONTROL_TYPES)
    return Control(CONTROL_TYPES[number] if known else str(number), key, value)


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position, VARINT_BYTES)
    if length < 0:
        return None, position
    if length > len(data) - position:
        raise ValueError(f"{length} bytes with {len(data) - position} left")
    return data[position : position + length], position + length


def to_record_batch(rows: Iterable[BatchRow]) -> pa.RecordBatch:
    """Return the rows as Arrow, in BATCH_SCHEMA."""
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_SCHEMA)
    arrays = [
        pa.array(column, type=field.type)
        for column, field in zip(columns, BATCH_SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=BATCH_SCHEMA)
