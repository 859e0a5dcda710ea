"""Write the rows that an undo gives back: one overwrite snapshot of a table.

A segment that gets rows is written anew as one file, so that its order holds and readers of a
stream, who skip overwrites, do not get old rows as new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from ebbtide.columns.slices import sorted_by
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.data_files import SegmentFiles, numbers_in, read_segment, write_rows
from ebbtide.iceberg.files.field_ids import together
from ebbtide.iceberg.files.file_commits import (
    Replacement,
    RowDelta,
    new_paths,
    prepare_row_delta,
)
from ebbtide.iceberg.files.manifests import SegmentPlace
from ebbtide.iceberg.files.segment_planning import plan_segments, plan_with_lineage
from ebbtide.iceberg.planned.planned_undo import Undo
from ebbtide.iceberg.topics import Topic, current_snapshot, find_snapshot
from ebbtide.iceberg.work_tags import WorkTag, tag_before
from ebbtide.log.state.topic_state import UNDO
from ebbtide.log.undo.points import PointsOfPartitions
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.undo_run.own_rows import OwnRows, Places, Returned, Returning


class _Target(NamedTuple):
    """A data table: its name, the column that orders its rows, and the commit point."""

    table: str
    by: str
    step: Step


def tables(topic: Topic) -> list[str]:
    """Return the tables to which an undo gives rows back."""
    batches = [] if topic.is_adopted else [topic.name.batches_table]
    return [topic.name.records_table, *batches]


def is_begun(topic: Topic, undo: Undo) -> bool:
    """Return whether the undo has given back the rows of a table."""
    return any(_committed(topic, table, undo) is not None for table in tables(topic))


def _committed(topic: Topic, table: str, undo: Undo) -> int | None:
    """Return the snapshot by which the undo has given back the table's rows; None before it."""
    return find_snapshot(topic.spark, table, UNDO, undo.id)


def give_back(topic: Topic, undo: Undo, points: PointsOfPartitions, rows: OwnRows) -> list[int]:
    """Commit the rows of both tables; return the snapshots that hold them."""
    _hold_snapshots(topic, undo, points)
    places, snapshots = Places.of(topic, points), []
    targets = (
        _Target(topic.name.records_table, "offset", Step.UNDO_RECORDS),
        _Target(topic.name.batches_table, "base_offset", Step.UNDO_BATCHES),
    )
    for target, returned in zip(targets, rows, strict=True):
        snapshot = _committed(topic, target.table, undo)
        if snapshot is None:
            snapshot = _give_back(topic, target, returned, places, undo.id)
        if snapshot is not None:
            snapshots.append(snapshot)
    return snapshots


def _hold_snapshots(topic: Topic, undo: Undo, points: PointsOfPartitions) -> None:
    """Tag the points' snapshots, so that no other tool expires them before the undo has ended."""
    together = {point for of in points.values() for point in of}
    of_tables = ([p.records_snapshot for p in together], [p.batches_snapshot for p in together])
    for table, snapshots in zip(tables(topic), of_tables, strict=True):
        if _committed(topic, table, undo) is None:  # else what it was to give is given
            held = {snapshot for snapshot in snapshots if snapshot is not None}
            tag_before(topic.spark, table, WorkTag("undo", undo.id), held)


def _give_back(
    topic: Topic, target: _Target, returned: Returned, places: Places, undo_id: str
) -> int | None:
    """Commit the rows of one table; return the snapshot, or None where none comes back.

    Raise CommitConflictError where another writer changed one of the segments meanwhile.
    """
    by_place: dict[SegmentPlace, list[Returning]] = {}
    for of in returned.rows:
        by_place.setdefault((of.unit.partition, places.segment_of(of)), []).append(of)
    replaced = places.now_of(returned.replaced)
    touched = by_place.keys() | replaced.keys()
    if not touched:
        return None
    spark = topic.spark
    there = {(u.partition, u.segment): u for u in plan_with_lineage(spark, target.table, touched)}
    if not there:  # without a file that is replaced it would be an append
        there = _smallest(topic, target)
    work = _work_of(topic, target, {**dict.fromkeys(touched), **there}, by_place, replaced)
    rows = sum(of.row_count for of in work)
    written = map_segments(spark, partial(_write, target.by), work, rows, "gives back rows of")
    delta = RowDelta(
        added=[of for of in written if not of.unit.files and of.path is not None],
        replaced=[of for of in written if of.unit.files],
    )
    ends = {partition: MAX_OFFSET for partition, _ in {**dict.fromkeys(touched), **there}}
    prepared = prepare_row_delta(spark, target.table, ends, delta, {UNDO: undo_id})
    return commit(target.step, prepared)


class _Segment(NamedTuple):
    """A segment's files now, the rows that come back to it, and those whose place they take."""

    unit: SegmentFiles
    returning: tuple[Returning, ...]
    replaced: BitMap64
    path: str

    @property
    def row_count(self) -> int:
        """The rows that are read for it."""
        return sum(of.record_count for of in (self.unit, *(r.unit for r in self.returning)))


def _work_of(
    topic: Topic,
    target: _Target,
    units: Mapping[SegmentPlace, SegmentFiles | None],
    by_place: Mapping[SegmentPlace, Sequence[Returning]],
    replaced: Mapping[SegmentPlace, BitMap64],
) -> list[_Segment]:
    segments = []
    for place, unit in sorted(units.items()):
        returning = tuple(by_place.get(place, ()))
        if unit is None:
            partition, base = place
            if not returning:
                continue
            unit = returning[0].unit._replace(partition=partition, segment=base, files=())
        segments.append(_Segment(unit, returning, replaced.get(place, BitMap64()), ""))
    paths = new_paths(topic.spark, target.table, [of.unit for of in segments])
    return [of._replace(path=path) for of, path in zip(segments, paths, strict=True)]


def _smallest(topic: Topic, target: _Target) -> dict[SegmentPlace, SegmentFiles]:
    """Return a small segment of the table, if it has any."""
    spark, snapshot = topic.spark, current_snapshot(topic.spark, target.table)
    if snapshot is None:
        return {}
    ends = dict.fromkeys(topic.partitions, MAX_OFFSET)
    units = plan_segments(spark, target.table, snapshot, ends)
    if not units:
        return {}
    smallest = min(units, key=lambda unit: unit.record_count)
    place = (smallest.partition, smallest.segment)
    return dict.fromkeys([place], *plan_with_lineage(spark, target.table, [place]))


def _write(by: str, segment: _Segment) -> Replacement:
    """Write a segment with the rows that come back, in order, in a task."""
    unit, tables = segment.unit, []
    if unit.files:
        rows = read_segment(unit, None, by).table
        tables.append(rows.filter(pa.array(~_among(rows, by, segment.replaced))))
    for of in segment.returning:
        rows = read_segment(of.unit, None, by).table
        tables.append(rows.filter(pa.array(_among(rows, by, of.offsets))))
    rows = sorted_by(together(tables, unit.columns), (by,))
    if not rows.num_rows:
        return Replacement(unit, None)
    at = rows.schema.get_field_index("segment")
    base = pa.array(np.full(rows.num_rows, unit.segment, np.int64))
    write_rows(unit.store, segment.path, rows.set_column(at, rows.field(at), base))
    return Replacement(unit, segment.path)


def _among(rows: pa.Table, by: str, offsets: BitMap64) -> np.ndarray:
    return np.isin(rows[by].to_numpy(), numbers_in(offsets))
