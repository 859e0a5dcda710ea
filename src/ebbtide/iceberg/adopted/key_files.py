"""Read the keys of an adopted table's Parquet files as columns.

Spark would pass each row through the JVM with its file's path, which takes most of a round's time.
Iceberg's scan lists the files and their deletes. Iceberg's own reader (rows.py) reads the table if
it has equality deletes, other file formats, or a file without one of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table, open_apart
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.data_files import READING, WHOLE, numbers_in, opened_file
from ebbtide.iceberg.file_commits import Commit, commit_update
from ebbtide.layouts.layout import Column
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.expressions import IcebergExpressions
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, texts
from ebbtide.state.covered_offsets import OffsetRange
from ebbtide.stores.store import Store

# The data files of an adopted table and their deletes, from Iceberg's scan: it matches deletes of
# every kind to data files, and prunes files by their bounds. These objects stay on the driver.


FUNCTION = "java.util.function.Function"


class KeyRange(NamedTuple):
    """The least and the greatest dirty key, of a type whose order Iceberg's bounds follow."""

    least: Any
    greatest: Any


class Wanted(NamedTuple):
    """Rows to read: those that meet any of these conditions."""

    first_offset: int | None = None  # at or above it
    keys: KeyRange | None = None
    has_no_key: bool = False  # True: rows without a key
    tombstones: Sequence[OffsetRange] = ()  # tombstones at offsets in these ranges


class ReadFiles(NamedTuple):
    """Number of data files that a round reads, and of all files of the topic in the snapshot."""

    read: int = 0
    all: int = 0


class FileScan(NamedTuple):
    """A scan of an adopted table's snapshot that prunes files by their bounds."""

    rows: AdoptedRows
    table: Table  # opened apart, so that it stays at one version
    snapshot: int

    @classmethod
    def of(cls, rows: AdoptedRows, snapshot: int) -> FileScan:
        """Open the newest version of the table."""
        return cls(rows, open_apart(rows.spark, rows.table), snapshot)

    def tasks(self, wanted: Wanted | None = None) -> Any:
        """Return a Java list of scan tasks: the topic's files that may hold wanted rows."""
        scan, current, layout = self.table.java.newScan(), self.table.current, self.rows.layout
        # A scan without a snapshot uses the current column names.
        if current is None or current.id != self.snapshot:
            scan = scan.useSnapshot(self.snapshot)
        if wanted is not None:
            scan = scan.filter(self._condition(wanted))
        if self.rows.in_table is not None:
            assert layout.topic is not None
            scan = scan.filter(self._java.equal(layout.topic.name, self.rows.in_table))
        return tasks_of(self.rows.spark, scan)

    @property
    def _iceberg(self) -> IcebergExpressions:
        return IcebergExpressions.of(self.rows.spark)

    @property
    def _java(self) -> Any:
        return self._iceberg.java

    def _condition(self, wanted: Wanted) -> Any:
        """Return the condition of wanted rows, which the scan compares with the bounds of files."""
        java, layout = self._java, self.rows.layout
        assert layout.key is not None
        key, offset = layout.key.name, layout.offset.name
        conditions = [java.alwaysFalse()]
        if wanted.first_offset is not None:
            conditions.append(java.greaterThanOrEqual(offset, wanted.first_offset))
        if wanted.keys is not None:
            at_least = java.greaterThanOrEqual(key, wanted.keys.least)
            at_most = java.lessThanOrEqual(key, wanted.keys.greatest)
            conditions.append(self._iceberg.both(at_least, at_most))
        if wanted.has_no_key:
            conditions.append(self._is_null(layout.key))
        for offsets in wanted.tombstones:
            first = java.greaterThanOrEqual(offset, offsets.first)
            is_within = self._iceberg.both(first, java.lessThan(offset, offsets.end))
            conditions.append(self._iceberg.both(self._may_be_tombstone(), is_within))
        return reduce(self._iceberg.either, conditions)

    def _may_be_tombstone(self) -> Any:
        layout, is_tombstone = self.rows.layout, self._java.alwaysFalse()
        if layout.values:
            is_tombstone = reduce(self._iceberg.both, map(self._is_null, layout.values))
        if layout.mark is None:
            return is_tombstone
        has_mark = self._java.equal(layout.mark.name, self.rows.ids.mark_text)
        return self._iceberg.either(is_tombstone, has_mark)

    def _is_null(self, column: Column) -> Any:
        """Return the condition; always true for a nested column, which has no count of nulls."""
        is_nested = column.type in ("struct", "list", "map")
        return self._java.alwaysTrue() if is_nested else self._java.isNull(column.name)


def count_read_files(scan: FileScan, wanted: Wanted) -> ReadFiles:
    """Count the files of the topic, and those that may hold wanted rows.

    Without a range of keys, every file may hold a dirty key.
    """
    in_all = int(scan.tasks().size())
    reads_all = wanted.first_offset is not None and wanted.keys is None
    return ReadFiles(in_all if reads_all else int(scan.tasks(wanted).size()), in_all)


def tasks_of(spark: SparkSession, scan: Any) -> Any:
    """Return the tasks of an Iceberg scan as a Java list."""
    planned = scan.planFiles()
    try:
        lists = iceberg_class(spark, "relocated.com.google.common.collect.Lists")
        return lists.newArrayList(planned)
    finally:
        planned.close()


def texts_of_files(spark: SparkSession, tasks: Any, names: Iterable[str]) -> list[list[str]]:
    """Call methods of each task's data file; return one list of texts per method."""
    files = JavaMethod.of(spark, ICEBERG + "ContentScanTask", "file").map(tasks)
    methods = (JavaMethod.of(spark, ICEBERG + "ContentFile", name) for name in names)
    return [texts(spark, method.map(files)) for method in methods]


class LeavingFiles(NamedTuple):
    """A data file with rows to remove: Iceberg's scan task, and the positions of those rows."""

    task: Any
    path: str
    positions: BitMap64

    @property
    def file(self) -> Any:
        """Iceberg's object of the data file."""
        return self.task.file()


def files_of(
    spark: SparkSession, table: Any, snapshot: int, positions: Mapping[str, BitMap64]
) -> list[LeavingFiles]:
    """Return each file's scan task and the positions of the rows to remove.

    Raise CommitConflictError if the snapshot lacks one of the files.
    """
    tasks = tasks_of(spark, table.newScan().useSnapshot(snapshot))
    (paths,) = texts_of_files(spark, tasks, ["location"])
    # A large file may be several tasks; each has the whole file, and all of its deletes.
    numbers = {path: number for number, path in enumerate(paths)}
    if missing := sorted(positions.keys() - numbers.keys()):
        raise CommitConflictError(
            f"expected data file {missing[0]}, which has rows to remove, in snapshot {snapshot} of "
            f"{table.name()}, found none: another writer replaced it. Run the job again"
        )
    return [
        LeavingFiles(tasks.get(numbers[path]), path, of_file) for path, of_file in positions.items()
    ]


def emptied_of(
    spark: SparkSession, table: Any, files: Iterable[LeavingFiles]
) -> tuple[list[LeavingFiles], list[LeavingFiles]]:
    """Return the files that lose all their live rows, then the files that retain some."""
    emptied: list[LeavingFiles] = []
    others: list[LeavingFiles] = []
    for leaving in files:
        rows, before = int(leaving.file.recordCount()), position_deletes(leaving.task)
        left = rows - len(leaving.positions)
        if before and left:
            left -= int(deleted_positions(spark, table, before, leaving.path).cardinality())
        (others if left else emptied).append(leaving)
    return emptied, others


def own_deletes(spark: SparkSession, task: Any) -> list[Any]:
    """Return the delete files of a task that apply to its data file alone."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    return [deletes for deletes in position_deletes(task) if scope.isFileScoped(deletes)]


def position_deletes(task: Any) -> list[Any]:
    """Return the position deletes and deletion vectors among a task's delete files."""
    return [
        deletes
        for deletes in items(task.deletes())
        if str(deletes.content().toString()) == "POSITION_DELETES"
    ]


def deleted_positions(spark: SparkSession, table: Any, deletes: Sequence[Any], path: str) -> Any:
    """Return the positions that delete files hold for a data file, as Iceberg's index."""
    opened = JavaMethod.of(spark, ICEBERG + "io.FileIO", "newInputFile", ICEBERG + "DeleteFile")
    loader = iceberg_class(spark, "data.BaseDeleteLoader")(opened.on(table.io()).as_a(FUNCTION))
    listed = java_class(spark, "java.util.ArrayList")()
    for one in deletes:
        listed.add(one)
    return loader.loadPositionDeletes(listed, path)


def commit_of(
    spark: SparkSession, table: Any, update: Any, properties: Mapping[str, str]
) -> Commit:
    """Return the commit of an Iceberg update, with ebbtide's properties in its summary."""
    for name, value in own_summary(properties).items():
        update = update.set(name, value)
    return partial(commit_update, spark, table, update)


_FIELD_ID = b"PARQUET:field_id"
_ENCRYPTED = "encryption.key-id"
_KEY_TYPES = frozenset({"binary", "string"})
_NOWHERE = -1  # of a row without partition or offset


class KeyFile(NamedTuple):
    """A data file, and the positions of its deleted rows as a serialized bitmap."""

    path: str
    size_bytes: int
    record_count: int
    dead: bytes | None


class KeyColumns(NamedTuple):
    """Field ids of the columns `partition`, `offset`, `key`, and `topic` in a shared table."""

    ids: Mapping[str, int]
    in_table: str | None = None  # of a table that several topics share: the topic to read

    @classmethod
    def of(cls, scan: FileScan) -> KeyColumns | None:
        """Return the columns of the scan's snapshot, or None if only Iceberg can read it."""
        layout, metadata = scan.rows.layout, scan.table.metadata
        made = metadata.snapshots.get(scan.snapshot)
        if layout.key is None or layout.key.type not in _KEY_TYPES or made is None:
            return None
        is_now = made == scan.table.current or made.schema_id == metadata.schema["schema-id"]
        if not is_now or _ENCRYPTED in metadata.properties:
            return None
        columns = {"partition": layout.partition, "offset": layout.offset, "key": layout.key}
        if scan.rows.in_table is not None:
            assert layout.topic is not None
            columns["topic"] = layout.topic
        ids = {name: column.field_id for name, column in columns.items()}
        return cls(ids, scan.rows.in_table)


class KeyRows(NamedTuple):
    """Live rows of a file, in its order. A row without partition or offset has the partition -1."""

    positions: Int64s
    partitions: Int64s
    offsets: Int64s
    keys: pa.Array  # of bytes

    def where(self, condition: Bools) -> KeyRows:
        """Return the rows that meet the condition."""
        if condition.all():
            return self
        return KeyRows(
            self.positions[condition],
            self.partitions[condition],
            self.offsets[condition],
            self.keys.filter(pa.array(condition)),
        )


def find_key_files(scan: FileScan, wanted: Wanted) -> list[KeyFile] | None:
    """Return the files that may hold wanted rows, by their bounds.

    Return None if one of them needs Iceberg's own reader.
    """
    spark, tasks = scan.rows.spark, scan.tasks(wanted)
    names = ("format", "location", "fileSizeInBytes", "recordCount")
    formats, paths, sizes, counts = texts_of_files(spark, tasks, names)
    if set(formats) - {"PARQUET"}:
        return None
    deletes = JavaMethod.of(spark, ICEBERG + "FileScanTask", "deletes").map(tasks)
    deleting = texts(spark, JavaMethod.of(spark, "java.util.List", "size").map(deletes))
    found = {}
    for number, path in enumerate(paths):
        dead = None
        if int(deleting[number]):
            by_position = position_deletes(tasks.get(number))
            if len(by_position) < int(deleting[number]):
                return None
            index = deleted_positions(spark, scan.table.java, by_position, path)
            if not index.isEmpty():
                # A length and a magic number before the bitmap, a checksum after it (Puffin spec).
                dead = bytes(index.serialize().array())[8:-4]
        found[path] = KeyFile(path, int(sizes[number]), int(counts[number]), dead)
    return list(found.values())


def read_keys(store: Store, file: KeyFile, columns: KeyColumns) -> KeyRows | None:
    """Read a file's live rows, or return None if it lacks one of the columns."""
    with opened_file(store, file.path, file.size_bytes) as opened:
        paths = dict(_paths(opened.physical_schema, ()))
        if not paths.keys() >= set(columns.ids.values()):
            return None
        fields = {name: pc.field(*paths[field_id]) for name, field_id in columns.ids.items()}
        table = opened.to_table(
            columns=fields, use_threads=False, batch_size=WHOLE, fragment_scan_options=READING
        )
    partitions, offsets = (_numbers(table[name]) for name in ("partition", "offset"))
    partitions = np.where(offsets == _NOWHERE, _NOWHERE, partitions)
    keys = table["key"].cast(pa.binary()).combine_chunks()
    rows = KeyRows(np.arange(table.num_rows, dtype=np.int64), partitions, offsets, keys)
    is_wanted = np.ones(table.num_rows, np.bool_)
    if columns.in_table is not None:
        is_of_topic = pc.fill_null(pc.equal(table["topic"], columns.in_table), False)
        is_wanted = np.array(is_of_topic.to_numpy(), np.bool_)
    if file.dead is not None:
        is_wanted[numbers_in(BitMap64.deserialize(file.dead))] = False
    return rows.where(is_wanted)


def _numbers(column: pa.ChunkedArray) -> Int64s:
    filled = column.cast(pa.int64())
    if filled.null_count:
        filled = pc.fill_null(filled, _NOWHERE)
    return np.asarray(filled.to_numpy(), np.int64)


def _paths(
    fields: Iterable[pa.Field], parents: tuple[str, ...]
) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Yield each column's field id and path of names, columns in structs included."""
    for field in fields:
        metadata: Mapping[bytes, bytes] = field.metadata or {}
        path = (*parents, field.name)
        if _FIELD_ID in metadata:
            yield int(metadata[_FIELD_ID]), path
        if pa.types.is_struct(field.type):
            yield from _paths((field.type.field(n) for n in range(field.type.num_fields)), path)
