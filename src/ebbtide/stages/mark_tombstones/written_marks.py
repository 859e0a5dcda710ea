"""Write new marks: only the changed rows are written anew, into one more file of their segment.

The other rows are not touched (docs/adr/0004).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from ebbtide.errors import SafetyError
from ebbtide.iceberg.files.data_files import (
    Offsets,
    SegmentFiles,
    count_rows,
    deletion_of,
    ends_of,
    numbers_in,
    read_rows,
    read_segment,
    write_rows,
)
from ebbtide.iceberg.files.field_ids import together
from ebbtide.iceberg.files.file_commits import (
    Commit,
    Replacement,
    RowDelta,
    new_paths,
    prepare_row_delta,
)
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.mark_tombstones.changed_marks import NO_TOMBSTONE, TO_QUARANTINE, MarkChanges
from ebbtide.stages.mark_tombstones.tombstones import REASONS

Codes = npt.NDArray[np.int8]


class _MarkedSegment(NamedTuple):
    """The offsets of one segment's changed records by their new mark, and where their rows go."""

    unit: SegmentFiles
    offsets: Mapping[int, BitMap64]
    path: str


def prepare_marks(topic: Topic, snapshot: int, changes: MarkChanges) -> Commit:
    """Write the changed rows anew; those for the quarantine only go."""
    spark, table = topic.spark, topic.name.records_table
    ends: dict[int, int] = {}
    for partition, segment in changes:
        ends[partition] = max(ends.get(partition, 0), segment + 1)
    units = [
        unit
        for unit in plan_segments(spark, table, snapshot, ends)
        if (unit.partition, unit.segment) in changes
    ]
    work = [
        _MarkedSegment(unit, changes[unit.partition, unit.segment], path)
        for unit, path in zip(units, new_paths(spark, table, units), strict=True)
    ]
    written = map_segments(spark, _write_marked, work, count_rows(units), "writes marks of")
    return prepare_row_delta(spark, table, ends_of(units), RowDelta.of_all(written), {})


def _write_marked(work: _MarkedSegment) -> RowDelta:
    """Write the rows that stay with their new marks, and return what replaces the old ones."""
    rows = read_segment(work.unit, ("offset",))
    offsets, becomes = _in_order(work.offsets)
    at = _find(work, rows.table["offset"].to_numpy(), offsets)
    files, positions = rows.files[at], rows.positions[at]
    deletions, tables = [], []
    for number, file in enumerate(work.unit.files):
        mine = np.flatnonzero(files == number)
        mine = mine[np.argsort(positions[mine])]
        if not len(mine):
            continue
        deletions.append(deletion_of(work.unit.store, file, positions[mine]))
        mine = mine[becomes[mine] != TO_QUARANTINE]
        if len(mine):
            tables.append(_marked(read_rows(work.unit, file, positions[mine]), becomes[mine]))
    if not tables:
        return RowDelta(deletions)
    write_rows(work.unit.store, work.path, together(tables, work.unit.columns))
    return RowDelta(deletions, [Replacement(work.unit, work.path)])


def _in_order(by_code: Mapping[int, BitMap64]) -> tuple[Offsets, Codes]:
    """Return all offsets, ascending, and the new mark of each."""
    offsets = np.concatenate([numbers_in(of) for of in by_code.values()])
    becomes = np.repeat(np.array(list(by_code), np.int8), [len(of) for of in by_code.values()])
    order = np.argsort(offsets)
    return offsets[order], becomes[order]


def _marked(rows: pa.Table, becomes: Codes) -> pa.Table:
    """Return the rows with their new marks."""
    reasons = pa.array([None, *REASONS], pa.string()).take(pa.array(becomes))
    is_tombstone = pa.array(becomes != NO_TOMBSTONE)
    for name, column in (("is_tombstone", is_tombstone), ("tombstone_by", reasons)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.field(at), column)
    return rows


def _find(work: _MarkedSegment, offsets: Offsets, wanted: Offsets) -> Offsets:
    """Find the positions of the changed records among those of the segment."""
    at: Offsets = np.searchsorted(offsets, wanted)
    if at[-1] >= len(offsets) or np.any(offsets[at] != wanted):
        raise SafetyError(
            f"expected the records of segment {work.unit.segment} of partition "
            f"{work.unit.partition} as they were found, found other offsets; run the job again"
        )
    return at
