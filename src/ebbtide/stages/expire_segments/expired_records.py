"""Remove single records past the event-time limit before their segment expires.

Their batch rows stay unchanged until the segment expires, as they do where DeleteRecords hides
records. So sizes, largest timestamps and transactions are judged by what was written, as in a log
with whole segments. A cleaner round counts survivors from the records, so it never counts a missing
record as one that it removed. An export writes what is left of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.data_files import SegmentFiles, SegmentRows, count_rows, read_segment
from ebbtide.iceberg.files.deletes import Deleted, Leaving, delete_leaving, leaving_of
from ebbtide.iceberg.files.segment_planning import plan_before
from ebbtide.iceberg.topics import Topic
from ebbtide.log.retention import RecordLimit
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.planned_rows import PlannedRows, by_partition

_COLUMNS = ("offset", "event_time", "append_time", "size_bytes")


class ExpiredRecords(NamedTuple):
    """The number of a partition's expired records, and the bytes of their contents.

    `planned` has their offsets, if they were asked for.
    """

    rows: int = 0
    size_bytes: int = 0
    planned: PlannedRows = PlannedRows()


class Scope(NamedTuple):
    """The offsets [start, end) of a partition in which records past the limit go.

    An event time more than `future_ms` after the append time counts as that.
    """

    start: int
    end: int
    limit: RecordLimit
    future_ms: int


def find_expired_records(
    topic: Topic, scopes: Mapping[int, Scope], *, keeps_offsets: bool = False
) -> dict[int, ExpiredRecords]:
    """Find each partition's expired records, by one scan of the files that may hold any."""
    units = _units(topic, scopes)
    find = partial(_find_expired, scopes, keeps_offsets)
    of_segments = map_segments(
        topic.spark, find, units, count_rows(units), "looks for old records in"
    )
    expired = [(u.partition, of) for u, of in zip(units, of_segments, strict=True) if of.rows]
    planned = by_partition((partition, of.planned) for partition, of in expired)
    return {
        partition: ExpiredRecords(
            sum(of.rows for p, of in expired if p == partition),
            sum(of.size_bytes for p, of in expired if p == partition),
            rows,
        )
        for partition, rows in planned.items()
    }


def delete_expired_records(topic: Topic, scopes: Mapping[int, Scope]) -> Deleted:
    """Delete them from the records table."""
    units = _units(topic, scopes)
    find = partial(_leaving, scopes)
    leaving = map_segments(topic.spark, find, units, count_rows(units), "expires records of")
    return delete_leaving(topic.spark, topic.name.records_table, leaving, Step.EXPIRE_RECORDS)


def _units(topic: Topic, scopes: Mapping[int, Scope]) -> list[SegmentFiles]:
    """Return segments of the scopes' partitions whose files may hold a record past a limit."""
    spark, table = topic.spark, topic.name.records_table
    snapshot = open_table(spark, table).current
    if snapshot is None or not scopes:
        return []
    latest_us = max(scope.limit.event_time_ms for scope in scopes.values()) * 1000
    times = ("event_time", "append_time")
    return plan_before(spark, table, snapshot.id, scopes, times, latest_us)


def _find_expired(
    scopes: Mapping[int, Scope], keeps_offsets: bool, unit: SegmentFiles
) -> ExpiredRecords:
    """Count a segment's expired records and their bytes, in a task."""
    columns = (*_COLUMNS, "key") if keeps_offsets else _COLUMNS
    rows, is_expired = _expired(scopes, unit, columns)
    sizes = rows.table["size_bytes"].fill_null(0).to_numpy()
    return ExpiredRecords(
        int(np.count_nonzero(is_expired)),
        int(sizes[is_expired].sum()),
        PlannedRows.of(rows.table, is_expired) if keeps_offsets else PlannedRows(),
    )


def _leaving(scopes: Mapping[int, Scope], unit: SegmentFiles) -> Leaving:
    """Return a segment's expired records; runs in a task."""
    return leaving_of(unit, *_expired(scopes, unit))


def _expired(
    scopes: Mapping[int, Scope], unit: SegmentFiles, columns: Sequence[str] = _COLUMNS
) -> tuple[SegmentRows, Bools]:
    rows = read_segment(unit, columns)
    return rows, _is_expired(rows.table, scopes[unit.partition])


def _is_expired(rows: pa.Table, scope: Scope) -> Bools:
    """Return which records have expired; a record without a deciding time has not."""
    offsets = rows["offset"].to_numpy()
    event, has_event = _micros(rows["event_time"])
    append, has_append = _micros(rows["append_time"])
    before = scope.limit.event_time_ms * 1000
    is_event_before = has_event & (event < before)
    is_append_before = has_append & (append < before)
    is_future = has_event & has_append & (event // 1000 - append // 1000 > scope.future_ms)
    goes = is_event_before | (is_append_before & is_future)
    if scope.limit.append_time_ms is not None:
        goes &= has_append & (append < scope.limit.append_time_ms * 1000)
    return np.asarray(goes & (offsets >= scope.start) & (offsets < scope.end), np.bool_)


def _micros(times: pa.ChunkedArray) -> tuple[Int64s, Bools]:
    """Return times in us since the epoch, and which of them are present."""
    micros = times.cast(pa.int64()).fill_null(0).to_numpy()
    return np.asarray(micros, np.int64), np.asarray(times.is_valid().to_numpy(), np.bool_)
