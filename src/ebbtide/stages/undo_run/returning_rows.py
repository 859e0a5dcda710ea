"""Find the rows that an undo gives back, by the files in which snapshots differ.

Records come back that the table lacks, from the newest snapshot that has them, with its marks.
Batch rows come back as they were before the first undone run, whatever a round made of them since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.manifests import SegmentPlace
from ebbtide.iceberg.files.segment_planning import Difference, plan_difference, plan_segments
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.plans.offsets import offset_range, union
from ebbtide.log.undo.points import PointsOfPartitions, UndoPoint
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.tasks import map_segments


class Returning(NamedTuple):
    """Rows of a segment's files, by the column that names them, that come back.

    `turn` is the number of the point whose snapshot has the files, from the oldest on.
    """

    unit: SegmentFiles
    offsets: BitMap64
    turn: int


@dataclass(slots=True)
class Returned:
    """The rows of a table that come back, and those that they take the place of, by segment."""

    rows: list[Returning] = field(default_factory=list)
    replaced: dict[SegmentPlace, BitMap64] = field(default_factory=dict)

    def of_partition(self, partition: int) -> BitMap64:
        """Return what comes back in a partition."""
        return union(of.offsets for of in self.rows if of.unit.partition == partition)


def find_records(
    topic: Topic, points: PointsOfPartitions, left_out: Mapping[int, BitMap64]
) -> Returned:
    """Find the records that the table lacks and that a snapshot of the points has.

    `left_out` stay away: the quarantine has them.
    """
    spark, table = topic.spark, topic.name.records_table
    current = current_snapshot(spark, table)
    returned, taken = Returned(), {p: left_out.get(p, BitMap64()) for p in points}
    for turn, (point, partitions) in reversed(list(enumerate(turns_of(points)))):
        ends = {p: offset_range(0, point.states[p].log_end_offset) for p in partitions}
        files = plan_difference(spark, table, point.records_snapshot, current, partitions)
        held, kept = _offsets_of(spark, files, "offset")
        there = {p: union(o for u, o in kept if u.partition == p) for p in partitions}
        for unit, offsets in held:
            p = unit.partition
            if missing := (offsets & ends[p]) - there[p] - taken[p]:
                returned.rows.append(Returning(unit, missing, turn))
        for p in partitions:
            taken[p] = taken[p] | returned.of_partition(p)
    return returned


def find_batches(topic: Topic, points: PointsOfPartitions) -> Returned:
    """Find the batch rows that are not as they were, each before the first run that knew it."""
    spark, table = topic.spark, topic.name.batches_table
    current = current_snapshot(spark, table)
    returned, first = Returned(), dict.fromkeys(points, 0)
    for turn, (point, partitions) in enumerate(turns_of(points)):
        ranges = {p: offset_range(first[p], point.states[p].log_end_offset) for p in partitions}
        files = plan_difference(spark, table, point.batches_snapshot, current, partitions)
        held, kept = _offsets_of(spark, files, "base_offset")
        for unit, offsets in held:
            if known := offsets & ranges[unit.partition]:
                returned.rows.append(Returning(unit, known, turn))
        for unit, offsets in kept:
            if known := offsets & ranges[unit.partition]:
                place = (unit.partition, unit.segment)
                returned.replaced[place] = returned.replaced.get(place, BitMap64()) | known
        first |= {p: max(first[p], point.states[p].log_end_offset) for p in partitions}
    return returned


def turns_of(points: PointsOfPartitions) -> list[tuple[UndoPoint, list[int]]]:
    """Return each point once, oldest first, with the partitions in which it goes back."""
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
    """Read a column of both sides' live rows."""
    units = [*files.earlier, *files.later]
    read = partial(_read_offsets, column)
    offsets = map_segments(spark, read, units, count_rows(units), "compares")
    both = list(zip(units, offsets, strict=True))
    return both[: len(files.earlier)], both[len(files.earlier) :]


def _read_offsets(column: str, unit: SegmentFiles) -> BitMap64:
    """Return a column of a segment's live rows, in a task."""
    rows = read_segment(unit, (column,), column).table
    return BitMap64(rows[column].to_numpy().astype(np.uint64))


# By partition: each segment and its largest offset.
_Layout = Mapping[int, Mapping[int, int]]


class Places(NamedTuple):
    """Where rows go that come back: into the segment that holds what lies around them now.

    `layouts` are those of each turn's snapshots and, last, the current one.
    """

    layouts: Sequence[_Layout]

    @classmethod
    def of(cls, topic: Topic, points: PointsOfPartitions) -> Places:
        """Look at the segments of both tables, from manifests alone."""
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

    def segment_of(self, of: Returning) -> int:
        """Return the segment of rows that come back: merges since then may have taken it over."""
        segment = of.unit.segment
        for layout in self.layouts[of.turn + 1 :]:
            segment = _segment_over(layout, of.unit.partition, segment)
        return segment

    def now_of(self, rows: Mapping[SegmentPlace, BitMap64]) -> dict[SegmentPlace, BitMap64]:
        """Return rows by the segment that has them now: a merge since the plan may have moved them.

        No merge begins once the state has the undo.
        """
        now: dict[SegmentPlace, BitMap64] = {}
        for (partition, segment), numbers in rows.items():
            place = (partition, _segment_over(self.layouts[-1], partition, segment))
            now[place] = now.get(place, BitMap64()) | numbers
        return now

    def filled(self, partition: int) -> set[int]:
        """Return the segments of a partition that hold rows now or held some before."""
        return {base for layout in self.layouts for base in layout.get(partition, ())}


def _segment_over(layout: _Layout, partition: int, segment: int) -> int:
    """Return the segment of a layout that holds this one's offsets, or itself."""
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
            of = lasts[unit.partition]
            last = max((file.last or 0 for file in unit.files), default=0)
            of[unit.segment] = max(last, of.get(unit.segment, 0))
    return lasts
