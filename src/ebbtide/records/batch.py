"""A record batch as one row, the two Arrow schemas, and the v2 batch header.

Source: Kafka's `DefaultRecordBatch` and `ControlRecordType`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.errors import CorruptSegmentError, OversizedBatchError
from ebbtide.records.arrays import VARINT_BYTES, VARLONG_BYTES, Bools, Int64s, decode_varint
from ebbtide.records.attributes import COMPRESSION_MASK
from ebbtide.records.compression import decompress
from ebbtide.records.limits import MAX_DECOMPRESSED

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


# Big-endian, one letter per field above.
HEADER = struct.Struct(">qiibIHiqqqhii")
CRC_START = 17
CRC_COVERS_FROM = 21
# Base offset and length; the length counts the bytes after them.
LOG_OVERHEAD_BYTES = 12


class Control(NamedTuple):
    """A control batch's record; all fields are None in a batch that cleaning emptied."""

    type: str | None = None
    key: bytes | None = None
    value: bytes | None = None


_COPY_AGAIN = "Copy the file again from its broker, or leave its topic out"


def corrupt(
    path: str, position: int, expected: str, actual: str, remedy: str = _COPY_AGAIN
) -> CorruptSegmentError:
    """Return the error for bytes at `position` that Kafka did not write."""
    return CorruptSegmentError(
        f"{path}: expected {expected} at position {position}, found {actual}. {remedy}", path
    )


def oversized(path: str, position: int, max_bytes: int) -> OversizedBatchError:
    """Return the error for a batch at `position` that decompresses to more than `max_bytes`."""
    return OversizedBatchError(
        f"{path}: expected a batch of at most {max_bytes} bytes decompressed at position "
        f"{position}, found more. Set {MAX_DECOMPRESSED} higher if the batch is meant to be "
        "that large, or leave its topic out",
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
    """Read a control batch's record. Raise ValueError or IndexError if it is malformed."""
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
        raise ValueError(f"length {length} with {len(data) - position} bytes left")
    return data[position : position + length], position + length


def to_record_batch(rows: Iterable[BatchRow]) -> pa.RecordBatch:
    """Return the rows as an Arrow record batch in BATCH_SCHEMA."""
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_SCHEMA)
    arrays = [
        pa.array(column, type=field.type)
        for column, field in zip(columns, BATCH_SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=BATCH_SCHEMA)


# Consecutive batches of magic 2 in one buffer, with their headers as columns.
#
# If each batch has one record, a log has as many headers as records, so no Python object is made
# per header.


# Fewer batches are as fast one by one.
LEAST_BATCHES = 16

_LENGTH = struct.Struct(">i")
_LENGTH_AT, _MAGIC_AT, _FLAGS_AT = 8, 16, 22
_FORMATS = (">i8", ">i4", ">i4", "i1", ">u4", ">u2", ">i4", *(3 * [">i8"]), ">i2", ">i4", ">i4")
_HEADER = np.dtype(list(zip(BatchHeader._fields, _FORMATS, strict=True)))
assert _HEADER.itemsize == HEADER.size


class BatchRun(NamedTuple):
    """Consecutive batches: the fields of HEADER, and the start of each batch in the data."""

    position: int  # of the data in the file
    data: memoryview
    starts: Int64s
    headers: npt.NDArray[Any]

    def column(self, name: str) -> Int64s:
        """Return a field of BatchHeader for each batch."""
        return self.headers[name].astype(np.int64)

    @property
    def sizes(self) -> Int64s:
        """The size of each batch in the file."""
        return self.column("length") + LOG_OVERHEAD_BYTES

    @property
    def end(self) -> int:
        """The position in the file after the last batch."""
        return int(self.position + self.starts[-1] + self.sizes[-1])

    def first(self, count: int) -> BatchRun:
        """Return the first `count` batches."""
        return self.between(0, count)

    def between(self, begin: int, end: int) -> BatchRun:
        """Return the batches with numbers in [begin, end), counted from 0."""
        return self._replace(starts=self.starts[begin:end], headers=self.headers[begin:end])

    def where(self, mask: Bools) -> BatchRun:
        """Return the batches whose mask is true."""
        return self._replace(starts=self.starts[mask], headers=self.headers[mask])

    def chunks(self, rows: int, size_bytes: int) -> Iterator[BatchRun]:
        """Yield parts of at most `rows` records and `size_bytes`, or of one batch."""
        after = np.cumsum(self.column("record_count")), np.cumsum(self.sizes)
        at, count = 0, len(self.starts)
        while at < count:
            before = [totals[at - 1] if at else 0 for totals in after]
            ends = [
                int(np.searchsorted(totals, was + limit, side="right"))
                for totals, was, limit in zip(after, before, (rows, size_bytes), strict=True)
            ]
            end = max(at + 1, min(ends))
            yield self.between(at, end)
            at = end

    def rows(self) -> pa.RecordBatch:
        """Return the batches as BATCH_SCHEMA. None may be a control batch."""
        bases = self.column("base_offset")
        derived = {
            "position": self.position + self.starts,
            "last_offset": bases + self.column("last_offset_delta"),
            "size_bytes": self.sizes,
        }
        return pa.record_batch(
            [
                pa.nulls(len(self.starts), field.type)
                if field.name.startswith("control_")
                else pa.array(
                    derived[field.name] if field.name in derived else self.column(field.name)
                ).cast(field.type)
                for field in BATCH_SCHEMA
            ],
            schema=BATCH_SCHEMA,
        )


def find_run(data: memoryview, position: int, max_batch_bytes: int, others: int) -> BatchRun | None:
    """Return the whole batches at the start of the data, or None if fewer than LEAST_BATCHES.

    They end before a batch with an attribute bit in the last argument, or before bytes that may be
    no batch.
    """
    starts: list[int] = []
    at, size_bytes, length_at = 0, len(data), _LENGTH.unpack_from
    while at + HEADER.size <= size_bytes:
        length = LOG_OVERHEAD_BYTES + length_at(data, at + _LENGTH_AT)[0]
        is_whole = HEADER.size <= length <= max_batch_bytes and at + length <= size_bytes
        if not is_whole or data[at + _MAGIC_AT] != 2 or data[at + _FLAGS_AT] & others:
            break
        starts.append(at)
        at += length
    if len(starts) < LEAST_BATCHES:
        return None
    places = np.array(starts, np.int64)
    cells = np.frombuffer(data, np.uint8)[places[:, np.newaxis] + np.arange(HEADER.size)]
    return BatchRun(position, data, places, cells.view(_HEADER)[:, 0])
