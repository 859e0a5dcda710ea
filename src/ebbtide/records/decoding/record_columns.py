"""Decode the records of many batches at once, as Arrow columns.

Every field of all records is decoded by one vector operation, and keys and values are copied once,
by Arrow, out of the batches' bytes. Source: Kafka's `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.records.arrays import MAX_TIMESTAMP_MS, Int64s, to_timestamps
from ebbtide.records.attributes import LOG_APPEND_TIME, NO_TIMESTAMP
from ebbtide.records.batch import HEADER, HEADERS_TYPE, RECORD_SCHEMA
from ebbtide.records.batch_runs import BatchRun
from ebbtide.records.decoding.record_places import (
    BatchColumns,
    Bodies,
    Chunk,
    Slices,
    V2Batch,
    find_records,
)
from ebbtide.records.header_keys import HEADER_KEYS_HEADER, kept_keys, shown_key
from ebbtide.records.legacy import LegacyRecord
from ebbtide.records.varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    decode_varint,
    payload_size,
)

# The header that keeps a timestamp no column can hold, as decimal milliseconds.
TIMESTAMP_HEADER = "ebbtide.timestamp"


class LegacyBatch(NamedTuple):
    """A batch of magic 0 or 1, decoded."""

    base_offset: int
    records: list[LegacyRecord]

    @property
    def record_count(self) -> int:
        """The number of its records."""
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        """The bytes that its keys and values take in memory."""
        return sum(len(record.key or b"") + len(record.value or b"") for record in self.records)


def decode_records(path: str, batches: Sequence[V2Batch | LegacyBatch]) -> pa.RecordBatch:
    """Return the records of data batches, ascending and all of one format, as RECORD_SCHEMA."""
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
    """Return the records of a run of data batches, given by their decompressed bodies."""
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
            raise chunk.malformed(row, f"{count} headers inside its length", decoded) from bad
    chunk.require(after == chunk.end, "fields as long as its length", after - chunk.start)
    return _gather_headers(chunk, counts, np.array(places, dtype=np.int64).reshape(-1, 4))


def _scan_headers(raw: bytes, span: range, count: int, places: list[int]) -> int:
    """Append four numbers a header: where its key begins and ends, where its value begins, how
    long that is; return the position after the last header.
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
    """Return the headers of records of which some have keys that are not UTF-8."""
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
    """Build a binary column from slices of a buffer, without a Python object for a value.

    An array of slices and gaps is laid over the buffer, and Arrow copies the bytes of the
    slices, each once.
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
    chunk.require(offset_delta <= last_delta, "an offset of its batch", offsets)
    chunk.require(offset_delta >= 0, "an offset of its batch", offsets)
    ascends = np.ones(len(offsets), dtype=np.bool_)
    ascends[1:] = offsets[1:] > offsets[:-1]
    chunk.require(ascends, "an offset above the record's before", offsets)
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
