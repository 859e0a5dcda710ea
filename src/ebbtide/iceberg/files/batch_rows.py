"""Batch rows: read as columns for the decisions in `log`, and changed by their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.columns.batch_headers import COLUMNS, BatchHeaders, of_partitions
from ebbtide.columns.row_changes import CHANGED
from ebbtide.errors import SafetyError
from ebbtide.iceberg.files.data_files import (
    MAX_OFFSET,
    SegmentFiles,
    count_rows,
    in_segments,
    plan_segments,
    read_segment,
    write_rows,
)
from ebbtide.iceberg.files.field_ids import together
from ebbtide.iceberg.files.file_commits import Commit, Replacement, new_paths, prepare_replacements
from ebbtide.iceberg.holds import Hold
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.records.arrays import Bools
from ebbtide.spark.tasks import map_segments


def read_headers(
    spark: SparkSession, batches_table: str, partitions: Iterable[int], snapshot: int | None = None
) -> dict[int, BatchHeaders]:
    """The headers of whole partitions, as of a snapshot or now; none for a partition without."""
    snapshot = snapshot or current_snapshot(spark, batches_table)
    empty = {partition: BatchHeaders(_NO_HEADERS) for partition in partitions}
    if snapshot is None:
        return empty
    units = plan_segments(spark, batches_table, snapshot, dict.fromkeys(empty, MAX_OFFSET))
    tables = [read_segment(unit, ("partition", *COLUMNS), "base_offset").table for unit in units]
    return empty | (of_partitions(together(tables, units[0].columns)) if tables else {})


_NO_HEADERS = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})


def has_old_magic(spark: SparkSession, batches_table: str, records: pa.Table) -> Bools:
    """Whether each record (`partition, batch`) came in a batch of magic 0 or 1."""
    found = np.zeros(records.num_rows, np.bool_)
    partitions = records["partition"].to_numpy()
    for partition, units in _units_of(spark, batches_table, records).items():
        mine = partitions == partition
        tables = [read_segment(u, ("base_offset", "magic"), "base_offset").table for u in units]
        headers = together(tables, units[0].columns).sort_by("base_offset")
        bases = headers["base_offset"].to_numpy()
        batches = records["batch"].to_numpy()[mine]
        at = np.minimum(np.searchsorted(bases, batches), len(bases) - 1)
        if np.any(bases[at] != batches):
            raise SafetyError(
                f"expected a row of {batches_table} for each batch that has records in "
                f"partition {partition}, found none for the batch at "
                f"{int(batches[bases[at] != batches][0])}; roll the tables back to a snapshot "
                "before it went"
            )
        found[mine] = headers["magic"].to_numpy()[at] < 2
    return found


def _units_of(
    spark: SparkSession, batches_table: str, records: pa.Table
) -> dict[int, list[SegmentFiles]]:
    """The batch rows' files that may hold the records' batches, by partition."""
    snapshot = current_snapshot(spark, batches_table)
    ranges = {
        row["partition"]: (row["batch_min"], row["batch_max"])
        for row in records.group_by("partition")
        .aggregate([("batch", "min"), ("batch", "max")])
        .to_pylist()
    }
    if snapshot is None or not ranges:
        return {}
    ends = {partition: last + 1 for partition, (_, last) in ranges.items()}
    found: dict[int, list[SegmentFiles]] = {}
    for unit in plan_segments(spark, batches_table, snapshot, ends):
        mine = found.setdefault(unit.partition, [])
        if unit.segment <= ranges[unit.partition][0]:
            mine.clear()  # those before end where this one begins
        mine.append(unit)
    return found


def prepare_changes(
    spark: SparkSession,
    batches_table: str,
    changes: pa.Table,
    properties: Mapping[str, str],
    hold: Hold | None = None,
) -> Commit:
    """Write the segments anew that hold the rows which `changes` changes or removes.

    Rows are found by their base offsets, wherever other tools have moved them; SafetyError where
    one is gone, CommitConflictError where another writer moves files meanwhile.
    """
    snapshot = current_snapshot(spark, batches_table)
    assert snapshot is not None
    by_segment = in_segments(changes, "base_offset")
    ends = {partition: segment + 1 for partition, segment in by_segment}  # by its last segment
    units = [
        unit
        for unit in plan_segments(spark, batches_table, snapshot, ends)
        if (unit.partition, unit.segment) in by_segment
    ]
    _check_found(batches_table, by_segment.keys() - {(u.partition, u.segment) for u in units})
    paths = new_paths(spark, batches_table, units)
    work = [
        (unit, by_segment[unit.partition, unit.segment], path)
        for unit, path in zip(units, paths, strict=True)
    ]
    replacements = map_segments(spark, _write_changed, work, count_rows(units), "writes headers of")
    return prepare_replacements(spark, batches_table, replacements, properties, hold)


def _check_found(batches_table: str, missing: Iterable[tuple[int, int]]) -> None:
    for partition, segment in sorted(missing):
        raise SafetyError(
            f"expected {batches_table} to hold rows of partition {partition}, segment {segment}, "
            "which a round changes, found none: another tool removed them; roll the table back "
            "to a snapshot before that"
        )


def _write_changed(work: tuple[SegmentFiles, pa.Table, str]) -> Replacement:
    """In a task: write a segment with its changes to a new file."""
    unit, changes, path = work
    rows = _changed(unit, changes)
    if not rows.num_rows:
        return Replacement(unit, None)
    write_rows(unit.store, path, rows)
    return Replacement(unit, path)


def _changed(unit: SegmentFiles, changes: pa.Table) -> pa.Table:
    """The segment's rows after their changes."""
    rows = read_segment(unit, None, "base_offset").table.combine_chunks()
    bases, wanted = rows["base_offset"].to_numpy(), changes["base_offset"].to_numpy()
    at = np.minimum(np.searchsorted(bases, wanted), len(bases) - 1)
    if np.any(bases[at] != wanted):
        raise SafetyError(
            f"expected the batch at offset {int(wanted[bases[at] != wanted][0])} of partition "
            f"{unit.partition} among the rows of segment {unit.segment}, found none: another tool "
            "removed it; roll the batches table back to a snapshot before that"
        )
    is_changed = np.zeros(rows.num_rows, np.bool_)
    is_changed[at] = True
    mask = pa.array(is_changed)
    for name in (*CHANGED, "max_event_time_ms"):
        changed = changes[name].combine_chunks().cast(rows[name].type)
        column = pc.replace_with_mask(rows[name], mask, changed)
        rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
    crc = pc.if_else(mask, pa.scalar(None, pa.int64()), rows["crc"])
    rows = rows.set_column(rows.schema.get_field_index("crc"), rows.field("crc"), crc)
    keeps = np.ones(rows.num_rows, np.bool_)
    keeps[at[changes["is_removed"].to_numpy()]] = False
    return rows.filter(pa.array(keeps))
