"""Find where each record of many batches begins and ends, and check its numbers.

A Python loop only finds where each record begins; a field of all records is then decoded by one
vector operation. Source: Kafka's `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ebbtide.errors import CorruptSegmentError
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.batch import BatchHeader, corrupt
from ebbtide.records.batch_runs import BatchRun
from ebbtide.records.varint import (
    VARINT_BYTES,
    VARLONG_BYTES,
    Bytes,
    MalformedVarintError,
    decode_varint,
    decode_varints,
)

# Attributes, two deltas, two lengths and the header count take a byte each at least.
MIN_RECORD_BYTES = 6
# Batches with at most this many records on average are scanned side by side.
FEW_RECORDS = 8
PADDING = bytes(VARLONG_BYTES)


class V2Batch(NamedTuple):
    """A data batch of magic 2, decompressed."""

    position: int
    header: BatchHeader
    records: bytes | memoryview

    @property
    def base_offset(self) -> int:
        """The first offset of the batch, even where that record was cleaned away."""
        return self.header.base_offset

    @property
    def record_count(self) -> int:
        """The number of its records."""
        return self.header.record_count

    @property
    def size_bytes(self) -> int:
        """The bytes that its records take in memory."""
        return len(self.records)


class Slices(NamedTuple):
    """Half-open byte ranges of a chunk, one a row."""

    start: Int64s
    end: Int64s
    is_null: Bools


class BatchColumns(NamedTuple):
    """The header fields that decoding needs, a number for each batch."""

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
    """The records of several batches in one buffer, and where each record's body lies."""

    path: str
    headers: BatchColumns
    raw: bytes
    data: Bytes
    start: Int64s
    end: Int64s

    def per_record(self, of_batches: Int64s) -> Int64s:
        """Return a number of each record's batch."""
        return np.repeat(of_batches, self.headers.record_count)

    def malformed(self, row: int, expected: str, actual: str) -> CorruptSegmentError:
        """Return the error for a record of the chunk."""
        after = np.cumsum(self.headers.record_count)
        number = int(np.searchsorted(after, row, side="right"))
        row -= int(after[number] - self.headers.record_count[number])
        in_batch = f"{expected} in record {row} of the batch"
        return corrupt(self.path, int(self.headers.position[number]), in_batch, actual)

    def require(self, is_sound: Bools, expected: str, actual: Int64s) -> None:
        """Raise for the first record that is not sound."""
        if not is_sound.all():
            row = int(np.argmin(is_sound))
            raise self.malformed(row, expected, str(actual[row]))

    def varints(self, at: Int64s, width: int) -> tuple[Int64s, Int64s]:
        """Return a varint of each record and the positions after them."""
        try:
            values, after = decode_varints(self.data, at, width)
        except MalformedVarintError as bad:
            raise self.malformed(bad.index, f"a number of at most {width} bytes", "more") from bad
        self.require(after <= self.end, "numbers inside its length", after - self.start)
        return values, after

    def slices(self, at: Int64s) -> Slices:
        """Return the nullable byte string of each record, behind its length at `at`."""
        length, start = self.varints(at, VARINT_BYTES)
        end = start + np.maximum(length, 0)
        self.require(end <= self.end, "a key and value inside its length", length)
        return Slices(start, end, length < 0)


class Bodies(NamedTuple):
    """The places of each batch's records in a buffer, from begin to end."""

    begin: Int64s
    limit: Int64s

    @classmethod
    def joined(cls, parts: Sequence[bytes | memoryview]) -> Bodies:
        """Return the places of parts that lie one after another."""
        sizes = np.array([len(part) for part in parts], np.int64)
        return cls(np.cumsum(sizes) - sizes, np.cumsum(sizes))


def find_records(
    path: str, headers: BatchColumns, parts: Sequence[bytes | memoryview], bodies: Bodies
) -> Chunk:
    """Return the records of batches in these parts; CorruptSegmentError from 2 GiB on."""
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
    """Find where all records' bodies lie, one record of every batch at a time.

    Return None where batches hold many, so that one by one is faster, or where something is
    wrong.
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
    """Find where all records' bodies lie, batch by batch.

    Raise CorruptSegmentError for a batch that does not hold its records.
    """
    starts: list[int] = []
    ends: list[int] = []
    spans = zip(*(of.tolist() for of in (*bodies, headers.record_count)), strict=True)
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
    """Append where the bodies of up to `count` records lie; return the position after the last."""
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
