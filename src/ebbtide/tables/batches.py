"""Batch rows: read as columns for the decisions in `log`, and changed by their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.frames.changes import CHANGED
from ebbtide.frames.headers import COLUMNS, Headers, of_partitions
from ebbtide.tables.file_commits import Commit, Replacement, new_paths, prepare_replacements
from ebbtide.tables.files import (
    MAX_OFFSET,
    SegmentFiles,
    count_rows,
    plan_segments,
    read_segment,
    write_rows,
)
from ebbtide.tables.tasks import map_segments
from ebbtide.tables.topics import current_snapshot


def read_headers(
    spark: SparkSession, batches_table: str, partitions: Iterable[int], snapshot: int | None = None
) -> dict[int, Headers]:
    """The headers of whole partitions, as of a snapshot or now; none for a partition without."""
    snapshot = snapshot or current_snapshot(spark, batches_table)
    empty = {partition: Headers(_NO_HEADERS) for partition in partitions}
    if snapshot is None:
        return empty
    units = plan_segments(spark, batches_table, snapshot, dict.fromkeys(empty, MAX_OFFSET))
    tables = [read_segment(unit, ("partition", *COLUMNS), "base_offset").table for unit in units]
    return empty | (of_partitions(pa.concat_tables(tables)) if tables else {})


_NO_HEADERS = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})


def prepare_changes(
    spark: SparkSession,
    batches_table: str,
    snapshot: int,
    changes: pa.Table,
    properties: Mapping[str, str],
) -> Commit:
    """Write the segments anew that hold the rows which `changes` changes or removes.

    They are read as of `snapshot`; CommitConflictError where another writer rewrote one since.
    """
    by_segment = _by_segment(changes)
    ends = {partition: segment + 1 for partition, segment in by_segment}  # by its last segment
    units = [
        unit
        for unit in plan_segments(spark, batches_table, snapshot, ends)
        if (unit.partition, unit.segment) in by_segment
    ]
    paths = new_paths(spark, batches_table, units)
    work = [
        (unit, by_segment[unit.partition, unit.segment], path)
        for unit, path in zip(units, paths, strict=True)
    ]
    replacements = map_segments(spark, _write_changed, work, count_rows(units))
    return prepare_replacements(spark, batches_table, replacements, properties)


def _write_changed(work: tuple[SegmentFiles, pa.Table, str]) -> Replacement:
    """In a task: write a segment with its changes to a new file."""
    unit, changes, path = work
    rows = _changed(unit, changes)
    if not rows.num_rows:
        return Replacement(unit, None)
    write_rows(path, rows)
    return Replacement(unit, path)


def _by_segment(changes: pa.Table) -> dict[tuple[int, int], pa.Table]:
    """The changes of each (partition, segment), in offset order."""
    order = [("partition", "ascending"), ("segment", "ascending"), ("base_offset", "ascending")]
    changes = changes.sort_by(order)
    keys = np.stack([changes["partition"].to_numpy(), changes["segment"].to_numpy()])
    found, starts, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
    return {
        (int(partition), int(segment)): changes.slice(start, count)
        for partition, segment, start, count in zip(*found, starts, counts, strict=True)
    }


def _changed(unit: SegmentFiles, changes: pa.Table) -> pa.Table:
    """The segment's rows after their changes."""
    rows = read_segment(unit, None, "base_offset").table.combine_chunks()
    at = np.searchsorted(rows["base_offset"].to_numpy(), changes["base_offset"].to_numpy())
    is_changed = np.zeros(rows.num_rows, np.bool_)
    is_changed[at] = True
    mask = pa.array(is_changed)
    for name in (*CHANGED, "max_event_time_ms"):
        column = pc.replace_with_mask(rows[name], mask, changes[name].combine_chunks())
        rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
    crc = pc.if_else(mask, pa.scalar(None, pa.int64()), rows["crc"])
    rows = rows.set_column(rows.schema.get_field_index("crc"), rows.field("crc"), crc)
    keeps = np.ones(rows.num_rows, np.bool_)
    keeps[at[changes["is_removed"].to_numpy()]] = False
    return rows.filter(pa.array(keeps))
