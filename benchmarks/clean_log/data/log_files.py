"""A cell's records as Kafka's segment files: uncompressed v2 batches, an empty active segment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from benchmarks.clean_log.data.cells import (
    FIRST_TIMESTAMP_MS,
    KEY_BYTES,
    SEGMENT_BYTES,
    TOMBSTONES,
    VALUE_BYTES,
    ZIPF_EXPONENT,
    Cell,
)
from ebbtide.records.arrays import encode_varint
from ebbtide.records.batch import (
    CRC_COVERS_FROM,
    CRC_START,
    HEADER,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
)

TOPIC = "log"
PARTITION = f"{TOPIC}-0"
CHUNK_RECORDS = 100_000
SEED = 20131231
NO_PRODUCER = (-1, -1, -1)

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Survivors(NamedTuple):
    """What is live after a round: as many records as keys, and the sum of their offsets."""

    records: int
    offset_sum: int


class Part(NamedTuple):
    """Neighbouring records: their first offset, the ids of their keys, how many are tombstones."""

    start: int
    keys: Int64s
    tombstones: float
    batch_records: int


class Chunk(NamedTuple):
    """Neighbouring records that are written together; whole batches, but for a part's last."""

    first: int
    keys: Int64s
    is_tombstone: Bools


def write_log(cell: Cell, directory: Path) -> Survivors:
    """Write the segment files of the cell's one partition; what a cleaner round must leave."""
    rng = np.random.default_rng(SEED)
    clean, dirty = np.arange(cell.clean_records), dirty_keys(cell, rng)
    append_part(directory, Part(0, clean, 0, cell.batch_records), rng)
    append_part(directory, Part(len(clean), dirty, TOMBSTONES, cell.batch_records), rng)
    return _survivors(cell, np.concatenate([clean, dirty]))


def append_part(
    directory: Path, part: Part, rng: np.random.Generator, partition: str = PARTITION
) -> None:
    """Fill the empty active segment at the part's start, roll as needed, leave an empty one."""
    with _Segments(directory / partition) as log:
        log.roll(part.start)
        for chunk in _chunks(part, rng):
            for base_offset, batch in _batches(chunk, part.batch_records, rng):
                log.append(base_offset, batch)
        log.roll(part.start + len(part.keys))


def dirty_keys(cell: Cell, rng: np.random.Generator) -> Int64s:
    """Ids of clean records, drawn evenly, or by Zipf's law from ranks spread over the log."""
    if not cell.is_zipf:
        return rng.integers(0, cell.clean_records, cell.dirty_records)
    weights = np.cumsum(np.arange(1, cell.clean_records + 1) ** -ZIPF_EXPONENT)
    ranks: Int64s = np.searchsorted(weights, rng.random(cell.dirty_records) * weights[-1])
    return ranks * 2_654_435_761 % cell.clean_records


def _chunks(part: Part, rng: np.random.Generator) -> Iterator[Chunk]:
    step = CHUNK_RECORDS // part.batch_records * part.batch_records
    for at in range(0, len(part.keys), step):
        keys = part.keys[at : at + step]
        yield Chunk(part.start + at, keys, rng.random(len(keys)) < part.tombstones)


def _batches(
    chunk: Chunk, batch_records: int, rng: np.random.Generator
) -> Iterator[tuple[int, bytes]]:
    """The chunk's batches with their base offsets."""
    records = _encode_records(batch_records, chunk, rng)
    ends = np.frombuffer(records.buffers()[1], np.int32)
    data = memoryview(records.buffers()[2])
    for at in range(0, len(chunk.keys), batch_records):
        count = min(batch_records, len(chunk.keys) - at)
        body = data[ends[at] : ends[at + count]]
        yield chunk.first + at, _with_header(chunk.first + at, count, body)


def _encode_records(batch_records: int, chunk: Chunk, rng: np.random.Generator) -> pa.Array:
    """Each record's bytes, one after the other in the array's data buffer."""
    count = len(chunk.keys)
    deltas = np.arange(count) % batch_records
    kinds = pa.array(deltas + batch_records * chunk.is_tombstone)
    prefixes = [
        _prefix(delta, size) for size in (VALUE_BYTES, -1) for delta in range(batch_records)
    ]
    value_sizes = np.where(chunk.is_tombstone, 0, VALUE_BYTES)
    sized = pa.array([encode_varint(VALUE_BYTES), encode_varint(-1)])
    return pc.binary_join_element_wise(
        pa.array(prefixes).take(kinds),
        _binary(_key_bytes(chunk.keys), np.full(count, KEY_BYTES)),
        sized.take(pa.array(chunk.is_tombstone.astype(np.int64))),
        _binary(rng.bytes(int(value_sizes.sum())), value_sizes),
        b"\0",  # no headers
        b"",
    )


def _prefix(delta: int, value_bytes: int) -> bytes:
    """A record up to its key; records are a millisecond apart."""
    head = b"\0" + 2 * encode_varint(delta) + encode_varint(KEY_BYTES)
    rest = KEY_BYTES + len(encode_varint(value_bytes)) + max(value_bytes, 0) + 1
    return encode_varint(len(head) + rest) + head


def _binary(data: bytes, sizes: Int64s) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def _key_bytes(ids: Int64s) -> bytes:
    """Sixteen hexadecimal digits a key, no two alike: the ids mixed by splitmix64."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).astype(">u8").tobytes().hex().encode()


def _with_header(base_offset: int, count: int, body: memoryview) -> bytes:
    base_ms = FIRST_TIMESTAMP_MS + base_offset
    header = BatchHeader(
        base_offset,
        HEADER.size - LOG_OVERHEAD_BYTES + len(body),
        0,
        2,
        0,
        0,
        count - 1,
        base_ms,
        base_ms + count - 1,
        *NO_PRODUCER,
        count,
    )
    packed = HEADER.pack(*header)
    crc = crc32c(body, crc32c(packed[CRC_COVERS_FROM:]))
    return b"".join((packed[:CRC_START], crc.to_bytes(4, "big"), packed[CRC_COVERS_FROM:], body))


def _survivors(cell: Cell, keys: Int64s) -> Survivors:
    """The last offset of every key."""
    latest = np.zeros(cell.clean_records, np.int64)
    np.maximum.at(latest, keys, np.arange(cell.records))
    return Survivors(cell.clean_records, int(latest.sum()))


class _Segments:
    """Segment files that roll when they are full; their times are those of their records."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._size_bytes = 0
        self._last_offset = 0

    def __enter__(self) -> _Segments:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def roll(self, base_offset: int) -> None:
        self._close()
        self._file = (self._directory / f"{base_offset:020}.log").open("wb")
        self._size_bytes = 0

    def append(self, base_offset: int, batch: bytes) -> None:
        if self._size_bytes + len(batch) > SEGMENT_BYTES:
            self.roll(base_offset)
        assert self._file is not None
        self._file.write(batch)
        self._size_bytes += len(batch)
        self._last_offset = base_offset

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            seconds = (FIRST_TIMESTAMP_MS + self._last_offset) / 1000
            os.utime(self._file.name, (seconds, seconds))
