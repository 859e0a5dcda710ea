"""Remove rows of a table by writing the files that hold them anew, through Iceberg's own writer.

Spark reads the files by staged scan tasks and stages the new ones, as rewrite_data_files does:
their rows keep their ids, and lie in the table's own partitions and order. The tasks have the
leaving rows as deletions, which Iceberg's reader applies beside those of others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ebbtide.iceberg.adopted.file_scans import (
    LeavingRows,
    commit_of,
    emptied_of,
    own_deletes,
    position_deletes,
)
from ebbtide.iceberg.adopted.row_deletes import write_deletes
from ebbtide.iceberg.catalog import set_active
from ebbtide.iceberg.files.file_commits import Commit
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class


def prepare_rewrite(
    spark: SparkSession,
    table: Any,
    snapshot: int,
    files: Sequence[LeavingRows],
    properties: Mapping[str, str],
) -> Commit:
    """Write the files without the rows that leave them; what is returned commits them.

    The commit fails as a conflict where another writer has replaced one of the files meanwhile, or
    deleted from it: the new files would bring such rows back.
    """
    _, others = emptied_of(spark, table, files)
    update = table.newOverwrite().validateFromSnapshot(snapshot).validateNoConflictingDeletes()
    gone = iceberg_class(spark, "util.DataFileSet").create()
    gone_deletes = iceberg_class(spark, "util.DeleteFileSet").create()
    for of in files:
        gone.add(of.file)
        for deletes in own_deletes(spark, of.task):
            gone_deletes.add(deletes)
    update = update.deleteFiles(gone, gone_deletes)
    for file in _written_anew(spark, table, others) if others else ():
        update = update.addFile(file)
    return commit_of(spark, table, update, properties)


def _written_anew(spark: SparkSession, table: Any, files: Sequence[LeavingRows]) -> list[Any]:
    """Write what stays of the files to new ones, which no snapshot has yet."""
    losing = [of for of in files if of.positions]
    deletions, _ = write_deletes(spark, table, losing) if losing else ([], [])
    try:
        return _rewritten(spark, table, _tasks(spark, table, files, deletions))
    finally:  # no snapshot ever has them
        for location in {str(of.location()) for of in deletions}:
            table.io().deleteFile(location)


def _tasks(
    spark: SparkSession, table: Any, files: Sequence[LeavingRows], deletions: Sequence[Any]
) -> Any:
    """Return a Java list of scan tasks of the files with what stays of them."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    by_path = {str(scope.referencedDataFileLocation(of)): of for of in deletions}
    schema = iceberg_class(spark, "SchemaParser").toJson(table.schema())
    specs, parser = table.specs(), iceberg_class(spark, "PartitionSpecParser")
    every_row = iceberg_class(spark, "expressions.Expressions").alwaysTrue()
    residuals = iceberg_class(spark, "expressions.ResidualEvaluator").unpartitioned(every_row)
    tasks = java_class(spark, "java.util.ArrayList")()
    for of in files:
        deletion = by_path.get(of.path)  # of a file that is only to lose its dead rows, none
        others = items(of.task.deletes())
        if deletion is not None:
            others = [*_others(spark, of, deletion), deletion]
        applied = _deletes(spark, others)
        spec = parser.toJson(specs.get(of.file.specId()))
        make = iceberg_class(spark, "BaseFileScanTask")
        tasks.add(make(of.file, applied, schema, spec, residuals))
    return tasks


def _others(spark: SparkSession, of: LeavingRows, deletion: Any) -> list[Any]:
    """Return the deletions of before that a new one does not hold: a vector holds positions."""
    held = (
        position_deletes(of.task)
        if iceberg_class(spark, "util.ContentFileUtil").isDV(deletion)
        else []
    )
    locations = {str(one.location()) for one in held}
    return [one for one in items(of.task.deletes()) if str(one.location()) not in locations]


def _deletes(spark: SparkSession, files: Sequence[Any]) -> Any:
    """Return a Java array of delete files."""
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(iceberg_class(spark, "DeleteFile"), len(files))
    for number, file in enumerate(files):
        array[number] = file
    return array


def _rewritten(spark: SparkSession, table: Any, tasks: Any) -> list[Any]:
    """Let Spark write the rows of scan tasks to new files, staged and not committed."""
    staged = iceberg_class(spark, "spark.ScanTaskSetManager").get()
    with _file_group(spark, table) as group:
        staged.stageTasks(table, group, tasks)
        try:
            rows = spark.read.format("iceberg").load(group)
            return _written(spark, table, group, rows)
        finally:
            staged.removeTasks(table, group)


def write_new_files(spark: SparkSession, table: Any, rows: DataFrame) -> list[Any]:
    """Write rows of all of the table's columns to files which no snapshot has yet."""
    with _file_group(spark, table) as group:
        return _written(spark, table, group, rows)


@contextmanager
def _file_group(spark: SparkSession, table: Any) -> Iterator[str]:
    """Yield the name of a group of files by which Spark knows the table, until the block ends.

    Iceberg looks it up in a catalog of the thread's active session.
    """
    set_active(spark)
    group = str(uuid.uuid4())
    # It has another method `get`, which py4j would take.
    tables = JavaMethod.of(spark, ICEBERG + "spark.SparkTableCache", "get").call()
    tables.add(group, table)
    try:
        yield group
    finally:
        tables.remove(group)


def _written(spark: SparkSession, table: Any, group: str, rows: DataFrame) -> list[Any]:
    written = iceberg_class(spark, "spark.FileRewriteCoordinator").get()
    try:
        rows.write.format("iceberg").mode("append").save(group)
        return items(java_class(spark, "java.util.ArrayList")(written.fetchNewFiles(table, group)))
    finally:
        written.clearRewrite(table, group)
