"""Delete rows of a table by file and position, through Iceberg's own writers.

Format 3 gets deletion vectors, which take in what others had deleted from the file; format 2 gets
position deletes, one file for each data file. Iceberg: BaseDVFileWriter,
FormatModelRegistry, RowDelta.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, NotCoveredError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.file_commits import Commit
from ebbtide.iceberg.files.segment_planning import existing_snapshot
from ebbtide.spark.jvm import (
    ICEBERG,
    JavaMethod,
    iceberg_class,
    items,
    java_class,
    java_list,
    texts,
)

_FUNCTION = "java.util.function.Function"


class _Leaving(NamedTuple):
    """A data file as Iceberg's scan has it, and the positions of the rows that leave it."""

    task: Any
    path: str
    positions: Any  # a Java list of Long

    @property
    def file(self) -> Any:
        return self.task.file()


def prepare_row_deletes(
    spark: SparkSession,
    table: str,
    snapshot: int,
    positions: Mapping[str, BitMap64],
    properties: Mapping[str, str],
) -> Commit:
    """Write the deletions of rows that live in a snapshot; what is returned commits them.

    CommitConflictError where another writer has replaced one of the files meanwhile.
    """
    loaded = java_table(spark, table)
    existing_snapshot(loaded, snapshot)
    files = _files_of(spark, loaded, snapshot, positions)
    emptied = [of for of in files if _is_emptied(spark, loaded, of, positions[of.path])]
    others = [of for of in files if of not in emptied]
    version = int(loaded.operations().current().formatVersion())
    write = _write_vectors if version >= 3 else _write_position_deletes
    added, replaced = write(spark, loaded, others) if others else ([], [])
    delta = loaded.newRowDelta().validateFromSnapshot(snapshot).validateDeletedFiles()
    delta = delta.validateDataFilesExist(java_list(spark, [of.path for of in others]))
    for deletes in added:
        delta = delta.addDeletes(deletes)
    for of in emptied:
        delta = delta.removeRows(of.file)
        replaced += _own_deletes(spark, of.task)
    for deletes in replaced:
        delta = delta.removeDeletes(deletes)
    for name, value in own_summary(properties).items():
        delta = delta.set(name, value)
    return partial(committed_snapshot, delta)


def committed_snapshot(update: Any) -> int:
    """Commit; return the id of its snapshot, which is not the newest where a sink was as fast."""
    update.commit()
    return int(update.updateEvent().snapshotId())


def _files_of(
    spark: SparkSession, table: Any, snapshot: int, positions: Mapping[str, BitMap64]
) -> list[_Leaving]:
    """Return Iceberg's scan task of each file, with what leaves it."""
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
        _Leaving(tasks.get(numbers[path]), path, _longs(spark, of_file))
        for path, of_file in positions.items()
    ]


def _longs(spark: SparkSession, positions: BitMap64) -> Any:
    """Return a Java list of Long, ascending."""
    mapper = java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
    kind = java_class(spark, "java.lang.Class").forName("[J")
    array = mapper.readValue(json.dumps(list(positions)), kind)
    boxed = java_class(spark, "java.util.stream.LongStream").of(array).boxed()
    return java_class(spark, "java.util.ArrayList")(boxed.toList())


def _write_vectors(
    spark: SparkSession, table: Any, files: Sequence[_Leaving]
) -> tuple[list[Any], list[Any]]:
    """Write a deletion vector for each file; return them and the deletes that they replace."""
    formats = iceberg_class(spark, "FileFormat")
    factory = _output_factory(spark, table, formats.PUFFIN)
    before = java_class(spark, "java.util.HashMap")()
    for of in files:
        if deletes := _position_deletes(of.task):
            before.put(of.path, _loaded(spark, table, deletes, of.path))
    previous = JavaMethod.of(spark, "java.util.Map", "get", "java.lang.Object").on(before)
    writer = iceberg_class(spark, "deletes.BaseDVFileWriter")(factory, previous.as_a(_FUNCTION))
    indexes, iterables = (
        iceberg_class(spark, name) for name in ("deletes.Deletes", "io.CloseableIterable")
    )
    specs = table.specs()
    for of in files:
        index = indexes.toPositionIndex(iterables.empty())
        delete = JavaMethod.of(spark, ICEBERG + "deletes.PositionDeleteIndex", "delete", "long")
        delete.on(index).for_each(of.positions)
        writer.delete(of.path, index, specs.get(of.file.specId()), of.file.partition())
    writer.close()
    written = writer.result()
    return items(written.deleteFiles()), items(written.rewrittenDeleteFiles())


def _is_emptied(spark: SparkSession, table: Any, of: _Leaving, leaving: BitMap64) -> bool:
    """Return whether a file keeps no row: those that leave, and those that others deleted."""
    rows, before = int(of.file.recordCount()), _position_deletes(of.task)
    if not before or len(leaving) == rows:
        return len(leaving) == rows
    return int(_loaded(spark, table, before, of.path).cardinality()) + len(leaving) == rows


def _own_deletes(spark: SparkSession, task: Any) -> list[Any]:
    """Return the deletes of a task that are for its file alone."""
    scope = iceberg_class(spark, "util.ContentFileUtil")
    return [of for of in _position_deletes(task) if scope.isFileScoped(of)]


def _position_deletes(task: Any) -> list[Any]:
    """Return the position deletes and vectors among the delete files of a task."""
    return [
        of for of in items(task.deletes()) if str(of.content().toString()) == "POSITION_DELETES"
    ]


def _loaded(spark: SparkSession, table: Any, deletes: Sequence[Any], path: str) -> Any:
    """Return the positions that delete files hold for a data file, as Iceberg's index."""
    opened = JavaMethod.of(spark, ICEBERG + "io.FileIO", "newInputFile", ICEBERG + "DeleteFile").on(
        table.io()
    )
    loader = iceberg_class(spark, "data.BaseDeleteLoader")(opened.as_a(_FUNCTION))
    listed = java_class(spark, "java.util.ArrayList")()
    for of in deletes:
        listed.add(of)
    return loader.loadPositionDeletes(listed, path)


def _write_position_deletes(
    spark: SparkSession, table: Any, files: Sequence[_Leaving]
) -> tuple[list[Any], list[Any]]:
    """Write a file of position deletes for each file; those of others stay beside it."""
    formats = iceberg_class(spark, "FileFormat")
    factory = _output_factory(spark, table, formats.PARQUET)
    return [_position_delete_file(spark, table, factory, of) for of in files], []


def _position_delete_file(spark: SparkSession, table: Any, factory: Any, of: _Leaving) -> Any:
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
    placed.then(write).for_each(of.positions)
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
