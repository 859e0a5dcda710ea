"""The data files of an adopted table that rows leave, as Iceberg's scan has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.applied_commits import commit_update
from ebbtide.iceberg.files.file_commits import Commit
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, texts

FUNCTION = "java.util.function.Function"


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
    planned = table.newScan().useSnapshot(snapshot).planFiles()
    lists = iceberg_class(spark, "relocated.com.google.common.collect.Lists")
    tasks = lists.newArrayList(planned)
    planned.close()
    files = JavaMethod.of(spark, ICEBERG + "ContentScanTask", "file").map(tasks)
    paths = texts(spark, JavaMethod.of(spark, ICEBERG + "ContentFile", "location").map(files))
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
    """Return the files that keep no row, and the others."""
    emptied: list[LeavingRows] = []
    others: list[LeavingRows] = []
    for of in files:
        (emptied if _is_emptied(spark, table, of) else others).append(of)
    return emptied, others


def _is_emptied(spark: SparkSession, table: Any, of: LeavingRows) -> bool:
    """Return whether a file keeps no row: those that leave, and those that others deleted."""
    rows, before = int(of.file.recordCount()), position_deletes(of.task)
    if not before or len(of.positions) == rows:
        return len(of.positions) == rows
    deleted = int(deleted_positions(spark, table, before, of.path).cardinality())
    return deleted + len(of.positions) == rows


def own_deletes(spark: SparkSession, task: Any) -> list[Any]:
    """Return the deletions of a task that are for its file alone."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    return [of for of in position_deletes(task) if scope.isFileScoped(of)]


def position_deletes(task: Any) -> list[Any]:
    """Return the position deletes and vectors among the delete files of a task."""
    return [
        of for of in items(task.deletes()) if str(of.content().toString()) == "POSITION_DELETES"
    ]


def deleted_positions(spark: SparkSession, table: Any, deletes: Sequence[Any], path: str) -> Any:
    """Return the positions that delete files hold for a data file, as Iceberg's index."""
    opened = JavaMethod.of(spark, ICEBERG + "io.FileIO", "newInputFile", ICEBERG + "DeleteFile").on(
        table.io()
    )
    loader = iceberg_class(spark, "data.BaseDeleteLoader")(opened.as_a(FUNCTION))
    listed = java_class(spark, "java.util.ArrayList")()
    for of in deletes:
        listed.add(of)
    return loader.loadPositionDeletes(listed, path)


def commit_of(
    spark: SparkSession, table: Any, update: Any, properties: Mapping[str, str]
) -> Commit:
    """Return what commits one of Iceberg's updates of a table, with ebbtide's summary."""
    for name, value in own_summary(properties).items():
        update = update.set(name, value)
    return partial(commit_update, spark, table, update)
