"""Batch rows: read as columns for the decisions in `log`, and changed by their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.frames.headers import COLUMNS, Headers, of_partitions
from ebbtide.log.batches import Batch
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

# What a round may change of a batch row; its CRC goes.
CHANGED = (
    "last_offset",
    "magic",
    "attributes",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "record_count",
    "size_bytes",
    "header_base_offset",
    "producer_timestamp_ms",
)
_CHANGES = pa.schema(
    [
        ("partition", pa.int32()),
        ("segment", pa.int64()),
        ("base_offset", pa.int64()),
        ("is_removed", pa.bool_()),
        ("max_event_time_ms", pa.int64()),
        ("last_offset", pa.int64()),
        ("magic", pa.int32()),
        ("attributes", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("record_count", pa.int32()),
        ("size_bytes", pa.int32()),
        ("header_base_offset", pa.int64()),
        ("producer_timestamp_ms", pa.int64()),
    ]
)


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


def changes_table(
    partition: int, segment: int, changes: Sequence[tuple[Batch, Batch | None, int]]
) -> pa.Table:
    """Rows for `prepare_changes`: (before, after or None, max event time in ms)."""
    left = [after or before for before, after, _ in changes]
    return pa.table(
        {
            "partition": [partition] * len(changes),
            "segment": [segment] * len(changes),
            "base_offset": [before.base_offset for before, _, _ in changes],
            "is_removed": [after is None for _, after, _ in changes],
            "max_event_time_ms": [newest for _, _, newest in changes],
            **{name: [getattr(batch, name) for batch in left] for name in CHANGED},
        },
        schema=_CHANGES,
    )


def after_changes(batch: Batch, changes: pa.Table) -> Batch:
    """The batch with what `changes` says of it; one that they remove stays as it was."""
    mine = changes.filter(pc.field("base_offset") == batch.base_offset).to_pylist()
    return batch._replace(**{name: row[name] for row in mine for name in CHANGED})


def no_changes() -> pa.Table:
    """A table of changes without any."""
    return _CHANGES.empty_table()


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
