"""Decode the records of batches into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.errors import CorruptSegmentError
from ebbtide.records.arrays import (
    MAX_TIMESTAMP_MS,
    TIMESTAMP_HEADER,
    VARINT_BYTES,
    VARLONG_BYTES,
    Bools,
    Bytes,
    Int64s,
    MalformedVarintError,
    decode_varint,
    decode_varints,
    payload_size,
    to_timestamps,
)
from ebbtide.records.attributes import LOG_APPEND_TIME, NO_TIMESTAMP
from ebbtide.records.batch import (
    HEADER,
    HEADERS_TYPE,
    RECORD_SCHEMA,
    BatchHeader,
    BatchRun,
    corrupt,
)
from ebbtide.records.legacy import LegacyRecord

# Header keys that are not UTF-8: the table has them as a consumer shows them, and their bytes too.
#
# Kafka's clients send such keys, and its brokers store them. A column of strings cannot. So ingest
# adds one more header to the record, with the position and the bytes of each such key.


HEADER_KEYS_HEADER = "ebbtide.header.keys"
HeaderPairs = list[tuple[bytes, bytes | None]]


def shown_key(key: bytes) -> str:
    """Return a header's key as a consumer shows it: bytes that are not UTF-8 become U+FFFD."""
    return key.decode(errors="replace")


def kept_keys(keys: Sequence[bytes]) -> bytes | None:
    """Return the value of the header with the keys that are not UTF-8, or None if none is needed.

    A record also gets one if its own last header has that header's name.
    """
    odd = [f"{i}={key.hex()}" for i, key in enumerate(keys) if shown_key(key).encode() != key]
    is_alike = bool(keys) and keys[-1] == HEADER_KEYS_HEADER.encode()
    return " ".join(odd).encode() if odd or is_alike else None


def with_own_keys(headers: HeaderPairs) -> HeaderPairs:
    """Return a stored record's headers with their original keys, without the added header."""
    if not headers or headers[-1][0] != HEADER_KEYS_HEADER.encode():
        return headers
    own, kept = headers[:-1], headers[-1][1] or b""
    try:
        for place in kept.decode().split():
            number, _, digits = place.partition("=")
            shown, content = own[int(number)]
            key = bytes.fromhex(digits)
            if shown_key(key).encode() != shown:
                return headers  # a producer's own header; this version of ingest added none
            own[int(number)] = (key, content)
    except (ValueError, IndexError):
        return headers
    return own


# Find the start and end of each record in many batches, and check its numbers.
#
# A Python loop only finds the start of each record. Then one vector operation decodes a field of
# all records. Source: Kafka's `DefaultRecord`.


# Attributes, two deltas, two lengths and the header count take at least one byte each.
MIN_RECORD_BYTES = 6
# Batches with at most this many records on average are scanned together.
FEW_RECORDS = 8
PADDING = bytes(VARLONG_BYTES)


class V2Batch(NamedTuple):
    """A data batch of magic 2, decompressed."""

    position: int
    header: BatchHeader
    records: bytes | memoryview

    @property
    def base_offset(self) -> int:
        """The first offset of the batch, even if cleaning removed that record."""
        return self.header.base_offset

    @property
    def record_count(self) -> int:
        """The number of records."""
        return self.header.record_count

    @property
    def size_bytes(self) -> int:
        """The bytes of the records in memory."""
        return len(self.records)


class Slices(NamedTuple):
    """Half-open byte ranges of a chunk, one per row."""

    start: Int64s
    end: Int64s
    is_null: Bools


class BatchColumns(NamedTuple):
    """The header fields that decoding needs, one number per batch."""

    position: Int64s
    record_count: Int64s
    base_offset: Int64s
    last_offset_delta: Int64s
    base_timestamp_ms: Int64s
    max_timestamp_ms: Int64s
    attributes: Int64s

    @classmethod
    def of(cls, batches: Sequence[V2Batch]) -> BatchColumns:
        """Return the columns of batches."""
        names = cls._fields[1:]
        rows = [(b.position, *(getattr(b.header, name) for name in names)) for b in batches]
        return cls(*np.array(rows, np.int64).T)

    @classmethod
    def of_run(cls, run: BatchRun) -> BatchColumns:
        """Return the columns of a run of batches."""
        return cls(run.position + run.starts, *(run.column(name) for name in cls._fields[1:]))


class Chunk(NamedTuple):
    """The records of several batches in one buffer, with the byte range of each record's body."""

    path: str
    headers: BatchColumns
    raw: bytes
    data: Bytes
    start: Int64s
    end: Int64s

    def per_record(self, of_batches: Int64s) -> Int64s:
        """Repeat a number of each batch for each of its records."""
        return np.repeat(of_batches, self.headers.record_count)

    def malformed(self, row: int, expected: str, actual: str) -> CorruptSegmentError:
        """Return the error for a record of the chunk."""
        after = np.cumsum(self.headers.record_count)
        number = int(np.searchsorted(after, row, side="right"))
        row -= int(after[number] - self.headers.record_count[number])
        in_batch = f"{expected} in record {row} of the batch"
        return corrupt(self.path, int(self.headers.position[number]), in_batch, actual)

    def require(self, is_sound: Bools, expected: str, actual: Int64s) -> None:
        """Raise CorruptSegmentError for the first record that is not sound."""
        if not is_sound.all():
            row = int(np.argmin(is_sound))
            raise self.malformed(row, expected, str(actual[row]))

    def varints(self, at: Int64s, width: int) -> tuple[Int64s, Int64s]:
        """Return one varint per record, and the positions after them."""
        try:
            values, after = decode_varints(self.data, at, width)
        except MalformedVarintError as bad:
            raise self.malformed(bad.index, f"a number of at most {width} bytes", "more") from bad
        self.require(after <= self.end, "numbers within the record's length", after - self.start)
        return values, after

    def slices(self, at: Int64s) -> Slices:
        """Return one nullable byte string per record; its length is at `at`."""
        length, start = self.varints(at, VARINT_BYTES)
        end = start + np.maximum(length, 0)
        self.require(end <= self.end, "a key and value within the record's length", length)
        return Slices(start, end, length < 0)


class Bodies(NamedTuple):
    """The byte range of each batch's records in a buffer."""

    begin: Int64s
    limit: Int64s

    @classmethod
    def joined(cls, parts: Sequence[bytes | memoryview]) -> Bodies:
        """Return the byte ranges of parts that follow each other."""
        sizes = np.array([len(part) for part in parts], np.int64)
        return cls(np.cumsum(sizes) - sizes, np.cumsum(sizes))


def find_records(
    path: str, headers: BatchColumns, parts: Sequence[bytes | memoryview], bodies: Bodies
) -> Chunk:
    """Return the records of batches in these parts. Raise CorruptSegmentError from 2 GiB on."""
    raw = b"".join([*parts, PADDING])
    if len(raw) >= 2**31:
        raise corrupt(
            path, int(headers.position[0]), "less than 2 GiB of records", f"{len(raw)} bytes"
        )
    data = np.frombuffer(raw, dtype=np.uint8)
    bounds = _scan_together(data, headers.record_count, bodies)
    if bounds is None:
        bounds = _scan_one_by_one(path, raw, headers, bodies)
    return Chunk(path, headers, raw, data, *bounds)


def _scan_together(data: Bytes, counts: Int64s, bodies: Bodies) -> tuple[Int64s, Int64s] | None:
    """Find the byte ranges of all records' bodies, one record of every batch at a time.

    Return None if batches have many records, where batch by batch is faster, or if a batch is
    malformed.
    """
    total = int(counts.sum())
    if total > FEW_RECORDS * len(counts):
        return None
    starts, ends = np.empty(total, np.int64), np.empty(total, np.int64)
    firsts, at = np.cumsum(counts) - counts, bodies.begin.copy()
    for number in range(int(counts.max(initial=0))):
        batches = np.flatnonzero(counts > number)
        try:
            length, start = decode_varints(data, at[batches], VARINT_BYTES)
        except MalformedVarintError:
            return None
        end = start + length
        if np.any((length < MIN_RECORD_BYTES) | (end > bodies.limit[batches])):
            return None
        rows = firsts[batches] + number
        starts[rows], ends[rows], at[batches] = start, end, end
    return (starts, ends) if np.array_equal(at, bodies.limit) else None


def _scan_one_by_one(
    path: str, raw: bytes, headers: BatchColumns, bodies: Bodies
) -> tuple[Int64s, Int64s]:
    """Find the byte ranges of all records' bodies, batch by batch.

    Raise CorruptSegmentError for a batch that does not have its number of records.
    """
    starts: list[int] = []
    ends: list[int] = []
    spans = zip(*(column.tolist() for column in (*bodies, headers.record_count)), strict=True)
    for number, (begin, limit, count) in enumerate(spans):
        before = len(starts)
        end = _scan(raw, range(begin, limit), count, starts=starts, ends=ends)
        scanned = len(starts) - before
        if scanned < count or end != limit:
            expected = f"{count} records in {limit - begin} bytes"
            position = int(headers.position[number])
            raise corrupt(path, position, expected, f"{scanned} in {end - begin}")
    return np.array(starts), np.array(ends)


def _scan(raw: bytes, span: range, count: int, *, starts: list[int], ends: list[int]) -> int:
    """Append the byte ranges of up to `count` records' bodies; return the position after them."""
    position, limit = span.start, span.stop
    for _ in range(count):
        first = raw[position]
        second = raw[position + 1]
        if first < 0x80:
            length = first >> 1
            start = position + 1
        elif second < 0x80:
            length = (first & 0x7F | second << 7) >> 1
            start = position + 2
        else:
            length, start = _long_length(raw, position)
        end = start + length
        # The lowest bit is the sign.
        if first & 1 or length < MIN_RECORD_BYTES or end > limit:
            break
        starts.append(start)
        ends.append(end)
        position = end
    return position


def _long_length(raw: bytes, position: int) -> tuple[int, int]:
    try:
        return decode_varint(raw, position, VARINT_BYTES)
    except MalformedVarintError:
        return -1, position


# Decode the records of many batches together, as Arrow columns.
#
# One vector operation decodes a field of all records. Arrow copies keys and values once, out of the
# batches' bytes. Source: Kafka's `DefaultRecord`.


class LegacyBatch(NamedTuple):
    """A batch of magic 0 or 1, decoded."""

    base_offset: int
    records: list[LegacyRecord]

    @property
    def record_count(self) -> int:
        """The number of records."""
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        """The bytes of the keys and values in memory."""
        return sum(len(record.key or b"") + len(record.value or b"") for record in self.records)


def decode_records(path: str, batches: Sequence[V2Batch | LegacyBatch]) -> pa.RecordBatch:
    """Return the records of data batches as RECORD_SCHEMA.

    The batches are in offset order and all of one format.
    """
    legacy = [batch for batch in batches if isinstance(batch, LegacyBatch)]
    if legacy:
        return _decode_legacy(legacy)
    v2 = [batch for batch in batches if isinstance(batch, V2Batch)]
    parts = [batch.records for batch in v2]
    return _decode_v2(find_records(path, BatchColumns.of(v2), parts, Bodies.joined(parts)))


def decode_run(path: str, run: BatchRun) -> pa.RecordBatch:
    """Return the records of a run of uncompressed data batches, as RECORD_SCHEMA."""
    first, ends = run.starts[0], run.starts + run.sizes
    bodies = Bodies(run.starts - first + HEADER.size, ends - first)
    parts = [run.data[int(first) : int(ends[-1])]]
    return _decode_v2(find_records(path, BatchColumns.of_run(run), parts, bodies))


def decode_bodies(path: str, run: BatchRun, bodies: Sequence[bytes | memoryview]) -> pa.RecordBatch:
    """Return the records of a run of data batches, from their decompressed bodies."""
    return _decode_v2(find_records(path, BatchColumns.of_run(run), bodies, Bodies.joined(bodies)))


def _decode_v2(chunk: Chunk) -> pa.RecordBatch:
    timestamp_delta, at = chunk.varints(chunk.start + 1, VARLONG_BYTES)
    offset_delta, payload = chunk.varints(at, VARINT_BYTES)
    key = chunk.slices(payload)
    value = chunk.slices(key.end)
    headers = _decode_headers(chunk, value.end)
    base_timestamp_ms = chunk.per_record(chunk.headers.base_timestamp_ms)
    producer_ms = base_timestamp_ms + timestamp_delta
    timestamp_ms = np.where(
        chunk.per_record(chunk.headers.attributes & LOG_APPEND_TIME) != 0,
        chunk.per_record(chunk.headers.max_timestamp_ms),
        producer_ms,
    )
    producer_ms[base_timestamp_ms == NO_TIMESTAMP] = NO_TIMESTAMP
    base_offset = chunk.per_record(chunk.headers.base_offset)
    return _to_columns(
        offset=pa.array(_check_offsets(chunk, base_offset, offset_delta)),
        batch=pa.array(base_offset),
        timestamp_ms=timestamp_ms,
        producer_ms=producer_ms,
        key=_gather(chunk, key),
        value=_gather(chunk, value),
        headers=headers,
        attributes=pa.array(chunk.data[chunk.start].astype(np.int32)),
        size_bytes=pa.array((chunk.end - payload).astype(np.int32)),
    )


def _decode_legacy(batches: Sequence[LegacyBatch]) -> pa.RecordBatch:
    records = [record for batch in batches for record in batch.records]
    counts = [batch.record_count for batch in batches]
    base_offsets = np.array([batch.base_offset for batch in batches], dtype=np.int64)
    sizes = [payload_size(record.key, record.value) for record in records]
    return _to_columns(
        offset=pa.array([record.offset for record in records], pa.int64()),
        batch=pa.array(np.repeat(base_offsets, counts)),
        timestamp_ms=np.array([record.timestamp_ms for record in records], dtype=np.int64),
        producer_ms=np.array([record.producer_timestamp_ms for record in records], dtype=np.int64),
        key=pa.array([record.key for record in records], pa.binary()),
        value=pa.array([record.value for record in records], pa.binary()),
        headers=pa.array([[]] * len(records), HEADERS_TYPE),
        attributes=pa.array(np.zeros(len(records), dtype=np.int32)),
        size_bytes=pa.array(sizes, pa.int32()),
    )


def _decode_headers(chunk: Chunk, at: Int64s) -> pa.Array:
    counts, after = chunk.varints(at, VARINT_BYTES)
    chunk.require(counts >= 0, "a count of headers", counts)
    places: list[int] = []
    for row in np.flatnonzero(counts).tolist():
        count = int(counts[row])
        before = len(places)
        span = range(int(after[row]), int(chunk.end[row]))
        try:
            after[row] = _scan_headers(chunk.raw, span, count, places)
        except (IndexError, ValueError) as bad:
            decoded = str((len(places) - before) // 4)
            raise chunk.malformed(
                row, f"{count} headers within the record's length", decoded
            ) from bad
    chunk.require(after == chunk.end, "fields that fill the record's length", after - chunk.start)
    return _gather_headers(chunk, counts, np.array(places, dtype=np.int64).reshape(-1, 4))


def _scan_headers(raw: bytes, span: range, count: int, places: list[int]) -> int:
    """Append four numbers per header; return the position after the last header.

    The numbers are the start and end of the key, the start of the value, and the value's length.
    """
    position, limit = span.start, span.stop
    for _ in range(count):
        length, key_start = raw[position] >> 1, position + 1
        if raw[position] & 0x81:  # negative, or not the only byte
            length, key_start = decode_varint(raw, position, VARINT_BYTES)
        key_end = key_start + length
        if length < 0 or key_end > limit:
            raise ValueError(length)
        length, value_start = raw[key_end] >> 1, key_end + 1
        if raw[key_end] & 0x81:
            length, value_start = decode_varint(raw, key_end, VARINT_BYTES)
        position = value_start + max(length, 0)
        if position > limit:
            raise ValueError(length)
        places += (key_start, key_end, value_start, length)
    return position


def _gather_headers(chunk: Chunk, counts: Int64s, places: Int64s) -> pa.Array:
    key_start, key_end, value_start, length = places.T
    never_null = np.zeros(len(places), dtype=np.bool_)
    keys = _gather(chunk, Slices(key_start, key_end, never_null))
    value_end = value_start + np.maximum(length, 0)
    values = _gather(chunk, Slices(value_start, value_end, length < 0))
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:
        return _with_kept_keys(counts, keys, values)
    if pc.any(pc.equal(names, HEADER_KEYS_HEADER)).as_py():
        return _with_kept_keys(counts, keys, values)
    keys = names
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS_TYPE)


def _with_kept_keys(counts: Int64s, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return the headers of records, some of which have keys that are not UTF-8."""
    of_all, contents = keys.to_pylist(), values.to_pylist()
    lists, start = [], 0
    for count in counts.tolist():
        own, end = of_all[start : start + count], start + count
        pairs = zip(own, contents[start:end], strict=True)
        headers = [{"key": shown_key(key), "value": value} for key, value in pairs]
        kept = kept_keys(own)
        lists.append(
            headers if kept is None else [*headers, {"key": HEADER_KEYS_HEADER, "value": kept}]
        )
        start = end
    return pa.array(lists, HEADERS_TYPE)


def _gather(chunk: Chunk, slices: Slices) -> pa.Array:
    """Build a binary column from slices of a buffer, without a Python object per value.

    An array of slices and gaps is laid over the buffer. Arrow then copies the bytes of each slice
    once.
    """
    rows = len(slices.start)
    if not rows:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * rows, dtype=np.int32)
    bounds[0::2] = slices.start
    bounds[1::2] = slices.end
    cells = pa.Array.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(chunk.raw)]
    )
    every_other = np.arange(0, 2 * rows, 2, dtype=np.int32)
    return cells.take(pa.array(every_other, mask=slices.is_null))


def _check_offsets(chunk: Chunk, base_offset: Int64s, offset_delta: Int64s) -> Int64s:
    offsets = base_offset + offset_delta
    last_delta = chunk.per_record(chunk.headers.last_offset_delta)
    chunk.require(offset_delta <= last_delta, "an offset in the batch's range", offsets)
    chunk.require(offset_delta >= 0, "an offset in the batch's range", offsets)
    ascends = np.ones(len(offsets), dtype=np.bool_)
    ascends[1:] = offsets[1:] > offsets[:-1]
    chunk.require(ascends, "an offset above that of the previous record", offsets)
    return offsets


def _to_columns(
    *, timestamp_ms: Int64s, producer_ms: Int64s, headers: pa.Array, **columns: pa.Array
) -> pa.RecordBatch:
    is_kept = (timestamp_ms >= -MAX_TIMESTAMP_MS) & (timestamp_ms <= MAX_TIMESTAMP_MS)
    if not is_kept.all():
        headers = _keep_in_headers(headers, timestamp_ms, np.flatnonzero(~is_kept))
    columns["headers"] = headers
    columns["timestamp"] = to_timestamps(timestamp_ms)
    columns["producer_timestamp"] = to_timestamps(producer_ms)
    return pa.record_batch([columns[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def _keep_in_headers(headers: pa.Array, timestamp_ms: Int64s, rows: Int64s) -> pa.Array:
    lists = headers.to_pylist()
    for row in rows.tolist():
        kept = {"key": TIMESTAMP_HEADER, "value": str(timestamp_ms[row]).encode()}
        lists[row] = [*lists[row], kept]
    return pa.array(lists, HEADERS_TYPE)
