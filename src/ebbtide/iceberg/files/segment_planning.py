"""Plan on the driver, by Iceberg's scans, which data files hold which segments of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ConfigurationError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.data_files import DataFile, SegmentFiles, Vector
from ebbtide.iceberg.files.field_ids import (
    TableColumn,
    columns_of,
)
from ebbtide.iceberg.files.row_lineage import Lineage
from ebbtide.iceberg.files.table_store import store_of
from ebbtide.spark.conditions import any_expression
from ebbtide.spark.jvm import iceberg_class, java_class

# Iceberg evaluates each part of a condition on each file: more partitions are given as a set.
MANY_PARTITIONS = 50


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
    loaded = java_table(spark, table)
    tasks = scan_tasks(spark, loaded, snapshot, ends, starts, bound=bound)
    return _units(
        spark, loaded, tasks, lambda partition, segment: segment < ends[partition], bound=bound
    )


def scan_tasks(
    spark: SparkSession,
    table: JavaObject,
    snapshot: int,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
    *,
    bound: str | None = None,
) -> list[JavaObject]:
    """Return Iceberg's scan tasks, one a file, of the segments below each partition's end.

    With very many partitions, some files of segments at or above the end are included. `bound`
    names a column whose bounds the tasks carry.
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
        return planned_tasks(table, snapshot, both(of_any, below), bound=bound)
    filters = (wanted(partition, end) for partition, end in ends.items())
    return planned_tasks(table, snapshot, any_expression(spark, filters), bound=bound)


def plan_where(
    spark: SparkSession, table: str, snapshot: int, matches: JavaObject
) -> list[SegmentFiles]:
    """Plan segments with only those files that may hold a row which an expression matches."""
    loaded = java_table(spark, table)
    return _units(spark, loaded, planned_tasks(loaded, snapshot, matches), lambda *place: True)


def plan_with_lineage(
    spark: SparkSession, table: str, segments: Collection[tuple[int, int]]
) -> list[SegmentFiles]:
    """Plan the current files of these segments, (partition, segment), with their rows' ids."""
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
    bound: str | None = None,
) -> list[SegmentFiles]:
    """Return the files of scan tasks by segment; `is_wanted` is asked with (partition, segment)."""
    parser = iceberg_class(spark, "ScanTaskParser")
    columns, store = columns_of(spark, table), store_of(spark, table)
    bound_id = next((column.field_id for column in columns if column.name == bound), None)
    files: dict[tuple[int, int], list[DataFile]] = {}
    for task in tasks:
        described = json.loads(parser.toJson(task))
        place = segment_of_task(described, columns)
        if is_wanted(*place):
            file = data_file(described)
            if has_lineage:
                first_row_id = described["data-file"].get("first-row-id")
                lineage = Lineage(first_row_id, int(task.file().dataSequenceNumber()))
                file = file._replace(lineage=lineage)
            if bound_id is not None:
                file = file._replace(last=_upper_bound(described["data-file"], bound_id))
            files.setdefault(place, []).append(file)
    return [
        SegmentFiles(*place, tuple(sorted(files[place])), columns, store) for place in sorted(files)
    ]


def _upper_bound(file: Mapping[str, Any], field_id: int) -> int | None:
    """Return the upper bound of a column of whole numbers, from a scan task's JSON."""
    bounds = file.get("upper-bounds") or {"keys": [], "values": []}
    encoded = dict(zip(bounds["keys"], bounds["values"], strict=True)).get(field_id)
    if encoded is None:
        return None
    return int.from_bytes(bytes.fromhex(encoded), "little", signed=True)


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
    """Return Iceberg's expression for segments, (partition, segment); it may match others too.

    An exact expression, pair by pair, would be evaluated against each file once for every pair.
    """
    expressions = iceberg_class(spark, "expressions.Expressions")
    both, one_of = getattr(expressions, "and"), getattr(expressions, "in")
    to_integer, to_long = (java_class(spark, f"java.lang.{name}") for name in ("Integer", "Long"))
    partitions, bases = map(set, zip(*segments, strict=True))
    return both(
        one_of("partition", [to_integer(partition) for partition in partitions]),
        one_of("segment", [to_long(base) for base in bases]),
    )


def planned_tasks(
    table: JavaObject, snapshot: int, matches: JavaObject, *, bound: str | None = None
) -> list[JavaObject]:
    """Return Iceberg's scan tasks, one a file, for an Iceberg expression.

    The tasks carry the bounds of the column `bound` alone, if one is given.
    """
    if table.snapshot(snapshot) is None:
        raise CommitConflictError(
            f"expected snapshot {snapshot} of {table.name()}, which the work was planned on, found "
            "that another tool expired it meanwhile; run the job again"
        )
    scan = table.newScan().useSnapshot(snapshot).filter(matches)
    tasks = (scan if bound is None else scan.includeColumnStats([bound])).planFiles()
    try:
        iterator = tasks.iterator()
        found = []
        while iterator.hasNext():
            found.append(iterator.next())
        return found
    finally:
        tasks.close()


def segment_of_task(task: Mapping[str, Any], columns: Sequence[TableColumn]) -> tuple[int, int]:
    """Return a file's partition and segment, even where somebody partitioned the table further."""
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
    """Return the file that a scan task, as Iceberg describes it in JSON, reads."""
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
