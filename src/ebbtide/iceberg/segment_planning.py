"""Plan on the driver, from manifests, which data files have which segments of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import Table, find_table, open_table
from ebbtide.iceberg.data_files import (
    DataFile,
    Lineage,
    SegmentFiles,
    Vector,
    whole_file,
)
from ebbtide.iceberg.manifests import (
    ColumnRange,
    FileBounds,
    ListedFile,
    SegmentPlace,
    StoredBounds,
    WantedFiles,
    files_with_bounds,
    wanted_files,
)
from ebbtide.iceberg.metadata import TableColumn
from ebbtide.iceberg.topics import own_spec_id
from ebbtide.moments import to_us
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.expressions import IcebergExpressions

_NONE = (0, -1)  # an empty range


class PlannedFile(NamedTuple):
    """A data file of a segment, and its deletion vector, with their manifest entries."""

    file: DataFile
    place: SegmentPlace
    listed: ListedFile
    vector: ListedFile | None


def plan_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
    *,
    bound: str | None = None,
) -> list[SegmentFiles]:
    """Plan the segments below each partition's end offset, in offset order, as of a snapshot.

    With `starts`, only files that may have a record at or above the start are planned. `bound`
    names a column of whole numbers, whose largest value each file then carries.
    """
    opened = open_table(spark, table)
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    has_bounds = starts is not None or bound is not None
    planned = planned_files(opened, snapshot, below(ends), has_bounds=has_bounds)
    if starts is not None:
        planned = [
            planned_file
            for planned_file in planned
            if _bounds(planned_file).upper.get(ids["offset"], MAX_OFFSET)
            >= starts.get(planned_file.place[0], 0)
        ]
    if bound is not None:
        planned = [
            planned_file._replace(
                file=planned_file.file._replace(last=_bounds(planned_file).upper.get(ids[bound]))
            )
            for planned_file in planned
        ]
    return _in_segments(opened, planned)


class ColumnBounds(NamedTuple):
    """The bounds of a file's columns, by name."""

    bounds: StoredBounds
    ids: Mapping[str, int]

    def upper(self, name: str) -> int | None:
        """Return an upper bound of a column of whole numbers or booleans, or None."""
        return self.bounds.upper.get(self.ids[name])

    def lower(self, name: str) -> int | None:
        """Return a lower bound of a column of whole numbers or booleans, or None."""
        return self.bounds.lower.get(self.ids[name])

    def has_nulls(self, name: str) -> bool:
        """Return whether a row may have null in the column."""
        return self.ids[name] not in self.bounds.full

    def may_be_below(self, name: str, number: int) -> bool:
        """Return whether a row may have a number below this one in the column."""
        lower = self.lower(name)
        return self.ids[name] not in self.bounds.empty and (lower is None or lower < number)


def plan_where(
    spark: SparkSession,
    table: str,
    snapshot: int,
    ends: Mapping[int, int],
    may_hold: Callable[[int, ColumnBounds], bool],
) -> list[SegmentFiles]:
    """Plan the segments below each partition's end offset, with only the wanted files.

    `may_hold` gets a file's partition and bounds, and returns whether the file is wanted.
    """
    opened = open_table(spark, table)
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    planned = planned_files(opened, snapshot, below(ends), has_bounds=True)
    wanted = (
        planned_file
        for planned_file in planned
        if may_hold(planned_file.place[0], ColumnBounds(_bounds(planned_file), ids))
    )
    return _in_segments(opened, wanted)


def plan_before(
    spark: SparkSession,
    table: str,
    snapshot: int,
    partitions: Collection[int],
    times: Collection[str],
    before_us: int,
) -> list[SegmentFiles]:
    """Plan segments with only the files that may have a time before `before_us`, us since 1970.

    `times` names timestamp columns; a time in one of them is enough.
    """

    def may_be_before(_partition: int, columns: ColumnBounds) -> bool:
        return any(columns.may_be_below(name, before_us) for name in times)

    ends = dict.fromkeys(partitions, MAX_OFFSET)
    return plan_where(spark, table, snapshot, ends, may_be_before)


def plan_with_lineage(
    spark: SparkSession, table: str, segments: Collection[SegmentPlace]
) -> list[SegmentFiles]:
    """Plan the current files of these segments, with the lineage of their rows."""
    opened = open_table(spark, table)
    if not segments or opened.current is None:
        return []
    planned = planned_files(opened, opened.current.id, among(segments))
    return _in_segments(opened, map(_with_lineage, planned))


def _with_lineage(planned: PlannedFile) -> PlannedFile:
    lineage = Lineage(planned.listed.first_row_id, planned.listed.sequence_number)
    return planned._replace(file=planned.file._replace(lineage=lineage))


class Difference(NamedTuple):
    """Files that only the earlier or only the later of two snapshots has, by segment."""

    earlier: list[SegmentFiles]
    later: list[SegmentFiles]


def plan_difference(
    spark: SparkSession,
    table: str,
    earlier: int | None,
    later: int | None,
    partitions: Collection[int],
) -> Difference:
    """Plan the files of partitions in which two snapshots differ, by path or deletion vector.

    The files have the lineage of their rows. A snapshot of None has no file.
    """
    opened, wanted = open_table(spark, table), below(dict.fromkeys(partitions, MAX_OFFSET))
    sides = [
        [] if snapshot is None else planned_files(opened, snapshot, wanted)
        for snapshot in (earlier, later)
    ]
    files = [{planned_file.file for planned_file in side} for side in sides]
    only = [
        [_with_lineage(planned_file) for planned_file in side if planned_file.file not in others]
        for side, others in zip(sides, reversed(files), strict=True)
    ]
    return Difference(*(_in_segments(opened, planned) for planned in only))


def below(ends: Mapping[int, int]) -> WantedFiles:
    """Want the segments that begin below their partition's end offset."""
    last = max(ends.values(), default=0) - 1
    within = ColumnRange(_range(ends), (0, last))
    return WantedFiles(within, lambda place: place[0] in ends and place[1] < ends[place[0]])


def among(segments: Collection[SegmentPlace]) -> WantedFiles:
    """Want exactly these segments."""
    partitions, bases = ({place[at] for place in segments} for at in (0, 1))
    return WantedFiles(ColumnRange(_range(partitions), _range(bases)), segments.__contains__)


def _range(numbers: Iterable[int]) -> tuple[int, int]:
    numbers = list(numbers)
    return (min(numbers), max(numbers)) if numbers else _NONE


def planned_files(
    table: Table, snapshot: int, wanted: WantedFiles, *, has_bounds: bool = False
) -> list[PlannedFile]:
    """Return the data files of wanted segments in a snapshot of the table.

    Raise CommitConflictError if the snapshot is expired, and ConfigurationError for a file that
    ebbtide cannot read.
    """
    made = table.metadata.existing(snapshot, str(table))
    listed = wanted_files(table, made, wanted, own_spec_id(table), has_bounds=has_bounds)
    vectors = {file.referenced: file for file in listed if not file.is_data}
    for deletes in vectors.values():
        if deletes.blob is None:
            raise ConfigurationError(
                f"expected only deletion vectors among the delete files of {table}, found "
                f"{deletes.path}, which another tool wrote. Use that tool to rewrite the data "
                "files from which it deletes rows"
            )
    return [_planned(file, vectors.get(file.path)) for file in listed if file.is_data]


def _planned(file: ListedFile, vector: ListedFile | None) -> PlannedFile:
    """Return a file with its vector. Raise ConfigurationError if ebbtide cannot read it."""
    if file.place is None:
        raise ConfigurationError(
            f"expected {file.path} to be partitioned by `partition` and `segment`, found it "
            f"partitioned by {list(file.partition)}. Add both to the table's partition fields "
            "again, and rewrite its files"
        )
    if file.format.lower() != "parquet":
        raise ConfigurationError(
            f"expected {file.path} to be Parquet, found {file.format.lower()}. Set "
            "write.format.default=parquet on its table, and rewrite it with rewrite_data_files"
        )
    deleted = None
    if vector is not None:
        assert vector.blob is not None
        deleted = Vector(vector.path, *vector.blob, vector.rows)
    return PlannedFile(
        DataFile(file.path, file.rows, file.size_bytes, deleted), file.place, file, vector
    )


def _in_segments(table: Table, planned: Iterable[PlannedFile]) -> list[SegmentFiles]:
    files: dict[SegmentPlace, list[DataFile]] = {}
    for planned_file in planned:
        files.setdefault(planned_file.place, []).append(planned_file.file)
    columns, store = table.metadata.columns, table.store
    return [
        SegmentFiles(*place, tuple(sorted(files[place])), columns, store) for place in sorted(files)
    ]


def _bounds(planned: PlannedFile) -> StoredBounds:
    assert planned.listed.bounds is not None
    return planned.listed.bounds


def planned_tasks(table: Table, snapshot: int, matches: JavaObject) -> list[JavaObject]:
    """Return Iceberg's own scan tasks, one per file, for an expression that few files match.

    Each file takes several calls to the JVM.
    """
    table.metadata.existing(snapshot, str(table))
    tasks = table.java.newScan().useSnapshot(snapshot).filter(matches).planFiles()
    try:
        iterator = tasks.iterator()
        planned = []
        while iterator.hasNext():
            planned.append(iterator.next())
        return planned
    finally:
        tasks.close()


def near_segments(spark: SparkSession, segments: Collection[SegmentPlace]) -> JavaObject:
    """Return an Iceberg expression that matches these segments, and maybe more.

    An exact expression, pair by pair, would be evaluated against each file once per pair.
    """
    expressions = IcebergExpressions.of(spark)
    partitions, bases = (sorted({place[at] for place in segments}) for at in (0, 1))
    return expressions.both(
        expressions.one_of("partition", partitions), expressions.one_of("segment", bases)
    )


# Read the few rows of one of ebbtide's own tables that a job asks for.
#
# A first Spark query would take a second of CPU time, and Iceberg's scan several messages to the
# JVM per file. Files never change, so rows that were read are cached with the open table.


class RowsAsked(NamedTuple):
    """Rows with one of these texts in a column (None: null), optionally from a time on."""

    column: str
    texts: frozenset[str | None]
    since: tuple[str, datetime] | None = None  # a timestamp column, and the earliest time

    def may_be_in(self, file: FileBounds, ids: Mapping[str, int]) -> bool:
        """Return whether a file may have such a row, by its bounds."""
        if not any(file.may_hold(ids[self.column], text) for text in self.texts):
            return False
        if self.since is None:
            return True
        column, first = self.since
        return file.reaches(ids[column], to_us(first))

    def among(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are asked for."""
        column = rows[self.column]
        known = pa.array([text for text in self.texts if text is not None], pa.string())
        is_asked = pc.is_in(column, value_set=known)
        if None in self.texts:
            is_asked = pc.or_(is_asked, pc.is_null(column))
        if self.since is not None:
            name, first = self.since
            at_or_after = pc.greater_equal(rows[name], pa.scalar(first, rows[name].type))
            is_asked = pc.and_(is_asked, pc.fill_null(at_or_after, False))
        return filtered(rows, is_asked)


def filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows where the mask is true; the same table, not copied, if it is everywhere."""
    return rows if pc.sum(mask).as_py() == rows.num_rows else rows.filter(mask)


class AskedFile(NamedTuple):
    """A file of a small table that may have asked rows."""

    table: Table
    bounds: FileBounds
    ids: Mapping[str, int]  # of the table's columns
    has_deletes: bool  # a delete file may delete some of its rows

    def only_text(self, name: str) -> str | None:
        """Return the text that each row has in a column, or None if it is not certain."""
        column = self.ids.get(name)
        return None if column is None else self.bounds.only_text(column)

    def largest(self, name: str) -> int | None:
        """Return an upper bound of a column of whole numbers or times (us), or None."""
        column = self.ids.get(name)
        return None if column is None else self.bounds.largest(column)

    def columns(self, names: Collection[str] | None = None) -> tuple[TableColumn, ...]:
        """Return the columns with these names that the table has. `names` None: all of them."""
        columns = self.table.metadata.columns
        return tuple(column for column in columns if names is None or column.name in names)

    def rows(self, names: Collection[str] | None = None) -> pa.Table:
        """Return all its rows; they are cached with the open table."""
        columns, file, table = self.columns(names), self.bounds, self.table
        key = (file.path, columns)
        if key not in table.kept:
            table.kept[key] = whole_file(table.store, file.path, file.size_bytes, columns)
        rows: pa.Table = table.kept[key]
        return rows


def asked_files(spark: SparkSession, table: str, asked: RowsAsked) -> Iterator[AskedFile]:
    """Yield each file that may have asked rows; nothing if the table does not exist."""
    opened = find_table(spark, table)
    if opened is None or opened.current is None:
        return
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    files = files_with_bounds(opened, opened.current)
    deletes = [file.referenced for file in files if not file.is_data]
    for file in files:
        if file.is_data and asked.may_be_in(file, ids):
            yield AskedFile(opened, file, ids, None in deletes or file.path in deletes)


class FileRows(NamedTuple):
    """The rows of a file that were asked for."""

    rows: pa.Table
    has_deletes: bool  # a delete file may delete some of them


def matching_files(
    spark: SparkSession, table: str, asked: RowsAsked, columns: Collection[str] | None = None
) -> Iterator[FileRows]:
    """Yield the asked rows of each file that has some; nothing if the table does not exist.

    `columns` None: all columns.
    """
    for file in asked_files(spark, table, asked):
        rows = asked.among(file.rows(columns))
        if rows.num_rows:
            yield FileRows(rows, file.has_deletes)
