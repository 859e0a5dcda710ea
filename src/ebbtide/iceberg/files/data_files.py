"""A table's data files by segment: planned on the driver, read and written in tasks.

Spark's scan would hand each row through the JVM, and a DELETE would read the table a second time
(docs/adr/0004). Format: Iceberg table spec, deletion vectors; Puffin spec, deletion-vector-v1.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.java_gateway import JavaObject
from pyarrow.dataset import ParquetFileFormat, ParquetFileFragment
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.field_ids import TableColumn, columns_of, read_file, together
from ebbtide.iceberg.files.row_lineage import LINEAGE, Lineage, with_lineage
from ebbtide.iceberg.files.table_store import store_of
from ebbtide.spark.conditions import any_expression
from ebbtide.spark.jvm import iceberg_class, java_class
from ebbtide.stores.store import Store

Offsets = npt.NDArray[np.int64]
MAX_OFFSET = 2**63 - 1
# Iceberg asks each part of a condition of each file: with more, it is told them as a set.
MANY_PARTITIONS = 50
_PARQUET = ParquetFileFormat()
_MAGIC = bytes.fromhex("d1d33964")


class Vector(NamedTuple):
    """Where a deletion vector lies: a blob of a Puffin file."""

    path: str
    position: int
    size_bytes: int
    record_count: int


class DataFile(NamedTuple):
    """A Parquet file and the positions that are deleted from it."""

    path: str
    record_count: int
    size_bytes: int
    vector: Vector | None
    lineage: Lineage | None = None  # where its rows are to keep their ids


class SegmentFiles(NamedTuple):
    """The files of one physical segment."""

    partition: int
    segment: int
    files: tuple[DataFile, ...]
    columns: tuple[TableColumn, ...]
    store: Store

    @property
    def record_count(self) -> int:
        """Rows, the deleted ones too."""
        return sum(file.record_count for file in self.files)

    @property
    def deleted_count(self) -> int:
        """Rows that deletion vectors name."""
        return sum(file.vector.record_count for file in self.files if file.vector)


class SegmentRows(NamedTuple):
    """Live rows of a segment in the order of `by`, and where each of them lies."""

    table: pa.Table
    files: npt.NDArray[np.int32]
    positions: Offsets


class DeletionVector(NamedTuple):
    """All positions deleted from a file, as a deletion vector, in place of `vector`."""

    file: DataFile
    blob: bytes
    cardinality: int


def ends_of(units: Iterable[SegmentFiles]) -> dict[int, int]:
    """For each partition an offset below which all of its units begin."""
    ends: dict[int, int] = {}
    for unit in units:
        ends[unit.partition] = max(ends.get(unit.partition, 0), unit.segment + 1)
    return ends


def count_rows(units: Iterable[SegmentFiles]) -> int:
    """How many rows the units' files hold, the deleted ones too."""
    return sum(unit.record_count for unit in units)


def in_segments(rows: pa.Table, by: str) -> dict[tuple[int, int], pa.Table]:
    """The rows of each (partition, segment), in the order of the column `by`."""
    order = [("partition", "ascending"), ("segment", "ascending"), (by, "ascending")]
    rows = rows.sort_by(order)
    keys = np.stack([rows["partition"].to_numpy(), rows["segment"].to_numpy()])
    found, starts, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
    # Copies, since a slice takes all of the table along when it is sent to a task.
    return {
        (int(partition), int(segment)): rows.take(np.arange(start, start + count))
        for partition, segment, start, count in zip(*found, starts, counts, strict=True)
    }


def plan_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
) -> list[SegmentFiles]:
    """Segments below each partition's end offset, in offset order, as of a snapshot.

    With `starts`, only files of records that may hold an offset from there on.
    """
    loaded = java_table(spark, table)
    tasks = scan_tasks(spark, loaded, snapshot, ends, starts)
    return _units(spark, loaded, tasks, lambda partition, segment: segment < ends[partition])


def scan_tasks(
    spark: SparkSession,
    table: JavaObject,
    snapshot: int,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
) -> list[JavaObject]:
    """Iceberg's scan tasks, one a file, of the segments below each partition's end offset.

    Of very many partitions, also some files of segments that begin at the end or behind it.
    """
    expressions = iceberg_class(spark, "expressions.Expressions")
    # `and` and `in` are words of Python, so these Java methods are asked for by name.
    both, one_of = getattr(expressions, "and"), getattr(expressions, "in")

    def wanted(partition: int, end: int) -> JavaObject:
        of_partition = both(
            expressions.equal("partition", partition), expressions.lessThan("segment", end)
        )
        if starts is None or partition not in starts:
            return of_partition
        start = expressions.greaterThanOrEqual("offset", starts[partition])
        return both(of_partition, start)

    if starts is None and len(ends) > MANY_PARTITIONS:
        to_integer = java_class(spark, "java.lang.Integer")
        of_any = one_of("partition", [to_integer(partition) for partition in ends])
        below = expressions.lessThan("segment", max(ends.values()))
        return planned_tasks(table, snapshot, both(of_any, below))
    found = (wanted(partition, end) for partition, end in ends.items())
    return planned_tasks(table, snapshot, any_expression(spark, found))


def plan_with_lineage(
    spark: SparkSession, table: str, segments: Collection[tuple[int, int]]
) -> list[SegmentFiles]:
    """What these segments, (partition, segment), hold now, whose rows are to keep their ids."""
    loaded = java_table(spark, table)
    tasks = tasks_of_segments(spark, loaded, segments)
    return _units(spark, loaded, tasks, lambda *place: place in segments, has_lineage=True)


def _units(
    spark: SparkSession,
    table: JavaObject,
    tasks: Iterable[JavaObject],
    is_wanted: Callable[[int, int], bool],
    *,
    has_lineage: bool = False,
) -> list[SegmentFiles]:
    """The files of scan tasks by segment; `is_wanted` is asked with (partition, segment)."""
    parser = iceberg_class(spark, "ScanTaskParser")
    columns, store = columns_of(spark, table), store_of(spark, table)
    found: dict[tuple[int, int], list[DataFile]] = {}
    for task in tasks:
        described = json.loads(parser.toJson(task))
        place = segment_of_task(described, columns)
        if is_wanted(*place):
            file = data_file(described)
            if has_lineage:
                first_row_id = described["data-file"].get("first-row-id")
                lineage = Lineage(first_row_id, int(task.file().dataSequenceNumber()))
                file = file._replace(lineage=lineage)
            found.setdefault(place, []).append(file)
    return [
        SegmentFiles(*place, tuple(sorted(found[place])), columns, store) for place in sorted(found)
    ]


def tasks_of_segments(
    spark: SparkSession,
    table: JavaObject,
    segments: Collection[tuple[int, int]],
    snapshot: int | None = None,
) -> list[JavaObject]:
    """Scan tasks of the files of segments, (partition, segment), now or as of a snapshot."""
    if not segments:
        return []
    snapshot = snapshot or table.currentSnapshot().snapshotId()
    parser, columns = iceberg_class(spark, "ScanTaskParser"), columns_of(spark, table)
    return [
        task
        for task in planned_tasks(table, snapshot, near_segments(spark, segments))
        if segment_of_task(json.loads(parser.toJson(task)), columns) in segments
    ]


def near_segments(spark: SparkSession, segments: Collection[tuple[int, int]]) -> JavaObject:
    """Iceberg's expression for segments, (partition, segment), and for some others as well.

    Pair by pair it would be exact, and asked of each file as often as there are pairs.
    """
    expressions = iceberg_class(spark, "expressions.Expressions")
    both, one_of = getattr(expressions, "and"), getattr(expressions, "in")
    to_integer, to_long = (java_class(spark, f"java.lang.{name}") for name in ("Integer", "Long"))
    partitions, bases = map(set, zip(*segments, strict=True))
    return both(
        one_of("partition", [to_integer(partition) for partition in partitions]),
        one_of("segment", [to_long(base) for base in bases]),
    )


def planned_tasks(table: JavaObject, snapshot: int, matches: JavaObject) -> list[JavaObject]:
    """Iceberg's scan tasks, one a file, of what an expression of Iceberg's matches."""
    if table.snapshot(snapshot) is None:
        raise CommitConflictError(
            f"expected snapshot {snapshot} of {table.name()}, which the work was planned on, found "
            "that another tool expired it meanwhile; run the job again"
        )
    tasks = table.newScan().useSnapshot(snapshot).filter(matches).planFiles()
    try:
        iterator = tasks.iterator()
        found = []
        while iterator.hasNext():
            found.append(iterator.next())
        return found
    finally:
        tasks.close()


def segment_of_task(task: Mapping[str, Any], columns: Sequence[TableColumn]) -> tuple[int, int]:
    """Partition and segment of a file, also where somebody partitioned the table by more."""
    ids = {column.name: column.field_id for column in columns}
    values = {
        field["source-id"]: value
        for field, value in zip(task["spec"]["fields"], task["data-file"]["partition"], strict=True)
        if field["transform"] == "identity"
    }
    try:
        return values[ids["partition"]], values[ids["segment"]]
    except KeyError:
        raise ConfigurationError(
            f"expected {task['data-file']['file-path']} to be of one partition and segment, found "
            f"it partitioned by {[field['name'] for field in task['spec']['fields']]}; add "
            "`partition` and `segment` to the table's partition fields again and rewrite its files"
        ) from None


def data_file(task: Mapping[str, Any]) -> DataFile:
    """The file that a scan task, as Iceberg describes it in JSON, reads."""
    deletes, file_format = task["delete-files"], task["data-file"]["file-format"]
    if file_format.lower() != "parquet":
        raise ConfigurationError(
            f"expected {task['data-file']['file-path']} to be Parquet, found {file_format}; set "
            "write.format.default=parquet on its table, and rewrite it with rewrite_data_files"
        )
    vector = None
    if deletes:
        (delete,) = deletes
        vector = Vector(
            delete["file-path"],
            delete["content-offset"],
            delete["content-size-in-bytes"],
            delete["record-count"],
        )
    file = task["data-file"]
    return DataFile(file["file-path"], file["record-count"], file["file-size-in-bytes"], vector)


def read_segment(
    unit: SegmentFiles, columns: Sequence[str] | None, by: str = "offset"
) -> SegmentRows:
    """The segment's live rows in the order of the column `by`; only `columns`, None for all."""
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
    """All columns of the rows at these ascending positions; only row groups that hold any."""
    tables, start = [], 0
    with _opened(unit.store, file) as opened:
        for group in range(opened.metadata.num_row_groups):
            end = start + opened.metadata.row_group(group).num_rows
            within = positions[np.searchsorted(positions, start) : np.searchsorted(positions, end)]
            if len(within):
                wanted = np.zeros(end - start, np.bool_)
                wanted[within - start] = True
                rows = read_file(opened.subset(row_group_ids=[group]), unit.columns)
                tables.append(rows.filter(pa.array(wanted)))
            start = end
    return together(tables, unit.columns)


def live_groups(unit: SegmentFiles, file: DataFile) -> Iterator[pa.Table]:
    """The file's live rows in its order, a row group each, with all columns and their lineage."""
    dead = np.empty(0, np.int64) if file.vector is None else read_vector(unit.store, file.vector)
    columns, start = (*unit.columns, *LINEAGE), 0
    with _opened(unit.store, file) as opened:
        for group in range(opened.metadata.num_row_groups):
            end = start + opened.metadata.row_group(group).num_rows
            live = np.ones(end - start, np.bool_)
            live[dead[(dead >= start) & (dead < end)] - start] = False
            rows = read_file(opened.subset(row_group_ids=[group]), columns)
            rows = rows.filter(pa.array(live))
            yield with_lineage(rows, start + np.flatnonzero(live), file.lineage)
            start = end


def _read_file(
    store: Store, file: DataFile, columns: Sequence[TableColumn]
) -> tuple[pa.Table, Offsets]:
    wanted = [*columns, *LINEAGE] if file.lineage else columns
    with _opened(store, file) as opened:
        table = read_file(opened, wanted)
    positions = np.arange(table.num_rows, dtype=np.int64)
    if file.vector is not None:
        live = np.ones(table.num_rows, np.bool_)
        live[read_vector(store, file.vector)] = False
        table, positions = table.filter(pa.array(live)), np.flatnonzero(live)
    return with_lineage(table, positions, file.lineage), positions


@contextmanager
def _opened(store: Store, file: DataFile) -> Iterator[ParquetFileFragment]:
    """The file, of which the block reads what it wants."""
    with _there_when_planned(file.path), store.located(file.path):
        yield _fragment(store, file.path, file.size_bytes)


@lru_cache(maxsize=256)
def _fragment(store: Store, path: str, size_bytes: int) -> ParquetFileFragment:
    """The file by its size; it keeps its footer, which a job else reads at each of its looks."""
    with store.located(path) as (file_system, path_inside):
        return _PARQUET.make_fragment(path_inside, file_system, file_size=size_bytes)


@contextmanager
def _there_when_planned(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CommitConflictError(
            f"expected {path}, which the table held when the work was planned, found that another "
            "tool replaced and deleted it meanwhile; run the job again"
        ) from error


def read_vector(store: Store, vector: Vector) -> Offsets:
    """The positions that a deletion vector names."""
    # A length and a magic number before the bitmap, a checksum after it.
    bitmap = BitMap64.deserialize(read_blob(store, vector)[8:-4])
    return np.frombuffer(bitmap.to_array(), np.int64)


def read_blob(store: Store, vector: Vector) -> bytes:
    """A deletion vector as its Puffin file holds it."""
    with _there_when_planned(vector.path):
        return store.read_range(vector.path, vector.position, vector.size_bytes)


def deletion_of(store: Store, file: DataFile, positions: Offsets) -> DeletionVector:
    """What deletes `positions` too from a file."""
    if file.vector is not None:
        positions = np.union1d(positions, read_vector(store, file.vector))
    bitmap = BitMap64(positions.astype(np.uint64))
    body = _MAGIC + bitmap.serialize()
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return DeletionVector(file, blob, len(bitmap))


def write_rows(store: Store, path: str, rows: pa.Table) -> None:
    """Write rows that `read_segment` has read to a new file; their field ids are kept."""
    with store.writing(path) as stream:
        pq.write_table(rows, stream, compression="zstd")


def write_groups(store: Store, path: str, groups: Iterable[pa.Table]) -> bool:
    """The same, a row group at a time; False and no file where there is no row."""
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
