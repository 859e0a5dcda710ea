"""Remove rows of an adopted table: merge-on-read, or copy-on-write if its properties ask for it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.key_files import (
    FUNCTION,
    LeavingFiles,
    commit_of,
    deleted_positions,
    emptied_of,
    files_of,
    own_deletes,
    position_deletes,
)
from ebbtide.iceberg.catalog import open_table, set_active
from ebbtide.iceberg.file_commits import Commit
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, java_list

# Merge-on-read: delete rows by file and position, through Iceberg's own writers.
#
# Format 3 gets deletion vectors, each merged with the file's older deletes. Format 2 gets position
# deletes, one delete file per data file. Iceberg: BaseDVFileWriter, FormatModelRegistry, RowDelta.


def prepare_row_deletes(
    spark: SparkSession,
    table: Any,
    snapshot: int,
    files: Sequence[LeavingFiles],
    properties: Mapping[str, str],
) -> Commit:
    """Write deletes of rows that are live in `snapshot`, and return their commit.

    The commit is a conflict if another writer has replaced one of the files since.
    """
    emptied, others = emptied_of(spark, table, files)
    added, replaced = write_deletes(spark, table, others)
    delta = table.newRowDelta().validateFromSnapshot(snapshot).validateDeletedFiles()
    delta = delta.validateDataFilesExist(java_list(spark, [leaving.path for leaving in others]))
    for deletes in added:
        delta = delta.addDeletes(deletes)
    for leaving in emptied:
        delta = delta.removeRows(leaving.file)
        replaced += own_deletes(spark, leaving.task)
    for deletes in replaced:
        delta = delta.removeDeletes(deletes)
    return commit_of(spark, table, delta, properties)


def write_deletes(
    spark: SparkSession, table: Any, files: Sequence[LeavingFiles]
) -> tuple[list[Any], list[Any]]:
    """Write one delete per data file; return these and the older deletes that they replace.

    A deletion vector replaces all older deletes of its file. Position deletes replace none.
    """
    if not files:
        return [], []
    if int(table.operations().current().formatVersion()) >= 3:
        return _write_vectors(spark, table, files)
    factory = _output_factory(spark, table, iceberg_class(spark, "FileFormat").PARQUET)
    return [_position_delete_file(spark, table, factory, leaving) for leaving in files], []


def _longs(spark: SparkSession, positions: BitMap64) -> Any:
    """Return a Java list of Long, ascending."""
    mapper = java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
    kind = java_class(spark, "java.lang.Class").forName("[J")
    array = mapper.readValue(json.dumps(list(positions)), kind)
    boxed = java_class(spark, "java.util.stream.LongStream").of(array).boxed()
    return java_class(spark, "java.util.ArrayList")(boxed.toList())


def _write_vectors(
    spark: SparkSession, table: Any, files: Sequence[LeavingFiles]
) -> tuple[list[Any], list[Any]]:
    """Write a deletion vector per file; return the vectors and the deletes that they replace."""
    factory = _output_factory(spark, table, iceberg_class(spark, "FileFormat").PUFFIN)
    before = java_class(spark, "java.util.HashMap")()
    for leaving in files:
        if deletes := position_deletes(leaving.task):
            before.put(leaving.path, deleted_positions(spark, table, deletes, leaving.path))
    previous = JavaMethod.of(spark, "java.util.Map", "get", "java.lang.Object").on(before)
    writer = iceberg_class(spark, "deletes.BaseDVFileWriter")(factory, previous.as_a(FUNCTION))
    indexes, iterables = (
        iceberg_class(spark, name) for name in ("deletes.Deletes", "io.CloseableIterable")
    )
    specs = table.specs()
    for leaving in files:
        index = indexes.toPositionIndex(iterables.empty())
        delete = JavaMethod.of(spark, ICEBERG + "deletes.PositionDeleteIndex", "delete", "long")
        delete.on(index).for_each(_longs(spark, leaving.positions))
        writer.delete(
            leaving.path, index, specs.get(leaving.file.specId()), leaving.file.partition()
        )
    writer.close()
    written = writer.result()
    return items(written.deleteFiles()), items(written.rewrittenDeleteFiles())


def _position_delete_file(
    spark: SparkSession, table: Any, factory: Any, leaving: LeavingFiles
) -> Any:
    """Write the position deletes of one data file; its older deletes stay valid."""
    spec, partition = table.specs().get(leaving.file.specId()), leaving.file.partition()
    parquet = iceberg_class(spark, "FileFormat").PARQUET
    metrics = iceberg_class(spark, "MetricsConfig").forPositionDelete()
    models = iceberg_class(spark, "formats.FormatModelRegistry")
    builder = models.positionDeleteWriteBuilder(parquet, factory.newOutputFile(spec, partition))
    writer = builder.metricsConfig(metrics).spec(spec).partition(partition).overwrite().build()
    row = iceberg_class(spark, "deletes.PositionDelete").create()
    deletes = ICEBERG + "deletes."
    names = (deletes + "PositionDelete", "set", "java.lang.CharSequence", "long")
    placed = JavaMethod.of(spark, *names).on(row).on(leaving.path)
    write = JavaMethod.of(
        spark, deletes + "PositionDeleteWriter", "write", deletes + "PositionDelete"
    ).on(writer)
    placed.then(write).for_each(_longs(spark, leaving.positions))
    writer.close()
    return writer.toDeleteFile()


def _output_factory(spark: SparkSession, table: Any, file_format: Any) -> Any:
    """Return Iceberg's factory of new files; a new id makes file names unique."""
    builder = iceberg_class(spark, "io.OutputFileFactory").builderFor(table, 0, 0)
    return builder.format(file_format).operationId(uuid.uuid4().hex).suffix("deletes").build()


def check_format(table: Any) -> None:
    """Raise NotCoveredError if the table's format version has no position deletes."""
    version = int(table.operations().current().formatVersion())
    if version < 2:
        raise NotCoveredError(
            f"expected {table.name()} in format version 2 or 3, found {version}, which cannot "
            "delete single rows. Upgrade it: ALTER TABLE ... SET TBLPROPERTIES "
            "('format-version'='2')"
        )


# Copy-on-write: rewrite the files without the rows to remove, through Iceberg's own writer.
#
# Spark reads the files by staged scan tasks and stages the new files, as rewrite_data_files does.
# So rows keep their ids, and the new files have the table's own partitions and sort order. The
# tasks carry the rows to remove as deletes, which Iceberg's reader applies with the older ones.


def prepare_rewrite(
    spark: SparkSession,
    table: Any,
    snapshot: int,
    files: Sequence[LeavingFiles],
    properties: Mapping[str, str],
) -> Commit:
    """Rewrite the files without the rows to remove, and return the commit.

    The commit is a conflict if another writer has replaced one of the files since, or deleted rows
    from it: the new files would bring these rows back.
    """
    _, others = emptied_of(spark, table, files)
    update = table.newOverwrite().validateFromSnapshot(snapshot).validateNoConflictingDeletes()
    gone = iceberg_class(spark, "util.DataFileSet").create()
    gone_deletes = iceberg_class(spark, "util.DeleteFileSet").create()
    for leaving in files:
        gone.add(leaving.file)
        for deletes in own_deletes(spark, leaving.task):
            gone_deletes.add(deletes)
    update = update.deleteFiles(gone, gone_deletes)
    for file in _written_anew(spark, table, others) if others else ():
        update = update.addFile(file)
    return commit_of(spark, table, update, properties)


def _written_anew(spark: SparkSession, table: Any, files: Sequence[LeavingFiles]) -> list[Any]:
    """Write the retained rows of the files to new ones, which are not committed yet."""
    losing = [leaving for leaving in files if leaving.positions]
    deletions, _ = write_deletes(spark, table, losing) if losing else ([], [])
    try:
        return _rewritten(spark, table, _tasks(spark, table, files, deletions))
    finally:  # the delete files are only for this read: no snapshot gets them
        for location in {str(deletion.location()) for deletion in deletions}:
            table.io().deleteFile(location)


def _tasks(
    spark: SparkSession, table: Any, files: Sequence[LeavingFiles], deletions: Sequence[Any]
) -> Any:
    """Return a Java list of scan tasks that read the retained rows of the files."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    by_path = {
        str(scope.referencedDataFileLocation(delete_file)): delete_file for delete_file in deletions
    }
    schema = iceberg_class(spark, "SchemaParser").toJson(table.schema())
    specs, parser = table.specs(), iceberg_class(spark, "PartitionSpecParser")
    every_row = iceberg_class(spark, "expressions.Expressions").alwaysTrue()
    residuals = iceberg_class(spark, "expressions.ResidualEvaluator").unpartitioned(every_row)
    tasks = java_class(spark, "java.util.ArrayList")()
    for leaving in files:
        # None for a file without rows to remove: it is rewritten without its deleted rows only.
        deletion = by_path.get(leaving.path)
        others = items(leaving.task.deletes())
        if deletion is not None:
            others = [*_others(spark, leaving, deletion), deletion]
        applied = _deletes(spark, others)
        spec = parser.toJson(specs.get(leaving.file.specId()))
        make = iceberg_class(spark, "BaseFileScanTask")
        tasks.add(make(leaving.file, applied, schema, spec, residuals))
    return tasks


def _others(spark: SparkSession, leaving: LeavingFiles, deletion: Any) -> list[Any]:
    """Return the older deletes that the new one does not contain; a vector contains positions."""
    held = (
        position_deletes(leaving.task)
        if iceberg_class(spark, "util.ContentFileUtil").isDV(deletion)
        else []
    )
    locations = {str(one.location()) for one in held}
    return [one for one in items(leaving.task.deletes()) if str(one.location()) not in locations]


def _deletes(spark: SparkSession, files: Sequence[Any]) -> Any:
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
    """Write rows with all of the table's columns to new files, which are not committed yet."""
    with _file_group(spark, table) as group:
        return _written(spark, table, group, rows)


@contextmanager
def _file_group(spark: SparkSession, table: Any) -> Iterator[str]:
    """Yield the name of a file group, by which Spark finds the table until the block ends.

    Iceberg looks the name up in a catalog of the thread's active session.
    """
    set_active(spark)
    group = str(uuid.uuid4())
    # The class has a second method `get`, which py4j would choose.
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


# Iceberg's table property; if it is not set, ebbtide deletes rows merge-on-read.
DELETE_MODE, COPY_ON_WRITE = "write.delete.mode", "copy-on-write"


def prepare_removal(
    spark: SparkSession,
    table: str,
    snapshot: int,
    positions: Mapping[str, BitMap64],
    properties: Mapping[str, str],
) -> Commit:
    """Prepare the removal of rows that are live in `snapshot`, by file, and return the commit.

    Raise CommitConflictError if another writer has replaced one of the files since.
    """
    opened = open_table(spark, table)
    opened.metadata.existing(snapshot, str(opened))
    files = files_of(spark, opened.java, snapshot, positions)
    is_rewritten = opened.metadata.properties.get(DELETE_MODE) == COPY_ON_WRITE
    prepare = prepare_rewrite if is_rewritten else prepare_row_deletes
    return prepare(spark, opened.java, snapshot, files, properties)
