"""Change own tables by files: remove rows, append files, find rows beyond the log end offset."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import Table, find_table, open_table
from ebbtide.iceberg.commits import LEFT, Step, commit, own_summary
from ebbtide.iceberg.data_files import (
    DataFile,
    DeletionVector,
    SegmentFiles,
    SegmentRows,
    arrow_schema,
    count_rows,
    deletion_of,
    ends_of,
    numbers_in,
    read_segment,
)
from ebbtide.iceberg.file_commits import (
    DescribedFiles,
    Description,
    Place,
    RowDelta,
    commit_update,
    describe,
    describe_listed,
    new_locations,
    prepare_row_delta,
)
from ebbtide.iceberg.manifests import current_files
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.segment_planning import (
    ColumnBounds,
    among,
    plan_segments,
    plan_where,
    planned_files,
)
from ebbtide.iceberg.topics import current_snapshot, own_spec_id
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools
from ebbtide.spark.expressions import IcebergExpressions, any_of
from ebbtide.spark.jvm import ICEBERG, JavaMethod
from ebbtide.spark.tasks import map_segments
from ebbtide.stores.store import Store


class Leaving(NamedTuple):
    """The rows of one segment to remove: by deletion vectors, or with files that lose all rows."""

    unit: SegmentFiles
    rows: int = 0
    deletions: tuple[DeletionVector, ...] = ()
    dropped: tuple[DataFile, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if the segment retains no row."""
        return len(self.dropped) == len(self.unit.files)


class Deleted(NamedTuple):
    """The outcome of a removal."""

    snapshot: int | None = None  # that removed the rows; None: there were none
    files: Sequence[DataFile] = ()  # removed entirely

    @property
    def snapshots(self) -> list[int]:
        """The snapshot's id in a list, or an empty list."""
        return [] if self.snapshot is None else [self.snapshot]


def delete_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    segments: Mapping[int, Sequence[int]],
    step: Step,
    properties: Mapping[str, str],
) -> int | None:
    """Remove whole physical segments by a metadata commit; return its snapshot's id.

    `segments` has base offsets by partition. Only their files in `snapshot` are removed: a file
    that an ingest has added since then stays.
    """
    opened = open_table(spark, table)
    delete = opened.java.newDelete().validateFilesExist()
    places = {(partition, base) for partition, bases in segments.items() for base in bases}
    planned = planned_files(opened, snapshot, among(places))
    files = DescribedFiles.of(opened).data(describe_listed(file.listed) for file in planned)
    by_file = JavaMethod.of(spark, ICEBERG + "DeleteFiles", "deleteFile", ICEBERG + "DataFile")
    by_file.on(delete).for_each(files)
    for name, value in own_summary(properties).items():
        delete = delete.set(name, value)
    return commit(step, partial(commit_update, spark, opened.java, delete))


def leaving_of(unit: SegmentFiles, rows: SegmentRows, leaves: Bools) -> Leaving:
    """Return the rows of a segment to remove, given by a mask over its live rows."""
    deletions: list[DeletionVector] = []
    dropped: list[DataFile] = []
    for number, file in enumerate(unit.files):
        positions = rows.positions[leaves & (rows.files == number)]
        if len(positions) == file.live_count:
            dropped.append(file)
        elif len(positions):
            deletions.append(deletion_of(unit.store, file, positions))
    return Leaving(unit, int(np.count_nonzero(leaves)), tuple(deletions), tuple(dropped))


def delete_leaving(
    spark: SparkSession,
    table: str,
    leaving: Sequence[Leaving],
    step: Step,
    properties: Mapping[str, str] | None = None,
) -> Deleted:
    """Remove the rows by one commit. Raise CommitConflictError if another writer changed a file."""
    leaving = [of_segment for of_segment in leaving if of_segment.rows]
    if not leaving:
        return Deleted()
    delta = RowDelta(
        [deletion for segment in leaving for deletion in segment.deletions],
        dropped=[
            segment.unit._replace(files=segment.dropped) for segment in leaving if segment.dropped
        ],
    )
    ends = ends_of(of_segment.unit for of_segment in leaving)
    snapshot = commit(step, prepare_row_delta(spark, table, ends, delta, properties or {}))
    return Deleted(snapshot, [file for segment in leaving for file in segment.dropped])


def delete_positions(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    positions: Mapping[str, BitMap64],
    step: Step,
) -> Deleted:
    """Remove rows, given by file and position; a file without a retained row is removed entirely.

    Their segments are below each partition's end offset. Raise CommitConflictError if another
    writer replaced a file.
    """
    snapshot = current_snapshot(spark, table)
    if snapshot is None or not positions:
        return Deleted()
    units = plan_segments(spark, table, snapshot, ends)
    files = {file.path: (unit, file) for unit in units for file in unit.files}
    if missing := sorted(positions.keys() - files.keys()):
        raise CommitConflictError(
            f"expected data file {missing[0]}, which has rows to remove, in {table}, found none: "
            "another tool replaced it. Run the job again"
        )
    leaving = []
    for path, of_file in positions.items():
        unit, file = files[path]
        is_whole = len(of_file) == file.live_count
        deletions = () if is_whole else (deletion_of(unit.store, file, numbers_in(of_file)),)
        leaving.append(Leaving(unit, len(of_file), deletions, (file,) if is_whole else ()))
    return delete_leaving(spark, table, leaving, step)


# Rows of a table at or above the log end offset that the state records for their partition: they
# are not part of the log yet. A job that was killed wrote them, or one that is still appending. The
# next job commits only if no such row was added since it read the table. So of two concurrent jobs
# one fails before its rows become part of the log.


class RowsBeyond(NamedTuple):
    """Rows at or above an offset of each partition, as of a snapshot (None: of an empty table)."""

    spark: SparkSession
    table: str
    column: str  # the offset column
    ends: Mapping[int, int]
    snapshot: int | None

    def guard(self, update: Any) -> Any:
        """Make an update fail if another writer has added such rows since the snapshot."""
        rows = IcebergExpressions.of(self.spark).rows_from(self.column, self.ends)
        update = update.conflictDetectionFilter(rows).validateNoConflictingData()
        return update if self.snapshot is None else update.validateFromSnapshot(self.snapshot)

    def guard_writer(self, writer: DataFrameWriterV2) -> DataFrameWriterV2:
        """Make Spark's writer fail in that case, if it then overwrites by `condition`."""
        writer = writer.option("isolation-level", "serializable")
        if self.snapshot is None:
            return writer
        return writer.option("validate-from-snapshot-id", str(self.snapshot))

    @property
    def condition(self) -> Column:
        """Spark's condition for these rows."""
        parts = [f"`partition` = {p} AND {self.column} >= {end}" for p, end in self.ends.items()]
        return F.expr(any_of(parts))

    def drop(self, step: Step) -> Deleted:
        """Delete the rows of the snapshot by one commit, but no row that was added since.

        The snapshot's summary marks them as leftovers, which do not count as removed records. Raise
        CommitConflictError if another writer changed their files.
        """
        if self.snapshot is None:
            return Deleted()
        return delete_leaving(self.spark, self.table, self._find(), step, {LEFT: "true"})

    def partitions(self, bounds: OffsetsOfFiles) -> set[int]:
        """Return the partitions that have such a row, live and in the snapshot.

        A file that is only partly beyond its partition's offset is read: another tool has merged
        it.
        """
        found, unsure = set[int](), dict[int, int]()
        for partition, end in self.ends.items():
            reaching = [first for first, last in bounds.get(partition, ()) if last >= end]
            if any(first >= end for first in reaching):
                found.add(partition)
            elif reaching:
                unsure[partition] = end
        if unsure:
            leaving = self._replace(ends=unsure)._find()
            found |= {found_in.unit.partition for found_in in leaving if found_in.rows}
        return found

    def _find(self) -> list[Leaving]:
        assert self.snapshot is not None
        units = plan_where(
            self.spark,
            self.table,
            self.snapshot,
            dict.fromkeys(self.ends, MAX_OFFSET),
            partial(_may_hold, self.ends, self.column),
        )
        find = partial(_find_in, self.ends, self.column)
        return map_segments(
            self.spark, find, units, count_rows(units), "finding rows past the log end in"
        )


# The least and largest offset of each of a partition's files, by partition.
OffsetsOfFiles = Mapping[int, Sequence[tuple[int, int]]]


def offsets_of_files(table: Table, column: str) -> OffsetsOfFiles:
    """Return the range of each file's offsets in the newest snapshot, from the manifests.

    Deleted rows count too.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    column_id = next(c.field_id for c in table.metadata.columns if c.name == column)
    for file in current_files(table, has_bounds=True):
        if file.is_data:
            assert file.bounds is not None
            lower, upper = file.bounds.lower, file.bounds.upper
            offsets = lower.get(column_id, 0), upper.get(column_id, MAX_OFFSET)
            found.setdefault(file.partition["partition"], []).append(offsets)
    return found


def _may_hold(ends: Mapping[int, int], column: str, partition: int, columns: ColumnBounds) -> bool:
    last = columns.upper(column)
    return last is None or last >= ends[partition]


def _find_in(ends: Mapping[int, int], column: str, unit: SegmentFiles) -> Leaving:
    """Find a segment's rows at or above its partition's end, in a task."""
    rows = read_segment(unit, (column,), column)
    is_beyond = pc.greater_equal(rows.table[column], ends[unit.partition])
    return leaving_of(unit, rows, is_beyond.to_numpy())


# Arrow's size of a row group; each thread holds that much of a file in memory.
GROUP_BYTES = 64 * 1024 * 1024
_FAST = 1  # of zlib's levels
# After this time a commit checks that its files still exist: another tool may remove orphans.
CHECKED_AFTER_S = 15 * 60
CHECKED_AT_ONCE = 16
_CODEC = "write.parquet.compression-codec"
_LEVEL = "write.parquet.compression-level"
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}


# A written data file.
NewFile = Description
# Several new files, compressed: as Python objects each takes 9 kB.
PackedFiles = bytes


class Target(NamedTuple):
    """A file to write, in any process."""

    store: Store
    schema: pa.Schema  # with Iceberg's field ids
    codec: str
    level: int | None
    place: Place


class Appending(NamedTuple):
    """A table to which rows with some of its columns are to be appended."""

    table: Table
    target: Target  # without its place
    since: float  # monotonic time; no written file is older

    @classmethod
    def of(cls, spark: SparkSession, table: str, names: Sequence[str]) -> Appending:
        """Load the current table. Raise ConfigurationError if it lacks one of the columns."""
        opened = open_table(spark, table)
        properties = opened.metadata.properties
        codec, level = properties.get(_CODEC, "zstd").lower(), properties.get(_LEVEL)
        place = Place(own_spec_id(opened), 0, 0, "")
        target = Target(
            opened.store,
            arrow_schema(opened, names),
            _CODECS.get(codec, codec),
            None if level is None else int(level),
            place,
        )
        return cls(opened, target, time.monotonic())

    def targets(self, segments: Iterable[tuple[int, int]]) -> list[Target]:
        """Return one new file per (partition, segment)."""
        segments = list(segments)
        paths = new_locations(self.table, segments)
        return [
            self.target._replace(place=Place(self.target.place.spec_id, *segment, path))
            for segment, path in zip(segments, paths, strict=True)
        ]

    def append(
        self, files: Iterable[PackedFiles], beyond: RowsBeyond, properties: Mapping[str, str]
    ) -> int:
        """Commit the written files; return the snapshot's id.

        The commit is a conflict if another writer has added rows to `beyond` meanwhile. Raise
        CommitConflictError too if a file that was written long ago no longer exists.
        """
        written = list(_unpacked(files))
        if time.monotonic() - self.since >= CHECKED_AFTER_S:
            _check_there(self.table, [str(file["file-path"]) for file in written])
        update = beyond.guard(self.table.java.newOverwrite())
        for name, value in own_summary(properties).items():
            update = update.set(name, value)
        method = (ICEBERG + "OverwriteFiles", "addFile", ICEBERG + "DataFile")
        append = JavaMethod.of(self.table.spark, *method)
        append.on(update).for_each(DescribedFiles.of(self.table).data(written))
        return commit_update(self.table.spark, self.table.java, update)


def _check_there(table: Table, paths: Sequence[str]) -> None:
    """Raise CommitConflictError if a file that a commit is about to add no longer exists."""
    with ThreadPoolExecutor(CHECKED_AT_ONCE) as pool:
        are_there = pool.map(table.store.has, paths)
        gone = [path for path, is_there in zip(paths, are_there, strict=True) if not is_there]
    if gone:
        raise CommitConflictError(
            f"expected {gone[0]}, which this job wrote and was about to commit, found that "
            f"{len(gone)} of {len(paths)} such files are missing: another tool removed them as "
            "orphans. Give remove_orphan_files an age longer than any job takes, such as 3 days, "
            "and run the job again"
        )


def write_new_file(target: Target, rows: Iterable[pa.Table]) -> NewFile | None:
    """Write rows in row groups of GROUP_BYTES, in a task; return None without a row."""
    groups = in_groups(rows, GROUP_BYTES)
    first = next(groups, None)
    if first is None:
        return None
    footers: list[pq.FileMetaData] = []
    with target.store.writing(target.place.path) as stream:
        with pq.ParquetWriter(
            stream,
            target.schema,
            compression=target.codec,
            compression_level=target.level,
            metadata_collector=footers,
        ) as writer:
            _write_group(writer, first)
            for group in groups:
                _write_group(writer, group)
        size_bytes = stream.tell()
    return describe(target.place, target.schema, footers[0], size_bytes)


def pack(files: list[Any]) -> list[Any]:
    """Pack the results of `write_new_file`; `map_segments` calls this to fold them."""
    written = [file for file in files if file is not None]
    return [zlib.compress(json.dumps(written).encode(), _FAST)]


def _unpacked(packed: Iterable[PackedFiles]) -> Iterator[NewFile]:
    for some in packed:
        yield from json.loads(zlib.decompress(some))


def _write_group(writer: pq.ParquetWriter, group: pa.Table) -> None:
    writer.write_table(group.cast(writer.schema), row_group_size=group.num_rows)


def in_groups(rows: Iterable[pa.Table], least_bytes: int) -> Iterator[pa.Table]:
    """Yield tables of at least this size, except the last. A table without a row is left out."""
    held: list[pa.Table] = []
    size_bytes = 0
    for some in rows:
        if not some.num_rows:
            continue
        held.append(some)
        size_bytes += some.nbytes
        if size_bytes >= least_bytes:
            yield pa.concat_tables(held)
            held, size_bytes = [], 0
    if held:
        yield pa.concat_tables(held)


_AT_ONCE = 16


class LostList(NamedTuple):
    """A table whose newest snapshot cannot be read, and the snapshot before it, if any."""

    table: str
    snapshot: int
    path: str
    parent: int | None


def lost_list(spark: SparkSession, name: str) -> LostList | None:
    """Return the newest snapshot of a table if its manifest list is missing, or None."""
    table = find_table(spark, name)
    if table is None or table.current is None or not _is_lost(table, table.current):
        return None
    current = table.current
    return LostList(str(table), current.id, current.manifest_list, current.parent)


def forget_lost(spark: SparkSession, name: str) -> None:
    """Expire all snapshots of a table, except the newest, whose manifest list is missing.

    Iceberg's expiry would read that list. Files that only these snapshots name are not deleted.
    """
    table = open_table(spark, name)
    older = [version for version in table.metadata.snapshots.values() if version != table.current]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        are_lost = list(pool.map(partial(_is_lost, table), older))
    lost = [version.id for version, is_lost in zip(older, are_lost, strict=True) if is_lost]
    if not lost:
        return
    tags = [tag for tag in table.metadata.refs if table.java.refs().get(tag).snapshotId() in lost]
    if tags:
        refs = table.java.manageSnapshots()
        for tag in tags:
            refs = refs.removeTag(tag)
        commit(Step.TAGS_RELEASED, refs.commit)
    expiry = table.java.expireSnapshots().cleanExpiredFiles(False)
    for snapshot in lost:
        expiry = expiry.expireSnapshotId(snapshot)
    commit(Step.LOST_SNAPSHOTS, expiry.commit)


def _is_lost(table: Table, snapshot: Snapshot) -> bool:
    return not table.store.has(snapshot.manifest_list)
