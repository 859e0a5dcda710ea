"""Find the rows that an undo restores in own tables, by the files in which snapshots differ.

Records that the table lacks are restored from the newest snapshot that has them, with its marks.
Batch rows are restored as they were before the first undone run, even if a round changed them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark import Broadcast
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.erased_keys import TIMES, ErasedKeys
from ebbtide.columns.headers import sorted_by
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import (
    SegmentFiles,
    count_rows,
    numbers_in,
    read_segment,
    together,
    write_rows,
)
from ebbtide.iceberg.erasures import shared_erased_keys, tombstones_of_erasures
from ebbtide.iceberg.file_commits import Replacement, RowDelta, new_paths, prepare_row_delta
from ebbtide.iceberg.in_flight import Undo
from ebbtide.iceberg.manifests import SegmentPlace
from ebbtide.iceberg.segment_planning import (
    Difference,
    plan_difference,
    plan_segments,
    plan_with_lineage,
)
from ebbtide.iceberg.topics import Topic, current_snapshot, find_snapshot
from ebbtide.iceberg.work_tags import WorkTag, tag_before
from ebbtide.jobs.quarantine import UNMARKED_NULL_VALUE
from ebbtide.jobs.removed_rows import PlannedRows
from ebbtide.ledger.erasure_secrets import KeyNames
from ebbtide.ledger.plans import offset_range, union
from ebbtide.ledger.undo_points import PointsOfPartitions, UndoPoint, undone_state
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.expressions import number_sets
from ebbtide.spark.tasks import map_segments
from ebbtide.state.topic_state import NEVER, UNDO, PartitionState


class Returning(NamedTuple):
    """Rows to restore from a segment's files."""

    unit: SegmentFiles
    offsets: BitMap64  # of a batch row: its base offset
    turn: int  # index of the point whose snapshot has the files, oldest first


class Returned(NamedTuple):
    """The rows of a table to restore."""

    rows: Sequence[Returning] = ()
    # Offsets of current rows that are replaced, by segment.
    replaced: Mapping[SegmentPlace, BitMap64] = MappingProxyType({})


class ReturningRecords(NamedTuple):
    """The records to restore in a partition.

    `describe` adds event times and keys of `rows`, `size_bytes` and `erased`.
    """

    total: int = 0
    rows: PlannedRows = PlannedRows()
    size_bytes: int = 0
    erased: int = 0  # number of records with erased keys


class OwnRows(NamedTuple):
    """The records and batch rows to restore."""

    records: Returned = Returned()
    batches: Returned = Returned()

    def returning(self) -> dict[int, ReturningRecords]:
        """Return the records to restore, by partition."""
        offsets: dict[int, BitMap64] = {}
        for returning in self.records.rows:
            partition = returning.unit.partition
            offsets[partition] = offsets.get(partition, BitMap64()) | returning.offsets
        return {
            p: ReturningRecords(len(partition_offsets), PlannedRows(partition_offsets))
            for p, partition_offsets in offsets.items()
        }


def find_rows(topic: Topic, points: PointsOfPartitions) -> OwnRows:
    """Find the rows of both tables that an undo of the points restores."""
    return OwnRows(_find_records(topic, points), _find_batches(topic, points))


def _find_records(topic: Topic, points: PointsOfPartitions) -> Returned:
    """Find the records that a snapshot of the points has and the table lacks.

    Quarantined records are not restored.
    """
    spark, table = topic.spark, topic.name.records_table
    left_out = quarantined(topic, points)
    current = current_snapshot(spark, table)
    returned, taken = list[Returning](), {p: left_out.get(p, BitMap64()) for p in points}
    for turn, (point, partitions) in reversed(list(enumerate(turns_of(points)))):
        ends = {p: offset_range(0, point.states[p].log_end_offset) for p in partitions}
        files = plan_difference(spark, table, point.records_snapshot, current, partitions)
        held, kept = _offsets_of(spark, files, "offset")
        there = {p: union(o for u, o in kept if u.partition == p) for p in partitions}
        for unit, offsets in held:
            p = unit.partition
            if missing := (offsets & ends[p]) - there[p] - taken[p]:
                returned.append(Returning(unit, missing, turn))
        for returning in returned:
            taken[returning.unit.partition] = taken[returning.unit.partition] | returning.offsets
    return Returned(returned)


def _find_batches(topic: Topic, points: PointsOfPartitions) -> Returned:
    """Find the batch rows that differ from those before the first undone run after their ingest."""
    spark, table = topic.spark, topic.name.batches_table
    current = current_snapshot(spark, table)
    rows, replaced = list[Returning](), dict[SegmentPlace, BitMap64]()
    first = dict.fromkeys(points, 0)
    for turn, (point, partitions) in enumerate(turns_of(points)):
        ranges = {p: offset_range(first[p], point.states[p].log_end_offset) for p in partitions}
        files = plan_difference(spark, table, point.batches_snapshot, current, partitions)
        held, kept = _offsets_of(spark, files, "base_offset")
        for unit, offsets in held:
            if known := offsets & ranges[unit.partition]:
                rows.append(Returning(unit, known, turn))
        for unit, offsets in kept:
            if known := offsets & ranges[unit.partition]:
                place = (unit.partition, unit.segment)
                replaced[place] = replaced.get(place, BitMap64()) | known
        first |= {p: max(first[p], point.states[p].log_end_offset) for p in partitions}
    return Returned(rows, replaced)


def turns_of(points: PointsOfPartitions) -> list[tuple[UndoPoint, list[int]]]:
    """Return each point once, oldest first, with the partitions in which it is undone."""
    partitions: dict[str, list[int]] = {}
    by_id: dict[str, UndoPoint] = {}
    for partition, of_partition in points.items():
        for point in of_partition:
            by_id[point.point_id] = point
            partitions.setdefault(point.point_id, []).append(partition)
    oldest_first = sorted(by_id.values(), key=lambda point: point.at)
    return [(point, partitions[point.point_id]) for point in oldest_first]


_OfUnits = Sequence[tuple[SegmentFiles, BitMap64]]


def _offsets_of(spark: SparkSession, files: Difference, column: str) -> tuple[_OfUnits, _OfUnits]:
    """Read a column of the live rows on both sides of the difference."""
    units = [*files.earlier, *files.later]
    read = partial(_read_offsets, column)
    offsets = map_segments(spark, read, units, count_rows(units), "comparing")
    both = list(zip(units, offsets, strict=True))
    return both[: len(files.earlier)], both[len(files.earlier) :]


def _read_offsets(column: str, unit: SegmentFiles) -> BitMap64:
    """Return a column of a segment's live rows, in a Spark task."""
    rows = read_segment(unit, (column,), column).table
    return BitMap64(rows[column].to_numpy().astype(np.uint64))


# By partition: each segment and its largest offset.
_Layout = Mapping[int, Mapping[int, int]]


class Places(NamedTuple):
    """The segments into which rows are restored: those that now have the offsets around them."""

    layouts: Sequence[_Layout]  # of each turn's snapshots and, last, the current ones

    @classmethod
    def of(cls, topic: Topic, points: PointsOfPartitions) -> Places:
        """Read the segments of both tables, from manifests alone."""
        turns, name, spark = turns_of(points), topic.name, topic.spark
        now = (
            current_snapshot(spark, name.records_table),
            current_snapshot(spark, name.batches_table),
        )
        then = [
            _layout(topic, (point.records_snapshot, point.batches_snapshot), partitions)
            for point, partitions in turns
        ]
        return cls([*then, _layout(topic, now, list(points))])

    def segment_of(self, returning: Returning) -> int:
        """Return the segment to restore rows into; a merge may have replaced their old one."""
        segment = returning.unit.segment
        for layout in self.layouts[returning.turn + 1 :]:
            segment = _segment_over(layout, returning.unit.partition, segment)
        return segment

    def now_of(self, rows: Mapping[SegmentPlace, BitMap64]) -> dict[SegmentPlace, BitMap64]:
        """Return rows by their current segment, which a merge may have changed since the plan.

        No merge begins after the undo is in the state.
        """
        now: dict[SegmentPlace, BitMap64] = {}
        for (partition, segment), numbers in rows.items():
            place = (partition, _segment_over(self.layouts[-1], partition, segment))
            now[place] = now.get(place, BitMap64()) | numbers
        return now

    def filled(self, partition: int) -> set[int]:
        """Return the segments of a partition that have or had rows."""
        return {base for layout in self.layouts for base in layout.get(partition, ())}


def _segment_over(layout: _Layout, partition: int, segment: int) -> int:
    """Return the segment of a layout that has this segment's offsets, or the segment itself."""
    lasts = layout.get(partition, {})
    over = [base for base, last in lasts.items() if base <= segment <= max(base, last)]
    return max(over, default=segment)


def _layout(
    topic: Topic, snapshots: tuple[int | None, int | None], partitions: Collection[int]
) -> _Layout:
    lasts: dict[int, dict[int, int]] = {partition: {} for partition in partitions}
    tables = (topic.name.records_table, "offset"), (topic.name.batches_table, "last_offset")
    for snapshot, (table, bound) in zip(snapshots, tables, strict=True):
        if snapshot is None:
            continue
        ends = dict.fromkeys(partitions, MAX_OFFSET)
        for unit in plan_segments(topic.spark, table, snapshot, ends, bound=bound):
            by_segment = lasts[unit.partition]
            last = max((file.last or 0 for file in unit.files), default=0)
            by_segment[unit.segment] = max(last, by_segment.get(unit.segment, 0))
    return lasts


def quarantined(topic: Topic, partitions: Collection[int]) -> dict[int, BitMap64]:
    """Return the offsets of quarantined records, by partition."""
    spark, name = topic.spark, topic.name
    if not table_exists(spark, name.quarantine_table):
        return {}
    table_id = open_table(spark, name.records_table).metadata.uuid
    was_here = (F.col("table_id") == table_id) & (F.col("reason") == UNMARKED_NULL_VALUE)
    rows = spark.table(name.quarantine_table).where(was_here)
    sets = number_sets(
        rows.where(F.col("partition").isin(list(partitions))), ["partition"], "offset"
    )
    return {partition: offsets for (partition,), offsets in sets.items()}


def describe(
    topic: Topic, records: Returned, *, keeps_offsets: bool
) -> dict[int, ReturningRecords]:
    """Describe the records to restore, by partition.

    Return nothing unless keys of the topic were erased or the plan lists offsets.
    """
    erased = _Erased(
        tombstones_of_erasures(topic),
        KeyNames.of(topic.erased_under),
        shared_erased_keys(topic),
    )
    if not (erased.tombstones or erased.keys or keeps_offsets):
        return {}
    count = sum(len(returning.offsets) for returning in records.rows)
    describe_one = partial(_describe, erased)
    parts = map_segments(topic.spark, describe_one, records.rows, count, "reading records of")
    described: dict[int, list[ReturningRecords]] = {}
    for returning, part in zip(records.rows, parts, strict=True):
        described.setdefault(returning.unit.partition, []).append(part)
    return {
        partition: ReturningRecords(
            sum(part.total for part in partition_parts),
            PlannedRows.together([part.rows for part in partition_parts]),
            sum(part.size_bytes for part in partition_parts),
            sum(part.erased for part in partition_parts),
        )
        for partition, partition_parts in described.items()
    }


class _Erased(NamedTuple):
    tombstones: Mapping[tuple[int, str], int]  # offsets, by partition and the key's name
    names: KeyNames
    keys: Broadcast[ErasedKeys] | None  # also those of which the erasure found no record

    def count_in(self, partition: int, rows: pa.Table) -> int:
        """Count the records whose key was erased by a later tombstone, or at a later time."""
        pairs = zip(rows["offset"].to_pylist(), rows["key"].to_pylist(), strict=True)
        covered = np.array([self._covers(partition, *pair) for pair in pairs], np.bool_)
        if self.keys is not None:
            covered |= self.keys.value.refused_of(rows)
        return int(covered.sum())

    def _covers(self, partition: int, offset: int, key: bytes | None) -> bool:
        if key is None or not self.tombstones:
            return False
        ends = (self.tombstones.get((partition, name), -1) for name in self.names.names(key))
        return offset < max(ends)


def _describe(erased: _Erased, segment: Returning) -> ReturningRecords:
    """Describe the records of one segment, in a Spark task."""
    columns = ("offset", "event_time", "key", "size_bytes", *TIMES)
    rows = read_segment(segment.unit, columns).table
    returns = np.isin(rows["offset"].to_numpy(), numbers_in(segment.offsets))
    size_bytes = rows["size_bytes"].fill_null(0).to_numpy()[returns].sum()
    planned = PlannedRows.of(rows, np.asarray(returns, np.bool_))
    gone = erased.count_in(segment.unit.partition, rows.filter(pa.array(returns)))
    return ReturningRecords(len(planned.offsets), planned, int(size_bytes), gone)


def states_after(current: Topic, points: PointsOfPartitions) -> dict[int, PartitionState]:
    """Return the states of the undone partitions."""
    places, held = Places.of(current, points), quarantined(current, points)
    states = {}
    for partition, of_partition in points.items():
        offsets = held.get(partition)
        states[partition] = undone_state(
            [point.states[partition] for point in of_partition],
            current.partitions[partition],
            filled_segments=places.filled(partition),
            quarantined_end=offsets.max() + 1 if offsets else NEVER,
        )
    return states


# Write the rows that an undo restores: one overwrite snapshot per table.
#
# A segment with restored rows is rewritten as one file, so its rows stay in order. Streaming
# readers skip overwrites, so they do not read old rows as new.


class _Target(NamedTuple):
    """A data table to restore rows in."""

    table: str
    by: str  # the column that orders its rows
    step: Step


def tables(topic: Topic) -> list[str]:
    """Return the tables in which an undo restores rows."""
    batches = [] if topic.is_adopted else [topic.name.batches_table]
    return [topic.name.records_table, *batches]


def is_begun(topic: Topic, undo: Undo) -> bool:
    """Return whether the undo has restored the rows of a table."""
    return any(_committed(topic, table, undo) is not None for table in tables(topic))


def _committed(topic: Topic, table: str, undo: Undo) -> int | None:
    """Return the snapshot with the rows that the undo restored, or None before that commit."""
    return find_snapshot(topic.spark, table, UNDO, undo.id)


def give_back(topic: Topic, undo: Undo, points: PointsOfPartitions, rows: OwnRows) -> list[int]:
    """Commit the rows of both tables, and return the snapshots that have them."""
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
    """Tag the points' snapshots, so that no other tool expires them before the undo ends."""
    together = {point for partition_points in points.values() for point in partition_points}
    of_tables = ([p.records_snapshot for p in together], [p.batches_snapshot for p in together])
    for table, snapshots in zip(tables(topic), of_tables, strict=True):
        if _committed(topic, table, undo) is None:  # otherwise its rows are restored
            held = {snapshot for snapshot in snapshots if snapshot is not None}
            tag_before(topic.spark, table, WorkTag("undo", undo.id), held)


def _give_back(
    topic: Topic, target: _Target, returned: Returned, places: Places, undo_id: str
) -> int | None:
    """Commit the rows of one table; return the snapshot, or None if there are no rows.

    Raise CommitConflictError if another writer changed one of the segments meanwhile.
    """
    by_place: dict[SegmentPlace, list[Returning]] = {}
    for returning in returned.rows:
        by_place.setdefault((returning.unit.partition, places.segment_of(returning)), []).append(
            returning
        )
    replaced = places.now_of(returned.replaced)
    touched = by_place.keys() | replaced.keys()
    if not touched:
        return None
    spark = topic.spark
    there = {(u.partition, u.segment): u for u in plan_with_lineage(spark, target.table, touched)}
    if not there:  # a commit that replaces no file would be an append
        there = _smallest(topic, target)
    work = _work_of(topic, target, {**dict.fromkeys(touched), **there}, by_place, replaced)
    rows = sum(segment.row_count for segment in work)
    written = map_segments(spark, partial(_write, target.by), work, rows, "restoring rows of")
    delta = RowDelta(
        added=[
            replacement
            for replacement in written
            if not replacement.unit.files and replacement.path is not None
        ],
        replaced=[replacement for replacement in written if replacement.unit.files],
    )
    ends = {partition: MAX_OFFSET for partition, _ in {**dict.fromkeys(touched), **there}}
    prepared = prepare_row_delta(spark, target.table, ends, delta, {UNDO: undo_id})
    return commit(target.step, prepared)


class _Segment(NamedTuple):
    """A segment to rewrite with restored rows."""

    unit: SegmentFiles  # its current files
    returning: tuple[Returning, ...]
    replaced: BitMap64  # offsets of current rows that are replaced
    path: str

    @property
    def row_count(self) -> int:
        """The number of rows to read."""
        return sum(unit.record_count for unit in (self.unit, *(r.unit for r in self.returning)))


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
    paths = new_paths(topic.spark, target.table, [segment.unit for segment in segments])
    return [segment._replace(path=path) for segment, path in zip(segments, paths, strict=True)]


def _smallest(topic: Topic, target: _Target) -> dict[SegmentPlace, SegmentFiles]:
    """Return the smallest segment of the table, if it has any."""
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
    """Write a segment with its restored rows, in order, in a Spark task."""
    unit, tables = segment.unit, []
    if unit.files:
        rows = read_segment(unit, None, by).table
        tables.append(rows.filter(pa.array(~_among(rows, by, segment.replaced))))
    for returning in segment.returning:
        rows = read_segment(returning.unit, None, by).table
        tables.append(rows.filter(pa.array(_among(rows, by, returning.offsets))))
    rows = sorted_by(together(tables, unit.columns), (by,))
    if not rows.num_rows:
        return Replacement(unit, None)
    at = rows.schema.get_field_index("segment")
    base = pa.array(np.full(rows.num_rows, unit.segment, np.int64))
    write_rows(unit.store, segment.path, rows.set_column(at, rows.field(at), base))
    return Replacement(unit, segment.path)


def _among(rows: pa.Table, by: str, offsets: BitMap64) -> np.ndarray:
    return np.isin(rows[by].to_numpy(), numbers_in(offsets))
