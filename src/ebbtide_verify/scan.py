"""Search the bytes of an Iceberg table's files: as stored, and as decompressed.

A value can be in a file's own bytes (bounds, footers, uncompressed pages), in a compressed block or
page, or in a dictionary. Each object is therefore searched twice: its stored bytes, and the bytes
that its format decompresses them to (Iceberg table spec, Puffin spec, Parquet, Avro, ORC, gzip).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ahocorasick_rs
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

# Fewer bytes are in any large file by chance, so they are compared with whole cells only.
LEAST_BYTES = 6
PARQUET, ENCRYPTED_PARQUET, AVRO, PUFFIN, ORC = b"PAR1", b"PARE", b"Obj\x01", b"PFA1", b"ORC"
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
_FOOTER_COMPRESSED = 1
_TEXTS = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


class Rows(NamedTuple):
    """Rows that are searched for: those of a partition with offsets in [first, end).

    `columns` are pairs of names, of a partition column and an offset column. A file is searched by
    the first pair that it has.
    """

    partition: int
    first: int
    end: int
    columns: Sequence[Sequence[str]] = (("partition", "offset"),)

    def pair_of(self, schema: pa.Schema) -> Sequence[str] | None:
        """Return the first pair of columns that a file has, or None."""
        return next((pair for pair in self.columns if set(pair) <= set(schema.names)), None)

    def are_known_in(self, data: bytes) -> bool:
        """Return whether a file can be searched for rows: a Parquet file with such columns."""
        if not (data.startswith(PARQUET) and data.endswith(PARQUET)):
            return False
        return self.pair_of(pq.read_schema(pa.BufferReader(data))) is not None

    def count_in(self, rows: pa.Table) -> int:
        """Count these rows in a table with the columns of a partition and of an offset."""
        partition, offset = rows.columns
        is_within = pc.and_(pc.greater_equal(offset, self.first), pc.less(offset, self.end))
        count: int = pc.sum(pc.and_(pc.equal(partition, self.partition), is_within)).as_py() or 0
        return count


class Hit(NamedTuple):
    """A sought value or row that was found in an object."""

    sought: int  # position of the value; of rows: the number of values
    place: str


class UnreadableError(ValueError):
    """An object that cannot be decompressed. `hits` are those in its stored bytes."""

    def __init__(self, message: str, hits: set[Hit]) -> None:
        super().__init__(message)
        self.hits = hits


class Sought:
    """The byte strings and the rows that are searched for."""

    def __init__(self, values: Sequence[bytes], rows: Rows | None = None) -> None:
        self.values, self.rows = tuple(values), rows
        long = [n for n, value in enumerate(self.values) if len(value) >= LEAST_BYTES]
        short = [n for n, value in enumerate(self.values) if len(value) < LEAST_BYTES]
        self._long, self._short = np.array(long, int), np.array(short, int)
        self._short_values = pa.array([self.values[n] for n in short], pa.large_binary())
        patterns = [self.values[n] for n in long]
        self._automaton = ahocorasick_rs.BytesAhoCorasick(patterns) if patterns else None

    def in_bytes(self, data: bytes | memoryview) -> set[int]:
        """Search the bytes for the long values, and return their positions."""
        if self._automaton is None:
            return set()
        found = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return {int(self._long[index]) for index, _, _ in found}

    def in_cells(self, cells: pa.Array) -> set[int]:
        """Search the cells of an array; a short value is only found as a whole cell."""
        cells = cells.cast(pa.large_binary())
        return self._within(cells) | self._whole(cells)

    def _within(self, cells: pa.Array) -> set[int]:
        _, ends, data = cells.buffers()
        if self._automaton is None or data is None or not len(cells):
            return set()
        ends = np.frombuffer(ends, np.int64)[cells.offset : cells.offset + len(cells) + 1]
        window = memoryview(data).cast("B")[ends[0] : ends[-1]]
        matches = self._automaton.find_matches_as_indexes(window, overlapping=True)
        if not matches:
            return set()
        which, firsts, lasts = np.array(matches, np.int64).T
        # Neighbouring cells may make up a value that neither has.
        cell = np.searchsorted(ends, firsts + ends[0], side="right")
        return {int(self._long[n]) for n in which[lasts + ends[0] <= ends[cell]]}

    def _whole(self, cells: pa.Array) -> set[int]:
        if not len(self._short):
            return set()
        places = pc.index_in(cells, value_set=self._short_values)
        return {int(self._short[n]) for n in pc.unique(places.drop_null()).to_pylist()}


def search(data: bytes, sought: Sought) -> set[Hit]:
    """Search an object, and return the places of the sought values and rows.

    Raise UnreadableError, with the hits in the stored bytes, if it cannot be decompressed.
    """
    hits = {Hit(n, "stored bytes") for n in sought.in_bytes(data)}
    try:
        for place, found in _decompressed(data, sought):
            hits |= {Hit(n, place) for n in found}
    except (pa.ArrowException, OSError, ValueError, KeyError, EOFError, IndexError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}", hits) from error
    return hits


def _decompressed(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    """Yield each part that the format stores compressed, and the positions found in it."""
    if data.startswith(PARQUET) and data.endswith(PARQUET):
        yield from _in_parquet(data, sought)
    elif data.startswith(AVRO):
        for number, block in enumerate(fastavro.block_reader(io.BytesIO(data))):
            yield f"block {number}", sought.in_bytes(block.bytes_.getbuffer())  # type: ignore[attr-defined]
    elif data.startswith(PUFFIN):
        yield from _in_puffin(data, sought)
    elif data.startswith(ORC):
        for number, batch in _stripes(data):
            for column, cells in _leaves(batch):
                yield f"stripe {number}, column {column}", sought.in_cells(cells)
    elif data.startswith(GZIP):
        text = pa.CompressedInputStream(pa.BufferReader(data), "gzip").read()
        yield "decompressed text", sought.in_bytes(text)
    elif data.startswith((ENCRYPTED_PARQUET, ZIP)):
        raise ValueError(f"the format {data[:4]!r} cannot be decompressed: it is encrypted, or ZIP")


def _in_parquet(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    file = pq.ParquetFile(pa.BufferReader(data))
    texts = [
        column.path
        for column in map(file.schema.column, range(len(file.schema)))
        if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
    ]
    rows = sought.rows
    pair = rows.pair_of(file.schema_arrow) if rows else None
    for group in range(file.num_row_groups):
        if rows and pair:
            count = rows.count_in(file.read_row_group(group, columns=list(pair), use_threads=False))
            yield f"row group {group}, {count} rows", {len(sought.values)} if count else set()
        for path in texts if sought.values else ():
            table = file.read_row_group(group, columns=[path], use_threads=False)
            found: set[int] = set()
            for batch in table.to_batches():
                for _, cells in _leaves(batch):
                    found |= sought.in_cells(cells)
            yield f"row group {group}, column {path}", found


def _stripes(data: bytes) -> Iterator[tuple[int, pa.RecordBatch]]:
    file = orc.ORCFile(pa.BufferReader(data))
    for number in range(file.nstripes):
        yield number, file.read_stripe(number)


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yield the binary and text arrays of a batch, nested ones too."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for cells in _flat(column):
            yield name, cells


def _flat(cells: pa.Array) -> Iterator[pa.Array]:
    kind = cells.type
    if pa.types.is_dictionary(kind):
        yield from _flat(cells.dictionary)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _flat(cells.field(number))
    elif pa.types.is_map(kind):
        yield from _flat(cells.keys)
        yield from _flat(cells.items)
    elif isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        yield from _flat(cells.values)
    elif kind in _TEXTS or pa.types.is_fixed_size_binary(kind):
        yield cells


def _in_puffin(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    """Search the footer and the blobs (Puffin spec: magic, blobs, magic, payload, its length)."""
    length = int.from_bytes(data[-12:-8], "little")
    payload = data[-12 - length : -12]
    if data[-8] & _FOOTER_COMPRESSED:
        payload = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read()
        yield "footer", sought.in_bytes(payload)
    for number, blob in enumerate(json.loads(payload)["blobs"]):
        codec = blob.get("compression-codec")
        if codec:
            stored = data[blob["offset"] : blob["offset"] + blob["length"]]
            stream = pa.CompressedInputStream(pa.BufferReader(stored), codec)
            yield f"blob {number}", sought.in_bytes(stream.read())
