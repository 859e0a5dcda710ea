"""A table's data files by segment, read and written in tasks.

Spark's scan would pass each row through the JVM, and a DELETE would read the table a second time
(docs/adr/0004). Format: Iceberg table spec, deletion vectors; Puffin spec, deletion-vector-v1.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import ParquetFileFormat, ParquetFileFragment, ParquetFragmentScanOptions
from pyroaring import BitMap64

from ebbtide.columns.headers import sorted_by
from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.metadata import TableColumn
from ebbtide.stores.store import WHOLE_BYTES, Store, is_object_store

# Columns are found in Parquet files by Iceberg's field ids, not by name (Iceberg table spec, column
# projection). A column added after the file was written has its default there, or null. A number's
# type may be narrower in the file than in the table.


_FIELD_ID = b"PARQUET:field_id"
_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
WHOLE = 2**31 - 1  # rows per batch: a whole row group
_BATCH_ROWS = 64 * 1024  # rows per batch if a whole row group would take too much memory
# Gaps up to this size are read too: that takes a store no longer than one more request.
_HOLE_BYTES = 4 * 1024 * 1024
READING = ParquetFragmentScanOptions(
    pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=_HOLE_BYTES, lazy=False)
)


def read_file(file: ParquetFileFragment, columns: Iterable[TableColumn]) -> pa.Table:
    """Read those of the columns that the file, or a row group of it, has, under the table's names.

    All are nullable, also if the writer declared one required, so that files of all writers can be
    joined.
    """
    present = _present(file, columns)
    table = file.to_table(
        columns=list(present), use_threads=False, batch_size=WHOLE, fragment_scan_options=READING
    )
    return _renamed(table, present)


def whole_file(
    store: Store, path: str, size_bytes: int, columns: Collection[TableColumn]
) -> pa.Table:
    """Read the columns of a file; one that it lacks has its default, or null."""
    with opened_file(store, path, size_bytes) as fragment:
        return with_missing(read_file(fragment, columns), columns)


def read_in_batches(
    file: ParquetFileFragment, columns: Iterable[TableColumn], group: int
) -> Iterator[pa.Table]:
    """Yield a row group as `read_file` reads it, in batches of `_BATCH_ROWS` rows."""
    present = _present(file, columns)
    with pq.ParquetFile(file.open(), metadata=file.metadata) as opened:
        batches = opened.iter_batches(
            _BATCH_ROWS, row_groups=[group], columns=list(present), use_threads=False
        )
        for batch in batches:
            yield _renamed(pa.table(batch), present)


def _present(file: ParquetFileFragment, columns: Iterable[TableColumn]) -> dict[str, TableColumn]:
    """Return the columns that the file has, by their names in the file."""
    names = {_id_of(field): field.name for field in file.physical_schema}
    return {names[column.field_id]: column for column in columns if column.field_id in names}


def _renamed(table: pa.Table, present: Mapping[str, TableColumn]) -> pa.Table:
    if not present:  # a table without columns would have no rows
        return table
    fields = [
        table.schema.field(inner).with_name(column.name).with_nullable(True)
        for inner, column in present.items()
    ]
    return pa.table([table[name] for name in present], schema=pa.schema(fields))


def bytes_of_column(file: ParquetFileFragment, column: TableColumn) -> int:
    """Return the uncompressed bytes of a column of plain values; 0 if the file lacks it."""
    names = {_id_of(field): field.name for field in file.physical_schema}
    if column.field_id not in names:
        return 0
    footer, name = file.metadata, names[column.field_id]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return sum(_bytes_in_group(group, name) for group in groups)


def _bytes_in_group(group: pq.RowGroupMetaData, name: str) -> int:
    # By the chunks' paths, because a footer and its `schema` would keep each other in memory.
    (chunk,) = (
        column
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema == name
    )
    return int(chunk.total_uncompressed_size)


def together(tables: Sequence[pa.Table], columns: Iterable[TableColumn]) -> pa.Table:
    """Return the rows of several files as one table; a column that a file lacks has its default."""
    names = {name for table in tables for name in table.column_names}
    filled = [column for column in columns if column.name in names and column.default is not None]
    tables = [with_missing(table, filled) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive")


def with_missing(table: pa.Table, columns: Iterable[TableColumn]) -> pa.Table:
    """Return the table with all columns; one that it lacks gets its default, or null."""
    for column in columns:
        if column.name not in table.column_names:
            values = pa.repeat(pa.scalar(column.default), table.num_rows)
            table = table.append_column(column.name, values)
    return table


def arrow_schema(table: Table, names: Sequence[str]) -> pa.Schema:
    """Return the schema of new files with these columns of a table.

    Raise ConfigurationError if the table lacks one of them.
    """
    fields = {field["name"]: field for field in table.metadata.schema["fields"]}
    if missing := [name for name in names if name not in fields]:
        raise ConfigurationError(
            f"expected columns {', '.join(names)} in {table}, found none named "
            f"{', '.join(missing)}. Rename or add them again"
        )
    return pa.schema([_field(fields[name]) for name in names])


def field_of(column: TableColumn, kind: pa.DataType, *, is_required: bool = False) -> pa.Field:
    """Return the column's field in new files."""
    metadata = {_FIELD_ID: str(column.field_id)}
    return pa.field(column.name, kind, nullable=not is_required, metadata=metadata)


def _field(field: Mapping[str, Any]) -> pa.Field:
    column = TableColumn(field["name"], field["id"])
    return field_of(column, _arrow_type(field["type"]), is_required=field["required"])


def _arrow_type(iceberg_type: Any) -> pa.DataType:
    """Return Arrow's type for an Iceberg type in its schema's JSON."""
    if isinstance(iceberg_type, str):
        return _TYPES[iceberg_type]
    if iceberg_type["type"] == "list":
        return pa.list_(_inner(iceberg_type, "element"))
    if iceberg_type["type"] == "map":
        return pa.map_(
            _inner(iceberg_type | {"key-required": True}, "key"), _inner(iceberg_type, "value")
        )
    return pa.struct([_field(field) for field in iceberg_type["fields"]])


def _inner(outer: Mapping[str, Any], name: str) -> pa.Field:
    """Return the field inside a list or a map, such as its `element`."""
    column = TableColumn(name, outer[f"{name}-id"])
    return field_of(column, _arrow_type(outer[name]), is_required=outer[f"{name}-required"])


def _id_of(field: pa.Field) -> int | None:
    field_id = (field.metadata or {}).get(_FIELD_ID)
    return None if field_id is None else int(field_id)


# Row ids are retained when a file is rewritten, so that readers can follow a row's changes (Iceberg
# table spec, row lineage). In a file without ids, a row's id follows from its position, and its
# last change from the commit that added the file.


_ROW_ID = TableColumn("_row_id", 2147483540)
_LAST_UPDATED = TableColumn("_last_updated_sequence_number", 2147483539)
LINEAGE = (_ROW_ID, _LAST_UPDATED)


class Lineage(NamedTuple):
    """The ids that a file's rows inherit unless the file has them as columns."""

    first_row_id: int | None  # None in a file from before the table's format knew ids
    sequence_number: int


def with_lineage(
    rows: pa.Table, positions: npt.NDArray[np.int64], lineage: Lineage | None
) -> pa.Table:
    """Add the two columns of LINEAGE to the rows at these positions of their file."""
    if lineage is None or lineage.first_row_id is None:
        return rows
    inherited = {
        _ROW_ID: pa.array(lineage.first_row_id + positions),
        _LAST_UPDATED: pa.array(np.full(len(positions), lineage.sequence_number, np.int64)),
    }
    for column, values in inherited.items():
        at = rows.schema.get_field_index(column.name)
        if at < 0:
            rows = rows.append_column(field_of(column, pa.int64()), values)
        else:
            row_ids = pc.coalesce(rows.column(at), values)
            rows = rows.set_column(at, field_of(column, pa.int64()), row_ids)
    return rows


Offsets = npt.NDArray[np.int64]
_PARQUET = ParquetFileFormat()
_MAGIC = bytes.fromhex("d1d33964")  # of a deletion vector
_PUFFIN = b"PFA1"
_NO_FLAGS = bytes(4)  # of a Puffin footer that is not compressed
_POSITION = 2147483645  # the id of Iceberg's reserved column of row positions
_UNKNOWN = -1  # snapshot and sequence number, which the commit decides


class Vector(NamedTuple):
    """The place of a deletion vector: a blob of a Puffin file."""

    path: str
    position: int
    size_bytes: int
    record_count: int


class DataFile(NamedTuple):
    """A Parquet file, and the vector of its deleted positions."""

    path: str
    record_count: int
    size_bytes: int
    vector: Vector | None
    lineage: Lineage | None = None  # set if its rows retain their ids in a rewrite
    last: int | None = None  # upper bound of the column asked for, if the manifest has one

    @property
    def live_count(self) -> int:
        """Number of rows that no deletion vector names."""
        return self.record_count - (self.vector.record_count if self.vector else 0)


class SegmentFiles(NamedTuple):
    """The files of one physical segment."""

    partition: int
    segment: int
    files: tuple[DataFile, ...]
    columns: tuple[TableColumn, ...]
    store: Store

    @property
    def record_count(self) -> int:
        """Number of rows, deleted ones included."""
        return sum(file.record_count for file in self.files)

    @property
    def live_count(self) -> int:
        """Number of rows that are not deleted."""
        return sum(file.live_count for file in self.files)

    @property
    def deleted_count(self) -> int:
        """Number of rows that deletion vectors name."""
        return sum(file.vector.record_count for file in self.files if file.vector)


class SegmentRows(NamedTuple):
    """Live rows of a segment in the order of one column, with their files and positions."""

    table: pa.Table
    files: npt.NDArray[np.int32]  # index of each row's file in the unit's
    positions: Offsets  # of each row in its file


class DeletionVector(NamedTuple):
    """A deletion vector with all deleted positions of a file; it replaces the file's `vector`."""

    file: DataFile
    blob: bytes
    cardinality: int


def ends_of(units: Iterable[SegmentFiles]) -> dict[int, int]:
    """Return for each partition an offset that is above the base offset of all its units."""
    ends: dict[int, int] = {}
    for unit in units:
        ends[unit.partition] = max(ends.get(unit.partition, 0), unit.segment + 1)
    return ends


def count_rows(units: Iterable[SegmentFiles]) -> int:
    """Count the rows in the units' files, deleted rows included."""
    return sum(unit.record_count for unit in units)


@dataclass(frozen=True, slots=True)
class CutOut:
    """Consecutive rows of a table. Pickling sends a task only these rows."""

    table: pa.Table
    start: int
    count: int

    @property
    def rows(self) -> pa.Table:
        """The rows, as a view of the table."""
        return self.table.slice(self.start, self.count)

    def __reduce__(self) -> tuple[type[CutOut], tuple[pa.Table, int, int]]:
        # Pickling a slice would send the whole table.
        rows = self.table.take(np.arange(self.start, self.start + self.count))
        return CutOut, (rows, 0, self.count)


def in_segments(rows: pa.Table, by: str) -> dict[tuple[int, int], CutOut]:
    """Return the rows of each (partition, segment), in the order of the column `by`."""
    # In one chunk, because each slice goes through all chunks of a table.
    rows = sorted_by(rows, ("partition", "segment", by)).combine_chunks()
    keys = np.stack([rows["partition"].to_numpy(), rows["segment"].to_numpy()])
    places, starts, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
    return {
        (int(partition), int(segment)): CutOut(rows, int(start), int(count))
        for partition, segment, start, count in zip(*places, starts, counts, strict=True)
    }


def read_segment(
    unit: SegmentFiles, columns: Sequence[str] | None, by: str = "offset"
) -> SegmentRows:
    """Read the segment's live rows, ordered by column `by`. `columns` None: all columns."""
    tables, files, positions = [], [], []
    wanted = [column for column in unit.columns if columns is None or column.name in columns]
    for number, file in enumerate(unit.files):
        table, live = _read_file(unit.store, file, wanted)
        tables.append(table)
        positions.append(live)
        files.append(np.full(len(live), number, np.int32))
    table = together(tables, wanted)
    rows = SegmentRows(table, np.concatenate(files), np.concatenate(positions))
    order = rows.table[by].to_numpy()
    if np.all(order[1:] > order[:-1]):
        return rows
    sorting = np.argsort(order, kind="stable")
    return SegmentRows(rows.table.take(sorting), rows.files[sorting], rows.positions[sorting])


def read_rows(unit: SegmentFiles, file: DataFile, positions: Offsets) -> pa.Table:
    """Read all columns of the rows at these ascending positions; other row groups are not read."""
    tables, start = [], 0
    with opened_file(unit.store, file.path, file.size_bytes) as opened:
        for group in range(opened.metadata.num_row_groups):
            end = start + opened.metadata.row_group(group).num_rows
            if not len(_within(positions, start, end)):
                start = end
                continue
            for rows in read_in_batches(opened, unit.columns, group):
                tables.append(rows.take(_within(positions, start, start + rows.num_rows) - start))
                start += rows.num_rows
    return together(tables, unit.columns)


def _within(positions: Offsets, start: int, end: int) -> Offsets:
    return positions[np.searchsorted(positions, start) : np.searchsorted(positions, end)]


def column_bytes(unit: SegmentFiles, name: str) -> int:
    """Return a column's uncompressed bytes, from the footers of its files.

    If a file has a dictionary for the column, a repeated value counts once.
    """
    (column,) = (column for column in unit.columns if column.name == name)
    total = 0
    for file in unit.files:
        with opened_file(unit.store, file.path, file.size_bytes) as opened:
            total += bytes_of_column(opened, column)
    return total


def live_groups(unit: SegmentFiles, file: DataFile) -> Iterator[pa.Table]:
    """Yield one table per row group: the live rows in order, with all columns and lineage."""
    columns = (*unit.columns, *LINEAGE)
    with opened_file(unit.store, file.path, file.size_bytes) as opened:
        groups = (
            read_file(opened.subset(row_group_ids=[group]), columns)
            for group in range(opened.metadata.num_row_groups)
        )
        for rows, positions in _live(unit.store, file, groups):
            yield with_lineage(rows, positions, file.lineage)


def live_batches(unit: SegmentFiles, file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the file's live rows in order, in batches of `_BATCH_ROWS` rows.

    A column that the file lacks has its default, or is null.
    """
    wanted = [column for column in unit.columns if column.name in columns]
    with opened_file(unit.store, file.path, file.size_bytes) as opened:
        batches = (
            with_missing(rows, wanted)
            for group in range(opened.metadata.num_row_groups)
            for rows in read_in_batches(opened, wanted, group)
        )
        yield from (rows for rows, _ in _live(unit.store, file, batches))


def _live(
    store: Store, file: DataFile, parts: Iterable[pa.Table]
) -> Iterator[tuple[pa.Table, Offsets]]:
    """Yield the live rows of each part of a file, in order, with their positions in the file."""
    dead = np.empty(0, np.int64) if file.vector is None else read_vector(store, file.vector)
    start = 0
    for rows in parts:
        live = np.ones(rows.num_rows, np.bool_)
        live[dead[(dead >= start) & (dead < start + rows.num_rows)] - start] = False
        yield rows.filter(pa.array(live)), start + np.flatnonzero(live)
        start += rows.num_rows


def _read_file(
    store: Store, file: DataFile, columns: Sequence[TableColumn]
) -> tuple[pa.Table, Offsets]:
    wanted = [*columns, *LINEAGE] if file.lineage else columns
    with opened_file(store, file.path, file.size_bytes) as opened:
        table = read_file(opened, wanted)
    if file.vector is None:
        positions = np.arange(table.num_rows, dtype=np.int64)
    else:
        ((table, positions),) = _live(store, file, [table])
    return with_lineage(table, positions, file.lineage), positions


@contextmanager
def opened_file(store: Store, path: str, size_bytes: int) -> Iterator[ParquetFileFragment]:
    """Open a data file of the plan until the block ends, to read parts of it.

    Raise CommitConflictError if the file no longer exists.
    """
    is_kept = size_bytes <= _KEPT_BYTES or size_bytes > WHOLE_BYTES
    with _planned(path), store.located(path):
        yield (_kept_fragment if is_kept else _fragment)(store, path, size_bytes)


def _fragment(store: Store, path: str, size_bytes: int) -> ParquetFileFragment:
    """Return the file by its path, or its bytes if it is a small one in an object store."""
    with store.located(path) as (file_system, path_inside):
        if is_object_store(file_system) and size_bytes <= WHOLE_BYTES:
            with store.reading(path) as handle:
                return _PARQUET.make_fragment(handle.read_buffer())
        return _PARQUET.make_fragment(path_inside, file_system, file_size=size_bytes)


# Jobs read a file several times, and it never changes. Of a large file the footer is cached, of one
# up to this size everything.
_KEPT_BYTES = 256 * 1024
_kept_fragment = lru_cache(maxsize=128)(_fragment)


@contextmanager
def reading_planned(store: Store, path: str) -> Iterator[pa.NativeFile]:
    """Open a file of the plan; raise CommitConflictError if it no longer exists."""
    with _planned(path), store.reading(path) as handle:
        yield handle


@contextmanager
def _planned(path: str) -> Iterator[None]:
    """Raise CommitConflictError in place of the block's FileNotFoundError."""
    try:
        yield
    except FileNotFoundError as error:
        raise CommitConflictError(
            f"expected {path}, a file of the table when the work was planned, found none: another "
            "tool replaced and deleted it meanwhile. Run the job again"
        ) from error


def read_vector(store: Store, vector: Vector) -> Offsets:
    """Return the positions that a deletion vector names."""
    # A length and a magic number before the bitmap, a checksum after it.
    return numbers_in(BitMap64.deserialize(read_blob(store, vector)[8:-4]))


def numbers_in(bitmap: BitMap64) -> Offsets:
    """Return a bitmap's numbers, ascending."""
    return np.frombuffer(bitmap.to_array(), np.int64)


def read_blob(store: Store, vector: Vector) -> bytes:
    """Return the bytes of a deletion vector in its Puffin file."""
    with _planned(vector.path):
        return store.read_range(vector.path, vector.position, vector.size_bytes)


def deletion_of(store: Store, file: DataFile, positions: Offsets) -> DeletionVector:
    """Return a vector of a file's deleted positions: the old ones and `positions`."""
    if file.vector is not None:
        positions = np.union1d(positions, read_vector(store, file.vector))
    bitmap = BitMap64(positions.astype(np.uint64))
    body = _MAGIC + bitmap.serialize()
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return DeletionVector(file, blob, len(bitmap))


class WrittenVectors(NamedTuple):
    """A Puffin file's size, and the position of each deletion vector in it."""

    size_bytes: int
    positions: list[int]


def write_vectors(store: Store, path: str, deletions: Sequence[DeletionVector]) -> WrittenVectors:
    """Write the vectors to a new Puffin file, in this order.

    Iceberg's own writer takes about twenty calls to the JVM per vector.
    """
    positions, position = [], len(_PUFFIN)
    for deletion in deletions:
        positions.append(position)
        position += len(deletion.blob)
    footer = _puffin_footer(deletions, positions)
    with store.writing(path) as stream:
        stream.write(_PUFFIN)
        for deletion in deletions:
            stream.write(deletion.blob)
        stream.write(footer)
    return WrittenVectors(position + len(footer), positions)


def _puffin_footer(deletions: Sequence[DeletionVector], positions: Sequence[int]) -> bytes:
    blobs = [
        {
            "type": "deletion-vector-v1",
            "fields": [_POSITION],
            "snapshot-id": _UNKNOWN,
            "sequence-number": _UNKNOWN,
            "offset": position,
            "length": len(deletion.blob),
            "properties": {
                "referenced-data-file": deletion.file.path,
                "cardinality": str(deletion.cardinality),
            },
        }
        for deletion, position in zip(deletions, positions, strict=True)
    ]
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": "ebbtide"}}).encode()
    return _PUFFIN + payload + len(payload).to_bytes(4, "little") + _NO_FLAGS + _PUFFIN


def write_rows(store: Store, path: str, rows: pa.Table) -> None:
    """Write rows from `read_segment` to a new file, with their field ids."""
    with store.writing(path) as stream:
        pq.write_table(rows, stream, compression="zstd")


def write_groups(store: Store, path: str, groups: Iterable[pa.Table]) -> bool:
    """Write one row group per table. Return False, and write no file, if there is no row."""
    filled = (group for group in groups if group.num_rows)
    first = next(filled, None)
    if first is None:
        return False
    with (
        store.writing(path) as stream,
        pq.ParquetWriter(stream, first.schema, compression="zstd") as writer,
    ):
        for group in chain((first,), filled):
            writer.write_table(group, row_group_size=group.num_rows)
    return True
