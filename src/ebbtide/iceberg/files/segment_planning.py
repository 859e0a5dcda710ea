"""Plan on the driver, from manifests, which data files hold which segments of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.files.data_files import DataFile, SegmentFiles, Vector
from ebbtide.iceberg.files.manifests import (
    Bounds,
    ListedFile,
    Range,
    SegmentPlace,
    Wanted,
    wanted_files,
)
from ebbtide.iceberg.files.row_lineage import Lineage
from ebbtide.iceberg.topics import own_spec_id
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.conditions import IcebergExpressions

_NONE = (0, -1)  # a range without anything in it


class PlannedFile(NamedTuple):
    """A data file of a segment as manifests list it, and its deletion vector."""

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

    With `starts`, only files that may hold a record at or above the start are planned. `bound`
    names a column of whole numbers; each file then carries its largest value.
    """
    opened = open_table(spark, table)
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    has_bounds = starts is not None or bound is not None
    planned = planned_files(opened, snapshot, below(ends), has_bounds=has_bounds)
    if starts is not None:
        planned = [
            of
            for of in planned
            if _bounds(of).upper.get(ids["offset"], MAX_OFFSET) >= starts.get(of.place[0], 0)
        ]
    if bound is not None:
        planned = [
            of._replace(file=of.file._replace(last=_bounds(of).upper.get(ids[bound])))
            for of in planned
        ]
    return _in_segments(opened, planned)


class ColumnBounds(NamedTuple):
    """The bounds of a file's columns by their names."""

    bounds: Bounds
    ids: Mapping[str, int]

    def upper(self, name: str) -> int | None:
        """Return an upper bound of a column of whole numbers or truth values, or None."""
        return self.bounds.upper.get(self.ids[name])

    def lower(self, name: str) -> int | None:
        """Return a lower bound of such a column, or None without one."""
        return self.bounds.lower.get(self.ids[name])

    def has_nulls(self, name: str) -> bool:
        """Return whether a row may have null in a column."""
        return self.ids[name] not in self.bounds.full

    def may_be_below(self, name: str, number: int) -> bool:
        """Return whether a row may have less than this number in a column."""
        lower = self.lower(name)
        return self.ids[name] not in self.bounds.empty and (lower is None or lower < number)


def plan_where(
    spark: SparkSession,
    table: str,
    snapshot: int,
    ends: Mapping[int, int],
    may_hold: Callable[[int, ColumnBounds], bool],
) -> list[SegmentFiles]:
    """Plan the segments below each partition's end offset, with only the files that are wanted.

    `may_hold` gets a file's partition and bounds.
    """
    opened = open_table(spark, table)
    ids = {column.name: column.field_id for column in opened.metadata.columns}
    planned = planned_files(opened, snapshot, below(ends), has_bounds=True)
    wanted = (of for of in planned if may_hold(of.place[0], ColumnBounds(_bounds(of), ids)))
    return _in_segments(opened, wanted)


def plan_before(
    spark: SparkSession,
    table: str,
    snapshot: int,
    partitions: Collection[int],
    times: Collection[str],
    before_us: int,
) -> list[SegmentFiles]:
    """Plan segments with only those files that may hold a time before `before_us`, us since 1970.

    `times` names columns of times; one of them is enough.
    """

    def may_be_before(_partition: int, columns: ColumnBounds) -> bool:
        return any(columns.may_be_below(name, before_us) for name in times)

    ends = dict.fromkeys(partitions, MAX_OFFSET)
    return plan_where(spark, table, snapshot, ends, may_be_before)


def plan_with_lineage(
    spark: SparkSession, table: str, segments: Collection[SegmentPlace]
) -> list[SegmentFiles]:
    """Plan the current files of these segments with their rows' ids."""
    opened = open_table(spark, table)
    if not segments or opened.current is None:
        return []
    planned = planned_files(opened, opened.current.id, among(segments))
    return _in_segments(opened, map(_with_lineage, planned))


def _with_lineage(of: PlannedFile) -> PlannedFile:
    lineage = Lineage(of.listed.first_row_id, of.listed.sequence_number)
    return of._replace(file=of.file._replace(lineage=lineage))


class Difference(NamedTuple):
    """The files that only the earlier or only the later of two snapshots has, by segment."""

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

    The rows have their ids. A snapshot of None has no file.
    """
    opened, wanted = open_table(spark, table), below(dict.fromkeys(partitions, MAX_OFFSET))
    sides = [
        [] if snapshot is None else planned_files(opened, snapshot, wanted)
        for snapshot in (earlier, later)
    ]
    files = [{of.file for of in side} for side in sides]
    only = [
        [_with_lineage(of) for of in side if of.file not in others]
        for side, others in zip(sides, reversed(files), strict=True)
    ]
    return Difference(*(_in_segments(opened, of) for of in only))


def below(ends: Mapping[int, int]) -> Wanted:
    """Return the segments that begin below their partition's end offset."""
    last = max(ends.values(), default=0) - 1
    within = Range(_range(ends), (0, last))
    return Wanted(within, lambda place: place[0] in ends and place[1] < ends[place[0]])


def among(segments: Collection[SegmentPlace]) -> Wanted:
    """Return exactly these segments."""
    partitions, bases = ({place[at] for place in segments} for at in (0, 1))
    return Wanted(Range(_range(partitions), _range(bases)), segments.__contains__)


def _range(numbers: Iterable[int]) -> tuple[int, int]:
    numbers = list(numbers)
    return (min(numbers), max(numbers)) if numbers else _NONE


def planned_files(
    table: Table, snapshot: int, wanted: Wanted, *, has_bounds: bool = False
) -> list[PlannedFile]:
    """Return the data files of wanted segments in a snapshot of the table.

    Raise CommitConflictError where the snapshot is gone, and ConfigurationError for files that
    are not as ebbtide's tables have them.
    """
    made = table.metadata.existing(snapshot, str(table))
    listed = wanted_files(table, made, wanted, own_spec_id(table), has_bounds=has_bounds)
    vectors = {file.referenced: file for file in listed if not file.is_data}
    for deletes in vectors.values():
        if deletes.blob is None:
            raise ConfigurationError(
                f"expected only deletion vectors among the delete files of {table}, found "
                f"{deletes.path}, which another tool has written; rewrite the data files that it "
                "deletes from with that tool"
            )
    return [_planned(file, vectors.get(file.path)) for file in listed if file.is_data]


def _planned(file: ListedFile, vector: ListedFile | None) -> PlannedFile:
    """Return a file with its vector; ConfigurationError where ebbtide cannot read it."""
    if file.place is None:
        raise ConfigurationError(
            f"expected {file.path} to be of one partition and segment, found it partitioned by "
            f"{list(file.partition)}; add `partition` and `segment` to the table's partition "
            "fields again and rewrite its files"
        )
    if file.format.lower() != "parquet":
        raise ConfigurationError(
            f"expected {file.path} to be Parquet, found {file.format.lower()}; set "
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
    for of in planned:
        files.setdefault(of.place, []).append(of.file)
    columns, store = table.metadata.columns, table.store
    return [
        SegmentFiles(*place, tuple(sorted(files[place])), columns, store) for place in sorted(files)
    ]


def _bounds(of: PlannedFile) -> Bounds:
    assert of.listed.bounds is not None
    return of.listed.bounds


def planned_tasks(table: Table, snapshot: int, matches: JavaObject) -> list[JavaObject]:
    """Return Iceberg's own scan tasks, one a file, for an Iceberg expression that few files match.

    Each file takes some calls to the JVM.
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
    """Return Iceberg's expression for segments; it may match others too.

    An exact expression, pair by pair, would be evaluated against each file once for every pair.
    """
    of = IcebergExpressions.of(spark)
    partitions, bases = (sorted({place[at] for place in segments}) for at in (0, 1))
    return of.both(of.one_of("partition", partitions), of.one_of("segment", bases))
