"""Search each object of an Iceberg table twice: its stored bytes, with its bounds and footers, and
the bytes that its format decompresses them to (Parquet, Avro, ORC, Puffin, gzip).
"""

from __future__ import annotations

import io
import json
import re
import uuid
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
PARQUET, AVRO, PUFFIN, ORC, GZIP = b"PAR1", b"Obj\x01", b"PFA1", b"ORC", b"\x1f\x8b"
# The first bytes of encrypted Parquet, ZIP, Zstandard, LZ4, bzip2, xz and 7z.
_UNKNOWN = "50415245 504b0304 28b52ffd 04224d18 425a68 fd377a 377abc"
_NOT_READ = tuple(map(bytes.fromhex, _UNKNOWN.split()))
_TEXT = "binary large_binary string large_string binary_view string_view fixed_size_binary".split()
_SEARCHED = [getattr(pa.types, f"is_{kind}") for kind in (*_TEXT, "integer")]
# Types without bytes of a key: numbers, times, and null.
_PASSED = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_null)
_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMBER, _LONGS = re.compile(rb"0|-?[1-9][0-9]{0,18}"), range(-(2**63), 2**63)


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
    """The byte strings and the rows that are searched for.

    `numbers` are paths of columns with whole numbers: they have a value as the number of its text.
    """

    def __init__(
        self, values: Sequence[bytes], rows: Rows | None = None, numbers: Sequence[str] = ()
    ) -> None:
        self.values, self.rows, self.numbers = tuple(values), rows, numbers
        all_of = list(enumerate(self.values))
        forms = [(n, value) for n, value in all_of if len(value) >= LEAST_BYTES]
        # A column of UUIDs has their 16 bytes.
        forms += [(n, uuid.UUID(text.decode()).bytes) for n, text in forms if _UUID.fullmatch(text)]
        self._long = np.array([n for n, _ in forms], int)
        patterns = [form for _, form in forms]
        self._automaton = ahocorasick_rs.BytesAhoCorasick(patterns) if patterns else None
        short = [n for n, value in all_of if len(value) < LEAST_BYTES]
        self._whole = short, pa.array([self.values[n] for n in short], pa.large_binary())
        found = [n for n, value in all_of if _NUMBER.fullmatch(value) and int(value) in _LONGS]
        self._equal = found, pa.array([int(self.values[n]) for n in found], pa.int64())

    def in_bytes(self, data: bytes | memoryview) -> set[int]:
        """Search the bytes for the long values, and return their positions."""
        if self._automaton is None:
            return set()
        found = self._automaton.find_matches_as_indexes(data, overlapping=True)
        return {int(self._long[index]) for index, _, _ in found}

    def in_cells(self, path: str, cells: pa.Array) -> set[int]:
        """Search the cells of an array; a short value is only found as a whole cell."""
        if pa.types.is_integer(cells.type):
            return _which(*self._equal, cells.cast(pa.int64())) if path in self.numbers else set()
        cells = cells.cast(pa.large_binary())
        return self._within(cells) | _which(*self._whole, cells)

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


def _which(positions: Sequence[int], values: pa.Array, cells: pa.Array) -> set[int]:
    """Return the positions of the values that are equal to a cell."""
    if not positions:
        return set()
    places = pc.unique(pc.index_in(cells, value_set=values).drop_null())
    return {positions[place] for place in places.to_pylist()}


def search(data: bytes, sought: Sought) -> set[Hit]:
    """Search an object, and return the places of the sought values and rows.

    Raise UnreadableError, with the hits in the stored bytes, if it cannot be decompressed.
    """
    hits = {Hit(n, "stored bytes") for n in sought.in_bytes(data)}
    try:
        for place, found in _decompressed(data, sought):
            hits |= {Hit(n, place) for n in found}
    except Exception as error:  # each codec raises another class
        raise UnreadableError(f"{type(error).__name__}: {error}", hits) from error
    return hits


def _decompressed(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    """Yield each part that the format stores compressed, and the positions found in it."""
    if data.startswith(PARQUET) or data.endswith(PARQUET):  # a file that was cut has one of them
        yield from _in_parquet(data, sought)
    elif data.startswith(AVRO):
        for number, block in enumerate(fastavro.block_reader(io.BytesIO(data))):
            yield f"block {number}", sought.in_bytes(block.bytes_.getbuffer())  # type: ignore[attr-defined]
    elif data.startswith(PUFFIN):
        yield from _in_puffin(data, sought)
    elif data.startswith(ORC):
        file = orc.ORCFile(pa.BufferReader(data))
        for number in range(file.nstripes):
            for path, cells in _leaves(file.read_stripe(number).to_struct_array()):
                yield f"stripe {number}, column {path}", sought.in_cells(path, cells)
    elif data.startswith(GZIP):
        text = pa.CompressedInputStream(pa.BufferReader(data), "gzip").read()
        yield "decompressed text", sought.in_bytes(text)
    elif data.startswith(_NOT_READ):
        raise ValueError(f"the format {data[:4]!r} cannot be searched: it is encrypted or packed")


def _in_parquet(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    file = pq.ParquetFile(pa.BufferReader(data))
    paths, rows = list[str](), sought.rows
    for column in map(file.schema.column, range(len(file.schema))):
        if column.physical_type.endswith("BYTE_ARRAY") or column.path in sought.numbers:
            paths.append(column.path)
    pair = rows.pair_of(file.schema_arrow) if rows else None
    for group in range(file.num_row_groups):
        if rows and pair:
            count = rows.count_in(file.read_row_group(group, columns=list(pair), use_threads=False))
            yield f"row group {group}, {count} rows", {len(sought.values)} if count else set()
        for path in paths if sought.values else ():
            table = file.read_row_group(group, columns=[path], use_threads=False)
            found: set[int] = set()
            for batch in table.to_batches():
                for leaf, cells in _leaves(batch.to_struct_array()):
                    found |= sought.in_cells(leaf, cells)
            yield f"row group {group}, column {path}", found


def _leaves(cells: pa.Array, path: str = "") -> Iterator[tuple[str, pa.Array]]:
    """Yield the arrays of bytes, texts and whole numbers in an array, by path."""
    kind = cells.type
    if isinstance(cells, pa.ExtensionArray):
        yield from _leaves(cells.storage, path)
    elif pa.types.is_dictionary(kind):
        yield from _leaves(cells.dictionary, path)
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        for number in range(kind.num_fields):
            name = kind.field(number).name
            yield from _leaves(cells.field(number), f"{path}.{name}" if path else name)
    elif pa.types.is_map(kind):
        yield from _leaves(cells.keys, f"{path}.key")
        yield from _leaves(cells.items, f"{path}.value")
    elif hasattr(cells, "values"):  # of a list of any kind
        yield from _leaves(cells.values, path)
    elif any(is_kind(kind) for is_kind in _SEARCHED):
        yield path, cells
    elif not any(is_kind(kind) for is_kind in _PASSED):
        raise ValueError(f"column {path} has the type {kind}, which cannot be searched")


def _in_puffin(data: bytes, sought: Sought) -> Iterator[tuple[str, set[int]]]:
    """Search the footer and the blobs (Puffin spec: magic, blobs, magic, payload, its length)."""
    length = int.from_bytes(data[-12:-8], "little")
    payload = data[-12 - length : -12]
    if data[-8] & 1:  # the footer is compressed
        payload = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read()
        yield "footer", sought.in_bytes(payload)
    for number, blob in enumerate(json.loads(payload)["blobs"]):
        codec = blob.get("compression-codec")
        if codec:
            stored = data[blob["offset"] : blob["offset"] + blob["length"]]
            stream = pa.CompressedInputStream(pa.BufferReader(stored), codec)
            yield f"blob {number}", sought.in_bytes(stream.read())
