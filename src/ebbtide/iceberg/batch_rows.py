"""Read rows of the batches table for the rules in `kafka`, and commit the changes they decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.columns.headers import COLUMNS, BatchHeaders
from ebbtide.columns.rewritten_batches import RowChanges, no_changes, with_changes
from ebbtide.columns.transaction_rows import LogHeaders, LogOutline
from ebbtide.errors import SafetyError
from ebbtide.iceberg.data_files import (
    CutOut,
    Offsets,
    SegmentFiles,
    SegmentRows,
    count_rows,
    deletion_of,
    in_segments,
    numbers_in,
    read_segment,
    write_rows,
)
from ebbtide.iceberg.file_commits import Commit, Replacement, RowDelta, new_paths, prepare_row_delta
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.iceberg.work_tags import WorkTag
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools
from ebbtide.spark.tasks import map_segments

# At most this share of a segment's rows is deleted in place; with more, the segment is rewritten.
MAX_DEAD_SHARE = 0.25
# A segment with this many files is rewritten into one.
MAX_FILES = 4
# Headers cost less than records: the driver alone reads up to this many times more of them.
HEADERS_A_RECORD = 8


def look_at_headers(
    spark: SparkSession,
    batches_table: str,
    outlines: Mapping[int, LogOutline],
    snapshot: int | None = None,
) -> dict[int, LogHeaders]:
    """Summarise the batch headers of whole partitions, as of a snapshot; default: the newest."""
    snapshot = snapshot or current_snapshot(spark, batches_table)
    parts: dict[int, list[LogHeaders]] = {partition: [] for partition in outlines}
    if snapshot is not None:
        units = plan_segments(spark, batches_table, snapshot, dict.fromkeys(outlines, MAX_OFFSET))
        look, rows = partial(_look_at, outlines), count_rows(units) // HEADERS_A_RECORD
        doing = "reads headers of"
        for found in map_segments(spark, look, units, rows, doing, _in_partitions):
            for partition, headers in found.items():
                parts[partition].append(headers)
    return {p: LogHeaders.of_all(parts[p], outline) for p, outline in outlines.items()}


def _look_at(outlines: Mapping[int, LogOutline], unit: SegmentFiles) -> dict[int, LogHeaders]:
    """Summarise the headers of one segment, in a task, by partition; return {} if it has no row."""
    headers = BatchHeaders(read_segment(unit, COLUMNS, "base_offset").table)
    if not len(headers):
        return {}
    return {unit.partition: LogHeaders.of(headers, outlines[unit.partition])}


def _in_partitions(found: list[dict[int, LogHeaders]]) -> list[dict[int, LogHeaders]]:
    """Join the headers of neighbouring segments, by partition."""
    parts: dict[int, list[LogHeaders]] = {}
    for of_segment in found:
        for partition, headers in of_segment.items():
            parts.setdefault(partition, []).append(headers)
    return [{partition: LogHeaders.of_some(neighbours) for partition, neighbours in parts.items()}]


def prepare_changes(
    spark: SparkSession,
    batches_table: str,
    changes: RowChanges,
    properties: Mapping[str, str],
    tag: WorkTag | None = None,
    firsts_now: Callable[[], Mapping[int, int]] = dict[int, int],
) -> Commit:
    """Write the changed rows and the deletions of removed rows, and return the commit.

    Rows are found by their base offsets, because another tool may move them to other files. A row
    below its partition's offset in `firsts_now()` may be missing: a concurrent truncation removed
    it. Raise SafetyError if any other row is missing, CommitConflictError if another writer moves
    files meanwhile.
    """
    snapshot = current_snapshot(spark, batches_table)
    assert snapshot is not None
    # Asked after the snapshot is read: a truncation is in the state before its rows are removed.
    firsts = firsts_now()
    changed = in_segments(changes.changed, "base_offset")
    places = changed.keys() | changes.removed.keys()
    ends = {partition: segment + 1 for partition, segment in sorted(places)}  # by its last segment
    units = {
        (unit.partition, unit.segment): unit
        for unit in plan_segments(spark, batches_table, snapshot, ends)
        if (unit.partition, unit.segment) in places
    }
    paths = new_paths(spark, batches_table, [*units.values()])
    work = [
        _ChangedSegment(
            unit,
            changes.removed.get(place, BitMap64()),
            changed.get(place),
            firsts.get(unit.partition, 0),
            path,
        )
        for (place, unit), path in zip(units.items(), paths, strict=True)
    ]
    for place in sorted(places - units.keys()):
        gone = [*changes.removed.get(place, ())]
        if place in changed:
            gone += changed[place].rows["base_offset"].to_pylist()
        _check_left(place, np.array(gone, np.int64), firsts.get(place[0], 0))
    rows = count_rows(units.values())
    written = map_segments(spark, _write_changed, work, rows, "writing headers of")
    delta = RowDelta.of_all(written)
    return prepare_row_delta(spark, batches_table, ends, delta, properties, tag, snapshot)


def _check_left(place: tuple[int, int], gone: Offsets, first: int) -> None:
    """Raise SafetyError unless the missing batches are below the partition's first segment.

    `place` is a partition and a segment of the batches table. `gone` has base offsets.
    """
    if len(lost := gone[gone >= first]):
        raise SafetyError(
            f"expected the batch at offset {int(lost.min())} of partition {place[0]} among the "
            f"rows of segment {place[1]}, found none: another tool removed it. Roll the batches "
            "table back to a snapshot that has it"
        )


class _ChangedSegment(NamedTuple):
    """The changes of one segment, and the path of the file for changed rows."""

    unit: SegmentFiles
    removed: BitMap64  # base offsets
    cut_out: CutOut | None  # in offset order
    first: int  # rows below this offset may be missing
    path: str

    @property
    def changed(self) -> pa.Table:
        """The changed rows, as columns."""
        return no_changes().changed if self.cut_out is None else self.cut_out.rows


class _Places(NamedTuple):
    """Positions among the segment's rows: of those to remove, and of those to change."""

    removed: Offsets
    changed: Offsets

    @property
    def last(self) -> int:
        """The greatest position, or -1."""
        return int(max(*self.removed[-1:], *self.changed[-1:], -1))


def _write_changed(work: _ChangedSegment) -> RowDelta:
    """Delete a segment's removed rows in place, or rewrite the segment if they are many; in a task.

    A segment's last row is never deleted in place: the bounds of its file show where the log ends.
    """
    dead = work.unit.deleted_count + len(work.removed) + work.changed.num_rows
    is_rewritten = dead > MAX_DEAD_SHARE * work.unit.record_count
    is_rewritten |= len(work.unit.files) >= MAX_FILES
    # Each file is read once, and only the columns needed: just offsets if no row changes.
    only_offsets = not is_rewritten and not work.changed.num_rows
    rows = read_segment(work.unit, ("base_offset",) if only_offsets else None, "base_offset")
    bases = rows.table["base_offset"].to_numpy()
    work = _still_there(work, bases)
    at = _Places(
        np.searchsorted(bases, numbers_in(work.removed)),
        np.searchsorted(bases, work.changed["base_offset"].to_numpy()),
    )
    if not any(map(len, at)):
        return RowDelta()
    if not is_rewritten and at.last < rows.table.num_rows - 1:
        return _delete_in_place(work, rows, at)
    if only_offsets:
        rows = read_segment(work.unit, None, "base_offset")
    return _rewrite(work, rows.table, at)


def _still_there(work: _ChangedSegment, bases: Offsets) -> _ChangedSegment:
    """Return the changes without the rows that are missing. Raise SafetyError if one may not be."""
    wanted = np.concatenate((numbers_in(work.removed), work.changed["base_offset"].to_numpy()))
    gone = np.setdiff1d(wanted, bases, assume_unique=True)
    if not len(gone):
        return work
    _check_left((work.unit.partition, work.unit.segment), gone, work.first)
    rows = work.changed.filter(pa.array(np.isin(work.changed["base_offset"], bases)))
    left = CutOut(rows, 0, rows.num_rows)
    return work._replace(removed=work.removed - BitMap64(gone), cut_out=left)


def _rewrite(work: _ChangedSegment, rows: pa.Table, at: _Places) -> RowDelta:
    """Write all retained rows of the segment, with their changes."""
    rows = rows.combine_chunks()
    is_changed = np.zeros(rows.num_rows, np.bool_)
    is_changed[at.changed] = True
    rows = _changed(rows, is_changed, work.changed)
    keeps = np.ones(rows.num_rows, np.bool_)
    keeps[at.removed] = False
    if not keeps.any():
        return RowDelta(replaced=[Replacement(work.unit, None)])
    write_rows(work.unit.store, work.path, rows.filter(pa.array(keeps)))
    return RowDelta(replaced=[Replacement(work.unit, work.path)])


def _delete_in_place(work: _ChangedSegment, rows: SegmentRows, at: _Places) -> RowDelta:
    """Delete removed and changed rows in place, and write the changed ones to a new file."""
    dead = np.sort(np.concatenate(at))
    files, positions = rows.files[dead], rows.positions[dead]
    deletions = [
        deletion_of(work.unit.store, file, positions[files == number])
        for number, file in enumerate(work.unit.files)
        if np.any(files == number)
    ]
    if not len(at.changed):
        return RowDelta(deletions)
    left = rows.table.take(at.changed).combine_chunks()
    left = _changed(left, np.ones(left.num_rows, np.bool_), work.changed)
    write_rows(work.unit.store, work.path, left)
    return RowDelta(deletions, [Replacement(work.unit, work.path)])


def _changed(rows: pa.Table, is_changed: Bools, changes: pa.Table) -> pa.Table:
    """Return the rows with their changes, in the same order. A changed batch loses its CRC."""
    rows, mask = with_changes(rows, is_changed, changes), pa.array(is_changed)
    crc = pc.if_else(mask, pa.scalar(None, pa.int64()), rows["crc"])
    return rows.set_column(rows.schema.get_field_index("crc"), rows.field("crc"), crc)
