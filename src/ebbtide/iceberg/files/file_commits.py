"""Commit single files through Iceberg's own Java classes: no statement, so no scan.

Iceberg: BaseDVFileWriter for deletion vectors, RowDelta for them and for files, RewriteFiles.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.data_files import DataFile, DeletionVector, SegmentFiles, read_blob
from ebbtide.iceberg.files.file_metrics import Place, read_description
from ebbtide.iceberg.files.segment_planning import (
    data_file,
    near_segments,
    scan_tasks,
    tasks_of_segments,
)
from ebbtide.iceberg.files.table_store import store_of
from ebbtide.iceberg.holds import Hold, holding
from ebbtide.iceberg.topics import own_spec
from ebbtide.spark.jvm import iceberg_class, items, java_class

# Commits the prepared change; returns the id of its snapshot.
Commit = Callable[[], int]


class Replacement(NamedTuple):
    """A segment's files, and the one that takes their place; None where no row is left."""

    unit: SegmentFiles
    path: str | None


def new_paths(spark: SparkSession, table: str, units: Sequence[SegmentFiles]) -> list[str]:
    """Return a new file's path for each segment; no two calls give the same."""
    provider = java_table(spark, table).locationProvider()
    return [new_path(provider, unit.partition, unit.segment) for unit in units]


class PlannedRewrite(NamedTuple):
    """A segment's files, and the path of the one to be written in their place."""

    unit: SegmentFiles
    path: str


def planned_rewrites(
    spark: SparkSession, table: str, units: Sequence[SegmentFiles]
) -> list[PlannedRewrite]:
    """Plan a rewrite of each segment to a new path."""
    paths = new_paths(spark, table, units)
    return [PlannedRewrite(unit, path) for unit, path in zip(units, paths, strict=True)]


def new_path(provider: Any, partition: int, segment: int) -> str:
    """Return the path of one more file of a segment, by Iceberg's location provider."""
    name = f"partition={partition}/segment={segment}/{uuid.uuid4().hex}.parquet"
    return str(provider.newDataLocation(name))


class RowDelta(NamedTuple):
    """Rows that leave their files and rows that come, for one commit to show."""

    deletions: Sequence[DeletionVector] = ()
    added: Sequence[Replacement] = ()  # files beside the others of their segments
    replaced: Sequence[Replacement] = ()  # files in place of all others of their segments
    dropped: Sequence[SegmentFiles] = ()  # files without a row left

    @classmethod
    def of_all(cls, parts: Iterable[RowDelta]) -> RowDelta:
        """Return the parts, each of other segments, as one."""
        return cls(*(tuple(chain.from_iterable(of)) for of in zip(*parts, strict=True)))


def prepare_row_delta(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    delta: RowDelta,
    properties: Mapping[str, str],
    hold: Hold | None = None,
    before: int | None = None,
) -> Commit:
    """Write the deletions of a delta whose segments lie below each partition's end offset.

    The commit of all is one snapshot; CommitConflictError where a file changed meanwhile. With
    `hold` it is tagged, and so is the snapshot `before`, on which it was planned.
    """
    loaded = java_table(spark, table)
    snapshot = loaded.currentSnapshot().snapshotId()
    tasks = _Tasks.of(spark, loaded, scan_tasks(spark, loaded, snapshot, ends))
    vectors = _write_vectors(spark, loaded, tasks, delta.deletions)
    begun = _Begun.of(loaded, hold, before)
    update = begun.updates.newRowDelta()
    update = update.validateFromSnapshot(snapshot)
    # Also where a delete-only commit has dropped them, which Iceberg would let pass otherwise.
    update = update.validateDeletedFiles()
    update = update.validateDataFilesExist(vectors.referencedDataFiles())
    for file in items(vectors.deleteFiles()):
        update = update.addDeletes(file)
    for file in items(vectors.rewrittenDeleteFiles()):
        update = update.removeDeletes(file)
    leaving = [*(unit for unit, _ in delta.replaced), *delta.dropped]
    if leaving:
        segments = {(unit.partition, unit.segment) for unit in leaving}
        update = update.conflictDetectionFilter(near_segments(spark, segments))
        update = update.validateNoConflictingDeleteFiles()
    if delta.replaced:
        update = update.validateNoConflictingDataFiles()
    for task in (tasks.unchanged(file) for unit in leaving for file in unit.files):
        update = update.removeRows(task.file())
        for vector in items(task.deletes()):
            update = update.removeDeletes(vector)
    for unit, path in (*delta.added, *delta.replaced):
        if path is not None:
            update = update.addRows(tasks.with_new_file(unit, path))
    return begun.commit_of(update, properties)


def prepare_rewrite(
    spark: SparkSession,
    table: str,
    segments: Collection[tuple[int, int]],
    replacements: Iterable[Replacement],
    properties: Mapping[str, str],
    hold: Hold | None = None,
    dangling: Collection[str] = (),
) -> Commit:
    """Prepare to replace files by others that hold the same rows, and remove their vectors.

    All replaced files lie in `segments`, (partition, segment). `dangling` names data files that
    are no longer in the table; their vectors are removed too. Raise CommitConflictError where a
    file changed meanwhile.
    """
    loaded = java_table(spark, table)
    tasks = _Tasks.of(spark, loaded, tasks_of_segments(spark, loaded, segments))
    snapshot = loaded.currentSnapshot().snapshotId()
    begun = _Begun.of(loaded, hold, snapshot)
    rewrite = begun.updates.newRewrite().validateFromSnapshot(snapshot)
    for unit, path in replacements:
        for task in map(tasks.unchanged, unit.files):
            for file in (task.file(), *items(task.deletes())):
                rewrite = rewrite.deleteFile(file)
        if path is not None:
            rewrite = rewrite.addFile(tasks.with_new_file(unit, path))
    for vector in _vectors_for(spark, loaded, dangling) if dangling else ():
        rewrite = rewrite.deleteFile(vector)
    return begun.commit_of(rewrite, properties)


def _vectors_for(spark: SparkSession, table: Any, paths: Collection[str]) -> Iterator[Any]:
    """Yield the deletion vectors for data files, as Iceberg lists them."""
    manifests = iceberg_class(spark, "ManifestFiles")
    for manifest in items(table.currentSnapshot().deleteManifests(table.io())):
        reader = manifests.readDeleteManifest(manifest, table.io(), table.specs())
        try:
            iterator = reader.iterator()
            while iterator.hasNext():
                vector = iterator.next()
                if vector.referencedDataFile() in paths:
                    yield vector.copy()
        finally:
            reader.close()


class _Begun(NamedTuple):
    """An update that has begun, and what commits it; with tags if it is to be held."""

    table: Any
    updates: Any
    commit: Callable[[Any], None]

    @classmethod
    def of(cls, table: Any, hold: Hold | None, before: int | None) -> _Begun:
        if hold is None or before is None:
            return cls(table, table, lambda update: update.commit())
        return cls(table, *holding(table, hold, before))

    def commit_of(self, update: Any, properties: Mapping[str, str]) -> Commit:
        for name, value in own_summary(properties).items():
            update = update.set(name, value)
        return partial(self._commit, update)

    def _commit(self, update: Any) -> int:
        self.commit(update)
        return int(self.table.currentSnapshot().snapshotId())


class _Tasks(NamedTuple):
    """Iceberg's scan tasks of files that a table has now, by path."""

    parser: Any
    by_path: dict[str, Any]
    spec: dict[str, Any]  # of new files

    @classmethod
    def of(cls, spark: SparkSession, table: Any, tasks: Iterable[Any]) -> _Tasks:
        by_path = {str(task.file().location()): task for task in tasks}
        spec = json.loads(iceberg_class(spark, "PartitionSpecParser").toJson(own_spec(table)))
        return cls(iceberg_class(spark, "ScanTaskParser"), by_path, spec)

    def unchanged(self, file: DataFile) -> Any:
        """Return the task of a file with the deletions that it was planned with."""
        task = self.by_path.get(file.path)
        if task is not None and data_file(self._described(task)).vector == file.vector:
            return task
        raise CommitConflictError(
            f"expected {file.path} as the round was planned on it, found that another writer "
            "rewrote it or deleted from it; run the job again"
        )

    def with_new_file(self, unit: SegmentFiles, path: str) -> Any:
        """Return the file written to `path` for the segment, as Iceberg lists it."""
        task = self._described(self.by_path[unit.files[0].path])
        place = Place(self.spec["spec-id"], unit.partition, unit.segment, path)
        task["data-file"] = read_description(unit.store, place)
        task["spec"] = self.spec
        task["delete-files"] = []
        return self.parser.fromJson(json.dumps(task), True).file()

    def _described(self, task: Any) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.parser.toJson(task))
        return described


def _write_vectors(
    spark: SparkSession, table: Any, tasks: _Tasks, deletions: Sequence[DeletionVector]
) -> Any:
    indexes = iceberg_class(spark, "deletes.PositionDeleteIndex")
    builders = iceberg_class(spark, "FileMetadata")
    factory = iceberg_class(spark, "io.OutputFileFactory").builderFor(table, 0, 0)
    factory = factory.format(iceberg_class(spark, "FileFormat").PUFFIN).build()
    previous = java_class(spark, "java.util.HashMap")()
    load_previous = java_class(spark, "com.google.common.base.Functions").forMap(previous, None)
    writer = iceberg_class(spark, "deletes.BaseDVFileWriter")(factory, load_previous)
    store = store_of(spark, table)
    for deletion in deletions:
        task = tasks.unchanged(deletion.file)
        for old in items(task.deletes()):
            assert deletion.file.vector is not None
            blob = read_blob(store, deletion.file.vector)
            previous.put(deletion.file.path, indexes.deserialize(blob, old))
        spec, partition = task.spec(), task.file().partition()
        described = _describe(builders.deleteFileBuilder(spec), partition, deletion)
        index = indexes.deserialize(deletion.blob, described)
        writer.delete(deletion.file.path, index, spec, partition)
    writer.close()
    return writer.result()


def _describe(builder: Any, partition: Any, deletion: DeletionVector) -> Any:
    """Describe a deletion vector: Iceberg checks the blob's length and cardinality against this."""
    size_bytes = len(deletion.blob)
    return (
        builder.ofPositionDeletes()
        .withFormat("puffin")
        .withPath("memory")
        .withPartition(partition)
        .withFileSizeInBytes(size_bytes)
        .withRecordCount(deletion.cardinality)
        .withReferencedDataFile(deletion.file.path)
        .withContentOffset(0)
        .withContentSizeInBytes(size_bytes)
        .build()
    )
