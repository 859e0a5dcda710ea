"""The two ways in which rows leave: whole segments as metadata, single rows as vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step, commit, own_summary
from ebbtide.iceberg.files.data_files import DataFile, Offsets, deletion_of
from ebbtide.iceberg.files.file_commits import RowDelta, prepare_row_delta
from ebbtide.iceberg.files.segment_planning import plan_segments, tasks_of_segments
from ebbtide.iceberg.topics import current_snapshot, snapshot_after


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
    """Drop whole physical segments, {partition: segments}; the snapshot of the metadata commit.

    Their files are those of `snapshot`: what an ingest has added to one since then stays.
    """
    loaded = java_table(spark, table)
    delete = loaded.newDelete().validateFilesExist()
    places = {(partition, base) for partition, bases in segments.items() for base in bases}
    for task in tasks_of_segments(spark, loaded, places, snapshot):
        delete = delete.deleteFile(task.file())
    for name, value in own_summary(properties).items():
        delete = delete.set(name, value)
    return commit(step, partial(snapshot_after, spark, table, delete.commit))


def delete_rows(spark: SparkSession, table: str, condition: str, step: Step) -> Deleted:
    """Delete the rows for which an SQL condition holds; segment bounds in it must be literals.

    Spark finds them. A DELETE of its own would not notice that another job drops a file meanwhile,
    and leave a vector for it.
    """
    if (snapshot := current_snapshot(spark, table)) is None:
        return Deleted()
    found = (
        spark.sql(
            f"SELECT `partition`, segment, _file AS file, _pos AS position "
            f"FROM {table} VERSION AS OF {snapshot} WHERE {condition}"
        )
        .groupBy("partition", "segment", "file")
        .agg(F.array_sort(F.collect_list("position")).alias("positions"))
        .collect()
    )
    ends: dict[int, int] = {}
    for row in found:
        ends[row["partition"]] = max(row["segment"] + 1, ends.get(row["partition"], 0))
    positions = {row["file"]: np.array(row["positions"], np.int64) for row in found}
    return delete_positions(spark, table, ends, positions, step)


def delete_positions(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    positions: Mapping[str, Offsets],
    step: Step,
) -> Deleted:
    """Delete rows by file and ascending position; a file that keeps none leaves as a whole.

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
    deletions, dropped = [], []
    for path, of_file in positions.items():
        unit, file = files[path]
        dead = file.vector.record_count if file.vector else 0
        if dead + len(of_file) == file.record_count:
            dropped.append(unit._replace(files=(file,)))
        else:
            deletions.append(deletion_of(unit.store, file, of_file))
    delta = RowDelta(deletions, dropped=dropped)
    snapshot = commit(step, prepare_row_delta(spark, table, ends, delta, {}))
    return Deleted(snapshot, [unit.files[0] for unit in dropped])
