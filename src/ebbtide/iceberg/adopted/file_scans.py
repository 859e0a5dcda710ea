"""The data files of an adopted table and their deletes, as Iceberg's scan has them.

Iceberg matches deletes of every kind to data files and prunes files by their bounds. These objects
stay on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table, open_apart
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.applied_commits import commit_update
from ebbtide.iceberg.files.file_commits import Commit
from ebbtide.log.adopted.horizons import OffsetRange
from ebbtide.log.adopted.layout import Column
from ebbtide.spark.conditions import IcebergExpressions
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, texts

FUNCTION = "java.util.function.Function"


class KeyRange(NamedTuple):
    """The least and the greatest dirty key; of types whose order Iceberg's bounds know."""

    least: Any
    greatest: Any


class Wanted(NamedTuple):
    """Rows to be read: at or above an offset, with keys in a range, without a key, or tombstones.

    Tombstones are those at offsets in one of some ranges.
    """

    first_offset: int | None = None
    keys: KeyRange | None = None
    has_no_key: bool = False
    tombstones: Sequence[OffsetRange] = ()


class ReadFiles(NamedTuple):
    """Data files that a round reads, of all in the snapshot that may be of its topic."""

    read: int = 0
    all: int = 0


class FileScan(NamedTuple):
    """A snapshot of an adopted table, whose files are pruned by their bounds."""

    rows: AdoptedRows
    table: Table  # with an object of its own, which stays at one version
    snapshot: int

    @classmethod
    def of(cls, rows: AdoptedRows, snapshot: int) -> FileScan:
        """Open the newest version of the table."""
        return cls(rows, open_apart(rows.spark, rows.table), snapshot)

    def tasks(self, wanted: Wanted | None = None) -> Any:
        """Return a Java list of the files that may hold wanted rows, of those of the topic."""
        scan, current, layout = self.table.java.newScan(), self.table.current, self.rows.layout
        # A scan of the newest snapshot knows columns by their names now.
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
        """Return a condition of rows that Iceberg's scan holds against the bounds of files."""
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
        """Return the condition; a column with others in it has no count of nulls."""
        is_nested = column.type in ("struct", "list", "map")
        return self._java.alwaysTrue() if is_nested else self._java.isNull(column.name)


def count_read_files(scan: FileScan, wanted: Wanted) -> ReadFiles:
    """Count the files of the topic, and those that may hold wanted rows.

    Without a range of keys every file may hold a dirty one.
    """
    in_all = int(scan.tasks().size())
    reads_all = wanted.first_offset is not None and wanted.keys is None
    return ReadFiles(in_all if reads_all else int(scan.tasks(wanted).size()), in_all)


def tasks_of(spark: SparkSession, scan: Any) -> Any:
    """Return the tasks of one of Iceberg's scans as a Java list."""
    planned = scan.planFiles()
    try:
        lists = iceberg_class(spark, "relocated.com.google.common.collect.Lists")
        return lists.newArrayList(planned)
    finally:
        planned.close()


def texts_of_files(spark: SparkSession, tasks: Any, names: Iterable[str]) -> list[list[str]]:
    """Return what methods of each task's data file return, by method."""
    files = JavaMethod.of(spark, ICEBERG + "ContentScanTask", "file").map(tasks)
    methods = (JavaMethod.of(spark, ICEBERG + "ContentFile", name) for name in names)
    return [texts(spark, method.map(files)) for method in methods]


class LeavingRows(NamedTuple):
    """A data file as Iceberg's scan has it, and the positions of the rows that leave it."""

    task: Any
    path: str
    positions: BitMap64

    @property
    def file(self) -> Any:
        """Iceberg's object of the data file."""
        return self.task.file()


def files_of(
    spark: SparkSession, table: Any, snapshot: int, positions: Mapping[str, BitMap64]
) -> list[LeavingRows]:
    """Return Iceberg's scan task of each file, with what leaves it.

    CommitConflictError where a snapshot does not have one of the files.
    """
    tasks = tasks_of(spark, table.newScan().useSnapshot(snapshot))
    (paths,) = texts_of_files(spark, tasks, ["location"])
    # A large file may be several tasks; each has the whole file, and all of its deletes.
    numbers = {path: number for number, path in enumerate(paths)}
    if missing := sorted(positions.keys() - numbers.keys()):
        raise CommitConflictError(
            f"expected {missing[0]} in {table.name()}, which rows are to leave, found none in "
            f"snapshot {snapshot}; run the job again"
        )
    return [
        LeavingRows(tasks.get(numbers[path]), path, of_file) for path, of_file in positions.items()
    ]


def emptied_of(
    spark: SparkSession, table: Any, files: Iterable[LeavingRows]
) -> tuple[list[LeavingRows], list[LeavingRows]]:
    """Return the files that keep no row, and the others.

    One keeps none if all rows leave but those that others deleted.
    """
    emptied: list[LeavingRows] = []
    others: list[LeavingRows] = []
    for leaving in files:
        rows, before = int(leaving.file.recordCount()), position_deletes(leaving.task)
        left = rows - len(leaving.positions)
        if before and left:
            left -= int(deleted_positions(spark, table, before, leaving.path).cardinality())
        (others if left else emptied).append(leaving)
    return emptied, others


def own_deletes(spark: SparkSession, task: Any) -> list[Any]:
    """Return the deletions of a task that are for its file alone."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    return [deletes for deletes in position_deletes(task) if scope.isFileScoped(deletes)]


def position_deletes(task: Any) -> list[Any]:
    """Return the position deletes and vectors among the delete files of a task."""
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
    """Return what commits one of Iceberg's updates of a table, with ebbtide's summary."""
    for name, value in own_summary(properties).items():
        update = update.set(name, value)
    return partial(commit_update, spark, table, update)
