"""Remove rows in two ways: whole segments by metadata, single rows by deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit, own_summary
from ebbtide.iceberg.files.applied_commits import commit_update
from ebbtide.iceberg.files.data_files import (
    DataFile,
    DeletionVector,
    SegmentFiles,
    SegmentRows,
    deletion_of,
    ends_of,
    numbers_in,
)
from ebbtide.iceberg.files.described_files import DescribedFiles, describe_listed
from ebbtide.iceberg.files.file_commits import RowDelta, prepare_row_delta
from ebbtide.iceberg.files.segment_planning import among, plan_segments, planned_files
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.records.arrays import Bools
from ebbtide.spark.jvm import ICEBERG, JavaMethod


class Leaving(NamedTuple):
    """The rows of one segment that are to leave: by vectors, or with files that keep none."""

    unit: SegmentFiles
    rows: int = 0
    deletions: tuple[DeletionVector, ...] = ()
    dropped: tuple[DataFile, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the segment keeps no row."""
        return len(self.dropped) == len(self.unit.files)


class Deleted(NamedTuple):
    """The snapshot in which rows left, None where there was none, and files that left whole."""

    snapshot: int | None = None
    files: Sequence[DataFile] = ()

    @property
    def snapshots(self) -> list[int]:
        """The snapshot, or none."""
        return [] if self.snapshot is None else [self.snapshot]


def delete_segments(
    spark: SparkSession,
    table: str,
    snapshot: int,
    segments: Mapping[int, Sequence[int]],
    step: Step,
    properties: Mapping[str, str],
) -> int | None:
    """Drop whole physical segments, {partition: segments}; return the metadata commit's snapshot.

    Only their files in `snapshot` are dropped: files that an ingest has added since then stay.
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
    """Return the files and positions of a segment that leave, by a mask over its live rows."""
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
    """Delete the rows by one commit; CommitConflictError where another writer changed a file."""
    leaving = [of_segment for of_segment in leaving if of_segment.rows]
    if not leaving:
        return Deleted()
    delta = RowDelta(
        [deletion for of in leaving for deletion in of.deletions],
        dropped=[of.unit._replace(files=of.dropped) for of in leaving if of.dropped],
    )
    ends = ends_of(of_segment.unit for of_segment in leaving)
    snapshot = commit(step, prepare_row_delta(spark, table, ends, delta, properties or {}))
    return Deleted(snapshot, [file for of in leaving for file in of.dropped])


def delete_positions(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    positions: Mapping[str, BitMap64],
    step: Step,
) -> Deleted:
    """Delete rows by file and position; a file that keeps none leaves as a whole.

    Their segments lie below each partition's end offset. CommitConflictError where another writer
    replaced a file.
    """
    snapshot = current_snapshot(spark, table)
    if snapshot is None or not positions:
        return Deleted()
    units = plan_segments(spark, table, snapshot, ends)
    files = {file.path: (unit, file) for unit in units for file in unit.files}
    if missing := sorted(positions.keys() - files.keys()):
        raise CommitConflictError(
            f"expected {missing[0]} in {table}, which rows are to leave, found that another tool "
            "replaced it; run the job again"
        )
    leaving = []
    for path, of_file in positions.items():
        unit, file = files[path]
        is_whole = len(of_file) == file.live_count
        deletions = () if is_whole else (deletion_of(unit.store, file, numbers_in(of_file)),)
        leaving.append(Leaving(unit, len(of_file), deletions, (file,) if is_whole else ()))
    return delete_leaving(spark, table, leaving, step)
