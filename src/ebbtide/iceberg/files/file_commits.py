"""Commit single files through Iceberg's own Java classes: no statement, so no scan.

Iceberg: RowDelta for deletion vectors and for files, RewriteFiles.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.applied_commits import commit_update
from ebbtide.iceberg.files.data_files import DataFile, DeletionVector, SegmentFiles, write_vectors
from ebbtide.iceberg.files.described_files import DescribedFiles, describe_listed
from ebbtide.iceberg.files.manifests import SegmentPlace, Wanted, current_files
from ebbtide.iceberg.files.segment_planning import (
    PlannedFile,
    among,
    below,
    near_segments,
    planned_files,
)
from ebbtide.iceberg.work_tags import WorkTag, tagging
from ebbtide.spark.jvm import ICEBERG, JavaMethod, java_list, texts

# Commits the prepared change; returns the id of its snapshot.
Commit = Callable[[], int]


class Replacement(NamedTuple):
    """A segment's files, and the one that takes their place; None where no row is left."""

    unit: SegmentFiles
    path: str | None


def new_paths(spark: SparkSession, table: str, units: Sequence[SegmentFiles]) -> list[str]:
    """Return a new file's path for each segment; no two calls give the same."""
    places = [(unit.partition, unit.segment) for unit in units]
    return new_locations(open_table(spark, table), places)


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


def new_locations(table: Table, segments: Iterable[SegmentPlace]) -> list[str]:
    """Return the path of one more file of each segment, by Iceberg's location provider."""
    names = [
        f"partition={partition}/segment={segment}/{uuid.uuid4().hex}.parquet"
        for partition, segment in segments
    ]
    spark, provider = table.spark, ICEBERG + "io.LocationProvider"
    locate = JavaMethod.of(spark, provider, "newDataLocation", "java.lang.String")
    return texts(spark, locate.on(table.java.locationProvider()).map(java_list(spark, names)))


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
    tag: WorkTag | None = None,
    before: int | None = None,
) -> Commit:
    """Write the deletions of a delta whose segments lie below each partition's end offset.

    The commit of all is one snapshot; CommitConflictError where a file changed meanwhile. With
    `tag` it is tagged, and so is the snapshot `before`, on which it was planned.
    """
    opened = open_table(spark, table)
    assert opened.current is not None
    snapshot = opened.current.id
    current = _CurrentFiles.of(opened, snapshot, below(ends))
    described = DescribedFiles.of(opened)
    deleted_from = [current.unchanged(deletion.file) for deletion in delta.deletions]
    vectors = _write_vectors(opened, delta.deletions, deleted_from)
    leaving = [*(unit for unit, _ in delta.replaced), *delta.dropped]
    removed = [current.unchanged(file) for unit in leaving for file in unit.files]
    begun = _Begun.of(opened, tag, before)
    update = _FileUpdate(spark, begun.updates.newRowDelta(), "RowDelta")
    update.updates.validateFromSnapshot(snapshot)
    # Also where a delete-only commit has dropped them, which Iceberg would let pass otherwise.
    update.updates.validateDeletedFiles()
    paths = [deletion.file.path for deletion in delta.deletions]
    update.updates.validateDataFilesExist(java_list(spark, paths))
    if leaving:
        segments = {(unit.partition, unit.segment) for unit in leaving}
        update.updates.conflictDetectionFilter(near_segments(spark, segments))
        update.updates.validateNoConflictingDeleteFiles()
    if delta.replaced:
        update.updates.validateNoConflictingDataFiles()
    update.deletes("addDeletes", described.deletes(vectors))
    gone = [of.vector for of in (*deleted_from, *removed) if of.vector is not None]
    update.deletes("removeDeletes", described.deletes(map(describe_listed, gone)))
    update.data("removeRows", described.data(describe_listed(of.listed) for of in removed))
    new = described.read_new((*delta.added, *delta.replaced))
    update.data("addRows", described.data(new))
    return begun.commit_of(update.updates, properties)


def prepare_rewrite(
    spark: SparkSession,
    table: str,
    segments: Collection[SegmentPlace],
    replacements: Sequence[Replacement],
    properties: Mapping[str, str],
    tag: WorkTag | None = None,
    dangling: Collection[str] = (),
) -> Commit:
    """Prepare to replace files by others that hold the same rows, and remove their vectors.

    All replaced files lie in `segments`. `dangling` names data files that are no longer in the
    table; their vectors are removed too. Raise CommitConflictError where a file changed
    meanwhile.
    """
    opened = open_table(spark, table)
    assert opened.current is not None
    snapshot = opened.current.id
    current = _CurrentFiles.of(opened, snapshot, among(segments))
    described = DescribedFiles.of(opened)
    removed = [current.unchanged(file) for unit, _ in replacements for file in unit.files]
    begun = _Begun.of(opened, tag, snapshot)
    update = _FileUpdate(spark, begun.updates.newRewrite(), "RewriteFiles")
    update.updates.validateFromSnapshot(snapshot)
    update.data("deleteFile", described.data(describe_listed(of.listed) for of in removed))
    gone = [of.vector for of in removed if of.vector is not None]
    if dangling:
        files = current_files(opened)
        gone += [file for file in files if not file.is_data and file.referenced in dangling]
    update.deletes("deleteFile", described.deletes(map(describe_listed, gone)))
    update.data("addFile", described.data(described.read_new(replacements)))
    return begun.commit_of(update.updates, properties)


class _FileUpdate(NamedTuple):
    """One of Iceberg's updates, which takes files by methods of its kind."""

    spark: SparkSession
    updates: Any
    kind: str

    def data(self, method: str, files: Any) -> None:
        """Call the method with each data file of a Java list."""
        self._for_each(method, files, "DataFile")

    def deletes(self, method: str, files: Any) -> None:
        """Call the method with each delete file of a Java list."""
        self._for_each(method, files, "DeleteFile")

    def _for_each(self, method: str, files: Any, of: str) -> None:
        called = JavaMethod.of(self.spark, ICEBERG + self.kind, method, ICEBERG + of)
        called.on(self.updates).for_each(files)


class _Begun(NamedTuple):
    """An update that has begun, and what commits it and returns its snapshot's id.

    With tags if it is to be held.
    """

    updates: Any
    commit: Callable[[Any], int]

    @classmethod
    def of(cls, table: Table, tag: WorkTag | None, before: int | None) -> _Begun:
        if tag is None or before is None:
            return cls(table.java, partial(commit_update, table.spark, table.java))
        updates, commit = tagging(table, tag, before)

        def tagged(update: Any) -> int:
            commit(update)
            return int(table.java.currentSnapshot().snapshotId())

        return cls(updates, tagged)

    def commit_of(self, update: Any, properties: Mapping[str, str]) -> Commit:
        for name, value in own_summary(properties).items():
            update = update.set(name, value)
        return partial(self.commit, update)


class _CurrentFiles(NamedTuple):
    """The files of some segments that a table has now, by path."""

    by_path: Mapping[str, PlannedFile]

    @classmethod
    def of(cls, table: Table, snapshot: int, wanted: Wanted) -> _CurrentFiles:
        planned = planned_files(table, snapshot, wanted)
        return cls({of.file.path: of for of in planned})

    def unchanged(self, file: DataFile) -> PlannedFile:
        """Return a file as it is listed, with the deletions that it was planned with."""
        listed = self.by_path.get(file.path)
        if listed is not None and listed.file.vector == file.vector:
            return listed
        raise CommitConflictError(
            f"expected {file.path} as the round was planned on it, found that another writer "
            "rewrote it or deleted from it; run the job again"
        )


def _write_vectors(
    table: Table,
    deletions: Sequence[DeletionVector],
    files: Sequence[PlannedFile],
) -> Iterator[dict[str, Any]]:
    """Write the deletion vectors of files to one Puffin file; return them for Iceberg."""
    if not deletions:
        return iter(())
    name = f"{uuid.uuid4().hex}-deletes.puffin"
    path = str(table.java.locationProvider().newDataLocation(name))
    written = write_vectors(table.store, path, deletions)
    return (
        {
            **describe_listed(of.listed),
            "content": "position-deletes",
            "file-path": path,
            "file-format": "puffin",
            "file-size-in-bytes": written.size_bytes,
            "record-count": deletion.cardinality,
            "referenced-data-file": deletion.file.path,
            "content-offset": position,
            "content-size-in-bytes": len(deletion.blob),
        }
        for deletion, of, position in zip(deletions, files, written.positions, strict=True)
    )
