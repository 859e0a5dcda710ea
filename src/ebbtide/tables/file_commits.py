"""Commits on single files, through Iceberg's own Java classes: no statement, so no scan.

Iceberg: BaseDVFileWriter and RowDelta for deletion vectors, OverwriteFiles for whole files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.records.files import resolve
from ebbtide.tables.deletes import segments_filter
from ebbtide.tables.files import (
    DataFile,
    Deletion,
    SegmentFiles,
    Vector,
    data_file,
    ends_of,
    scan_tasks,
)
from ebbtide.tables.topics import java_table


class Replacement(NamedTuple):
    """A segment's files, and the one that takes their place; None where no row is left."""

    unit: SegmentFiles
    path: str | None


def new_paths(spark: SparkSession, table: str, units: Sequence[SegmentFiles]) -> list[str]:
    """Where a new file of each segment belongs; no two calls give the same."""
    provider = java_table(spark, table).locationProvider()
    return [
        str(provider.newDataLocation(f"{_folder(unit)}/{uuid.uuid4().hex}.parquet"))
        for unit in units
    ]


def _folder(unit: SegmentFiles) -> str:
    return f"partition={unit.partition}/segment={unit.segment}"


def delete_positions(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    deletions: Sequence[Deletion],
    properties: Mapping[str, str],
) -> None:
    """Commit the deletions as one snapshot; CommitConflictError where a file changed meanwhile.

    Their segments lie below each partition's end offset.
    """
    jvm: Any = spark._jvm
    loaded = java_table(spark, table)
    snapshot = loaded.currentSnapshot().snapshotId()
    tasks = _Tasks.of(loaded, jvm, ends)
    result = _write_vectors(jvm, loaded, tasks, deletions)
    row_delta = loaded.newRowDelta().validateFromSnapshot(snapshot)
    row_delta = row_delta.validateDataFilesExist(result.referencedDataFiles())
    for file in result.deleteFiles():
        row_delta = row_delta.addDeletes(file)
    for file in result.rewrittenDeleteFiles():
        row_delta = row_delta.removeDeletes(file)
    for name, value in properties.items():
        row_delta = row_delta.set(name, value)
    row_delta.commit()


def replace_files(
    spark: SparkSession,
    table: str,
    replacements: Sequence[Replacement],
    properties: Mapping[str, str],
) -> None:
    """Commit new files in place of old ones; CommitConflictError where one changed meanwhile."""
    jvm: Any = spark._jvm
    loaded = java_table(spark, table)
    tasks = _Tasks.of(loaded, jvm, ends_of(unit for unit, _ in replacements))
    overwrite = loaded.newOverwrite().validateFromSnapshot(loaded.currentSnapshot().snapshotId())
    overwrite = overwrite.conflictDetectionFilter(_in_segments(jvm, replacements))
    overwrite = overwrite.validateNoConflictingData().validateNoConflictingDeletes()
    for unit, path in replacements:
        for file in unit.files:
            overwrite = overwrite.deleteFile(tasks.unchanged(file).file())
        if path is not None:
            overwrite = overwrite.addFile(_described_file(jvm, loaded, unit, path))
    for name, value in properties.items():
        overwrite = overwrite.set(name, value)
    overwrite.commit()


class _Tasks(NamedTuple):
    """Iceberg's scan tasks of a table's current files by path."""

    jvm: Any
    by_path: dict[str, Any]

    @classmethod
    def of(cls, table: Any, jvm: Any, ends: Mapping[int, int]) -> _Tasks:
        tasks = scan_tasks(table, jvm, table.currentSnapshot().snapshotId(), ends)
        return cls(jvm, {str(task.file().location()): task for task in tasks})

    def unchanged(self, file: DataFile) -> Any:
        """The task of a file with the deletions that it was planned with."""
        task = self.by_path.get(file.path)
        if task is not None:
            described = json.loads(self.jvm.org.apache.iceberg.ScanTaskParser.toJson(task))
            if data_file(described).vector == file.vector:
                return task
        raise CommitConflictError(
            f"expected {file.path} as the round was planned on it, found that another writer "
            "rewrote it or deleted from it; run the job again"
        )


def _in_segments(jvm: Any, replacements: Sequence[Replacement]) -> Any:
    segments: dict[int, list[int]] = {}
    for unit, _ in replacements:
        segments.setdefault(unit.partition, []).append(unit.segment)
    return segments_filter(jvm, segments)


def _described_file(jvm: Any, table: Any, unit: SegmentFiles, path: str) -> Any:
    """A written file as Iceberg lists it, with its columns' bounds."""
    file = table.io().newInputFile(path)
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(table)
    return (
        jvm.org.apache.iceberg.DataFiles.builder(table.spec())
        .withInputFile(file)
        .withFormat("parquet")
        .withPartitionPath(_folder(unit))
        .withMetrics(jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(file, config))
        .build()
    )


def _write_vectors(jvm: Any, table: Any, tasks: _Tasks, deletions: Sequence[Deletion]) -> Any:
    indexes = jvm.org.apache.iceberg.deletes.PositionDeleteIndex
    factory = jvm.org.apache.iceberg.io.OutputFileFactory.builderFor(table, 0, 0)
    factory = factory.format(jvm.org.apache.iceberg.FileFormat.PUFFIN).build()
    previous = jvm.java.util.HashMap()
    load_previous = jvm.com.google.common.base.Functions.forMap(previous, None)
    writer = jvm.org.apache.iceberg.deletes.BaseDVFileWriter(factory, load_previous)
    for deletion in deletions:
        task = tasks.unchanged(deletion.file)
        for old in task.deletes():
            index = indexes.deserialize(_blob(deletion.file.vector), old)
            previous.put(deletion.file.path, index)
        described = _describe(jvm, task, deletion)
        index = indexes.deserialize(deletion.blob, described)
        writer.delete(deletion.file.path, index, task.spec(), task.file().partition())
    writer.close()
    return writer.result()


def _blob(vector: Vector | None) -> bytes:
    assert vector is not None
    file_system, path = resolve(vector.path)
    with file_system.open_input_file(path) as handle:
        return bytes(handle.read_at(vector.size_bytes, vector.position))


def _describe(jvm: Any, task: Any, deletion: Deletion) -> Any:
    """What Iceberg checks a blob's length and cardinality against."""
    return (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(task.spec())
        .ofPositionDeletes()
        .withFormat("puffin")
        .withPath("memory")
        .withPartition(task.file().partition())
        .withFileSizeInBytes(len(deletion.blob))
        .withRecordCount(deletion.cardinality)
        .withReferencedDataFile(deletion.file.path)
        .withContentOffset(0)
        .withContentSizeInBytes(len(deletion.blob))
        .build()
    )
