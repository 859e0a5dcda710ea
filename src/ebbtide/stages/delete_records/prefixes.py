"""Describe what lies in a topic's tables below new log start offsets, before anything moves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.deletes import Leaving
from ebbtide.iceberg.files.segment_planning import below, planned_files
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.plans.summary import EXAMPLE_KEYS, LeavingRows
from ebbtide.log.state.topic_state import to_properties
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.delete_records.truncate import find_leaving_records

EVENT_TIME = "event_time"


@dataclass(slots=True)
class Prefix(LeavingRows):
    """What leaves a partition's records table below an offset.

    Event times are bounds that the files' statistics tell.
    """

    file_bytes: int = 0  # of the files that lose rows, in proportion to the rows
    segments: int = 0  # that leave as a whole

    def add(self, leaving: Leaving) -> None:
        """Count the rows of one segment that leave."""
        self.records += leaving.rows
        self.segments += leaving.is_whole
        self.files += len(leaving.dropped)
        unit = leaving.unit
        size_bytes = sum(file.size_bytes for file in unit.files)
        self.file_bytes += size_bytes * leaving.rows // max(1, unit.live_count)


def find_prefixes(topic: Topic, starts: Mapping[int, int]) -> dict[int, Prefix]:
    """Return what lies below each of these log start offsets, all partitions included."""
    prefixes = {partition: Prefix() for partition in starts}
    snapshot = current_snapshot(topic.spark, topic.name.records_table)
    moved = _moved(topic, starts)
    leaving = [] if snapshot is None else find_leaving_records(moved, snapshot)
    leaving = [of for of in leaving if of.unit.partition in prefixes]
    for of_segment in leaving:
        prefixes[of_segment.unit.partition].add(of_segment)
    if snapshot is not None and leaving:
        _add_event_times(topic, snapshot, leaving, prefixes)
        _add_keys(topic, leaving, starts, prefixes)
    return prefixes


def _moved(topic: Topic, starts: Mapping[int, int]) -> Topic:
    """Return the topic as it will be; partitions of no new start have none, so nothing leaves."""
    properties = dict(topic.properties)
    for partition, state in topic.partitions.items():
        after = state.moved(log_start_offset=starts.get(partition, 0))
        changes = to_properties(partition, after)
        properties |= {name: text for name, text in changes.items() if text is not None}
    return Topic(topic.name, properties, topic.spark)


def _add_event_times(
    topic: Topic, snapshot: int, leaving: Iterable[Leaving], prefixes: Mapping[int, Prefix]
) -> None:
    """Add the bounds of the event times in files that lose rows, from manifests alone."""
    table = open_table(topic.spark, topic.name.records_table)
    (column,) = (c.field_id for c in table.metadata.columns if c.name == EVENT_TIME)
    losing = {file.path for of in leaving for file in of.unit.files}
    ends: dict[int, int] = defaultdict(int)
    for of in leaving:
        ends[of.unit.partition] = max(ends[of.unit.partition], of.unit.segment + 1)
    for planned in planned_files(table, snapshot, below(ends), has_bounds=True):
        bounds = planned.listed.bounds
        if planned.file.path in losing and bounds is not None:
            times_us = [side[column] for side in (bounds.lower, bounds.upper) if column in side]
            prefixes[planned.place[0]].event_times_ms += [us // 1000 for us in times_us]


def _add_keys(
    topic: Topic,
    leaving: Iterable[Leaving],
    starts: Mapping[int, int],
    prefixes: Mapping[int, Prefix],
) -> None:
    """Add a few keys of the first segment of each partition."""
    firsts: dict[int, SegmentFiles] = {}
    for of in leaving:
        firsts.setdefault(of.unit.partition, of.unit)
    units = list(firsts.values())
    find = partial(_first_keys, starts)
    for unit, keys in zip(
        units,
        map_segments(topic.spark, find, units, count_rows(units), "looks for example keys in"),
        strict=True,
    ):
        prefixes[unit.partition].keys += keys


def _first_keys(starts: Mapping[int, int], unit: SegmentFiles) -> list[bytes]:
    """Return the first different keys of a segment that leave, in a task."""
    rows = read_segment(unit, ("offset", "key")).table
    going = rows.filter(pa.array(rows["offset"].to_numpy() < starts[unit.partition]))
    keys = dict.fromkeys(key for key in going["key"].slice(0, 1000).to_pylist() if key is not None)
    return list(keys)[:EXAMPLE_KEYS]
