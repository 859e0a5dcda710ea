"""Delete rows of a table by file and position, through Iceberg's own writers.

Format 3 gets deletion vectors, which take in what others had deleted from the file; format 2 gets
position deletes, one file for each data file. Iceberg: BaseDVFileWriter,
FormatModelRegistry, RowDelta.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.file_scans import (
    FUNCTION,
    LeavingRows,
    commit_of,
    deleted_positions,
    emptied_of,
    own_deletes,
    position_deletes,
)
from ebbtide.iceberg.files.file_commits import Commit
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, java_list


def prepare_row_deletes(
    spark: SparkSession,
    table: Any,
    snapshot: int,
    files: Sequence[LeavingRows],
    properties: Mapping[str, str],
) -> Commit:
    """Write the deletions of rows that live in a snapshot; what is returned commits them.

    The commit fails as a conflict where another writer has replaced one of the files meanwhile.
    """
    emptied, others = emptied_of(spark, table, files)
    added, replaced = write_deletes(spark, table, others)
    delta = table.newRowDelta().validateFromSnapshot(snapshot).validateDeletedFiles()
    delta = delta.validateDataFilesExist(java_list(spark, [of.path for of in others]))
    for deletes in added:
        delta = delta.addDeletes(deletes)
    for of in emptied:
        delta = delta.removeRows(of.file)
        replaced += own_deletes(spark, of.task)
    for deletes in replaced:
        delta = delta.removeDeletes(deletes)
    return commit_of(spark, table, delta, properties)


def write_deletes(
    spark: SparkSession, table: Any, files: Sequence[LeavingRows]
) -> tuple[list[Any], list[Any]]:
    """Write the deletions of files, one each; return them, and those of before that they hold.

    A vector holds all others of its file. Position deletes stand beside them.
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
    spark: SparkSession, table: Any, files: Sequence[LeavingRows]
) -> tuple[list[Any], list[Any]]:
    """Write a deletion vector for each file; return them and the deletes that they replace."""
    factory = _output_factory(spark, table, iceberg_class(spark, "FileFormat").PUFFIN)
    before = java_class(spark, "java.util.HashMap")()
    for of in files:
        if deletes := position_deletes(of.task):
            before.put(of.path, deleted_positions(spark, table, deletes, of.path))
    previous = JavaMethod.of(spark, "java.util.Map", "get", "java.lang.Object").on(before)
    writer = iceberg_class(spark, "deletes.BaseDVFileWriter")(factory, previous.as_a(FUNCTION))
    indexes, iterables = (
        iceberg_class(spark, name) for name in ("deletes.Deletes", "io.CloseableIterable")
    )
    specs = table.specs()
    for of in files:
        index = indexes.toPositionIndex(iterables.empty())
        delete = JavaMethod.of(spark, ICEBERG + "deletes.PositionDeleteIndex", "delete", "long")
        delete.on(index).for_each(_longs(spark, of.positions))
        writer.delete(of.path, index, specs.get(of.file.specId()), of.file.partition())
    writer.close()
    written = writer.result()
    return items(written.deleteFiles()), items(written.rewrittenDeleteFiles())


def _position_delete_file(spark: SparkSession, table: Any, factory: Any, of: LeavingRows) -> Any:
    """Write a file of position deletes for one file; those of others stay beside it."""
    spec, partition = table.specs().get(of.file.specId()), of.file.partition()
    parquet = iceberg_class(spark, "FileFormat").PARQUET
    metrics = iceberg_class(spark, "MetricsConfig").forPositionDelete()
    models = iceberg_class(spark, "formats.FormatModelRegistry")
    builder = models.positionDeleteWriteBuilder(parquet, factory.newOutputFile(spec, partition))
    writer = builder.metricsConfig(metrics).spec(spec).partition(partition).overwrite().build()
    row = iceberg_class(spark, "deletes.PositionDelete").create()
    deletes = ICEBERG + "deletes."
    names = (deletes + "PositionDelete", "set", "java.lang.CharSequence", "long")
    placed = JavaMethod.of(spark, *names).on(row).on(of.path)
    write = JavaMethod.of(
        spark, deletes + "PositionDeleteWriter", "write", deletes + "PositionDelete"
    ).on(writer)
    placed.then(write).for_each(_longs(spark, of.positions))
    writer.close()
    return writer.toDeleteFile()


def _output_factory(spark: SparkSession, table: Any, file_format: Any) -> Any:
    """Return Iceberg's factory of new files; no two calls give the same names."""
    builder = iceberg_class(spark, "io.OutputFileFactory").builderFor(table, 0, 0)
    return builder.format(file_format).operationId(uuid.uuid4().hex).suffix("deletes").build()


def check_format(table: Any) -> None:
    """Raise NotCoveredError for a table whose format has no position deletes."""
    version = int(table.operations().current().formatVersion())
    if version < 2:
        raise NotCoveredError(
            f"expected {table.name()} in format version 2 or 3, found {version}, which has no "
            "deletes of single rows; upgrade it with ALTER TABLE ... SET TBLPROPERTIES "
            "('format-version'='2')"
        )
