"""The rows of a table at or above an offset of each partition: nobody's yet, until a state says so.

They are those of a job that was killed, or that still appends. The next job commits only if the
table has no others than it found, so that one of two jobs at work fails before anything shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.commits import LEFT, Step
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.deletes import Deleted, Leaving, delete_leaving, leaving_of
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.iceberg.files.segment_planning import ColumnBounds, plan_where
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.conditions import IcebergExpressions, any_of
from ebbtide.spark.tasks import map_segments


class RowsBeyond(NamedTuple):
    """Rows of some partitions from an offset of each on, as of a snapshot; None for no snapshot."""

    spark: SparkSession
    table: str
    column: str  # that the offsets are of
    ends: Mapping[int, int]
    snapshot: int | None

    def guard(self, update: Any) -> Any:
        """Let an update fail if somebody has added such rows since the snapshot."""
        rows = IcebergExpressions.of(self.spark).rows_from(self.column, self.ends)
        update = update.conflictDetectionFilter(rows).validateNoConflictingData()
        return update if self.snapshot is None else update.validateFromSnapshot(self.snapshot)

    def guard_writer(self, writer: DataFrameWriterV2) -> DataFrameWriterV2:
        """Let Spark's writer fail so, if it then overwrites what `condition` says."""
        writer = writer.option("isolation-level", "serializable")
        if self.snapshot is None:
            return writer
        return writer.option("validate-from-snapshot-id", str(self.snapshot))

    @property
    def condition(self) -> Column:
        """The rows, as a condition of Spark's."""
        parts = [f"`partition` = {p} AND {self.column} >= {end}" for p, end in self.ends.items()]
        return F.expr(any_of(parts))

    def drop(self, step: Step) -> Deleted:
        """Delete the rows of the snapshot by one commit, and none that was added since.

        The count of removed records leaves them out.

        CommitConflictError if another writer changed their files.
        """
        if self.snapshot is None:
            return Deleted()
        return delete_leaving(self.spark, self.table, self._find(), step, {LEFT: "true"})

    def partitions(self, bounds: OffsetsOfFiles) -> set[int]:
        """Return the partitions that have such a row, live and in the snapshot.

        A file of which only some rows lie beyond is read: another tool has put it together.
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
        return map_segments(self.spark, find, units, count_rows(units), "finds new rows of")


# The least and largest offset of each of a partition's files, by partition.
OffsetsOfFiles = Mapping[int, Sequence[tuple[int, int]]]


def offsets_of_files(table: Table, column: str) -> OffsetsOfFiles:
    """Return the offsets of a table's newest files by its manifests; deleted rows count too."""
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
    """Find a segment's rows from its partition's end on, in a task."""
    rows = read_segment(unit, (column,), column)
    is_beyond = pc.greater_equal(rows.table[column], ends[unit.partition])
    return leaving_of(unit, rows, is_beyond.to_numpy())
