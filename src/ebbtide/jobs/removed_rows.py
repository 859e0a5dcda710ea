"""Find and delete rows of own tables: planned rows, expired records, and prefixes of the log."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.columns.headers import open_transactions
from ebbtide.columns.transaction_rows import LogHeaders, LogOutline
from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.batch_rows import look_at_headers
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.data_files import SegmentFiles, SegmentRows, count_rows, read_segment
from ebbtide.iceberg.file_changes import (
    Deleted,
    Leaving,
    delete_leaving,
    delete_segments,
    leaving_of,
)
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.in_flight import check_no_undo
from ebbtide.iceberg.segment_planning import below, plan_before, plan_segments, planned_files
from ebbtide.iceberg.topics import Topic, current_snapshot, load, read_again
from ebbtide.kafka.retention import RecordLimit
from ebbtide.kafka.transactions import last_records, remembered
from ebbtide.ledger.holds import Hold
from ebbtide.ledger.plans import EXAMPLE_KEYS, LeavingRows, union
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.runner.holds import KeptRows, add_kept, keep_leaving
from ebbtide.spark.expressions import any_column
from ebbtide.spark.tasks import map_segments
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState, to_properties
from ebbtide.text import number


class PlannedRows(NamedTuple):
    """Rows that a plan removes."""

    offsets: BitMap64 = BitMap64()
    event_times_ms: tuple[int, ...] = ()  # the lowest and highest
    keys: tuple[bytes, ...] = ()  # a few examples

    @classmethod
    def of(cls, rows: pa.Table, leaves: Bools) -> PlannedRows:
        """Select the rows of a segment to remove; `rows` has offset, event_time and key."""
        going = rows.filter(pa.array(leaves))
        extremes = pc.min_max(going["event_time"].cast(pa.int64()))
        times_us = [extremes[side].as_py() for side in ("min", "max")]
        keys = going["key"].drop_null().slice(0, 1000).to_pylist()
        return cls(
            BitMap64(going["offset"].to_numpy().astype(np.uint64)),
            tuple(us // 1000 for us in times_us if us is not None),
            tuple(dict.fromkeys(keys))[:EXAMPLE_KEYS],
        )

    @classmethod
    def together(cls, parts: Sequence[PlannedRows]) -> PlannedRows:
        """Combine the rows of several segments."""
        times_ms = [ms for part in parts for ms in part.event_times_ms]
        keys = (key for part in parts for key in part.keys)
        return cls(
            union(part.offsets for part in parts),
            (min(times_ms), max(times_ms)) if times_ms else (),
            tuple(dict.fromkeys(keys))[:EXAMPLE_KEYS],
        )


def by_partition(parts: Iterable[tuple[int, PlannedRows]]) -> dict[int, PlannedRows]:
    """Combine the rows of segments, given with their partition."""
    mine: dict[int, list[PlannedRows]] = {}
    for partition, rows in parts:
        mine.setdefault(partition, []).append(rows)
    return {
        partition: PlannedRows.together(partition_rows)
        for partition, partition_rows in mine.items()
    }


def add_to(leaving: LeavingRows, rows: PlannedRows) -> None:
    """Add the rows to those that are removed anyway."""
    leaving.records += len(rows.offsets)
    leaving.event_times_ms += rows.event_times_ms
    leaving.keys += rows.keys


# Remove single records past the event-time limit before their segment expires.
#
# Their batch rows do not change until the segment expires, as when DeleteRecords hides records. So
# sizes, largest timestamps and transactions are those of the full batches. A cleaner round counts
# survivors from the records, so it never counts a missing record as removed by itself. An export
# writes the remaining records of each batch.


_COLUMNS = ("offset", "event_time", "append_time", "size_bytes")


class ExpiredRecords(NamedTuple):
    """A partition's single records past the event-time limit."""

    rows: int = 0
    size_bytes: int = 0  # uncompressed
    planned: PlannedRows = PlannedRows()  # empty unless the plan lists offsets


class Scope(NamedTuple):
    """The offsets [start, end) of a partition in which records past the limit are removed."""

    start: int
    end: int
    limit: RecordLimit
    future_ms: int  # an event time that exceeds the append time by more counts as append time


def find_expired_records(
    topic: Topic, scopes: Mapping[int, Scope], *, keeps_offsets: bool = False
) -> dict[int, ExpiredRecords]:
    """Find each partition's expired records, by one scan of the files that may have any."""
    units = _units(topic, scopes)
    find = partial(_find_expired, scopes, keeps_offsets)
    of_segments = map_segments(
        topic.spark, find, units, count_rows(units), "finding expired records in"
    )
    expired = [
        (u.partition, records)
        for u, records in zip(units, of_segments, strict=True)
        if records.rows
    ]
    planned = by_partition((partition, records.planned) for partition, records in expired)
    return {
        partition: ExpiredRecords(
            sum(records.rows for p, records in expired if p == partition),
            sum(records.size_bytes for p, records in expired if p == partition),
            rows,
        )
        for partition, rows in planned.items()
    }


def delete_expired_records(topic: Topic, scopes: Mapping[int, Scope]) -> Deleted:
    """Delete the expired records from the records table."""
    units = _units(topic, scopes)
    find = partial(_leaving, scopes)
    leaving = map_segments(
        topic.spark, find, units, count_rows(units), "deleting expired records of"
    )
    return delete_leaving(topic.spark, topic.name.records_table, leaving, Step.EXPIRE_RECORDS)


def _units(topic: Topic, scopes: Mapping[int, Scope]) -> list[SegmentFiles]:
    """Return segments of the scopes' partitions whose files may have a record past a limit."""
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
    """Count a segment's expired records and their bytes, in a Spark task."""
    columns = (*_COLUMNS, "key") if keeps_offsets else _COLUMNS
    rows, is_expired = _expired(scopes, unit, columns)
    sizes = rows.table["size_bytes"].fill_null(0).to_numpy()
    return ExpiredRecords(
        int(np.count_nonzero(is_expired)),
        int(sizes[is_expired].sum()),
        PlannedRows.of(rows.table, is_expired) if keeps_offsets else PlannedRows(),
    )


def _leaving(scopes: Mapping[int, Scope], unit: SegmentFiles) -> Leaving:
    """Return a segment's expired records. Runs in a Spark task."""
    return leaving_of(unit, *_expired(scopes, unit))


def _expired(
    scopes: Mapping[int, Scope], unit: SegmentFiles, columns: Sequence[str] = _COLUMNS
) -> tuple[SegmentRows, Bools]:
    rows = read_segment(unit, columns)
    return rows, _is_expired(rows.table, scopes[unit.partition])


def _is_expired(rows: pa.Table, scope: Scope) -> Bools:
    """Return whether each record has expired; one without the deciding time has not."""
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
    """Return times in us since the epoch, and whether each is present."""
    micros = times.cast(pa.int64()).fill_null(0).to_numpy()
    return np.asarray(micros, np.int64), np.asarray(times.is_valid().to_numpy(), np.bool_)


# Remove the rows below the log start offsets, which the state has already advanced.
#
# This order is safe: log start offset, records, batches. Every run removes all rows below the log
# start offsets, so the next run finishes a killed one. Held records are copied before they are
# removed. Only files that may have such rows, by the manifests, are opened.


log = logging.getLogger(__name__)

# Attempts to find and delete the rows, if other writers move them meanwhile.
COMMIT_ATTEMPTS = 5


@dataclass(slots=True)
class Truncation:
    """The records below the log start offsets that were removed."""

    rows: Counter[int] = field(default_factory=Counter)  # live rows, by partition
    files: int = 0  # data files of records removed entirely
    file_bytes: int = 0  # of these files
    snapshot_ids: list[int] = field(default_factory=list)  # of both tables
    kept: KeptRows = field(default_factory=dict)  # copied for holds before the removal

    def add_records(self, leaving: Sequence[Leaving]) -> None:
        """Count the rows and files removed from the records table."""
        for of_segment in leaving:
            self.rows[of_segment.unit.partition] += of_segment.rows
            self.files += len(of_segment.dropped)
            self.file_bytes += sum(file.size_bytes for file in of_segment.dropped)


def truncate_below_start(topic: Topic, now_ms: int, more_holds: Sequence[Hold] = ()) -> Truncation:
    """Remove the rows below each log start offset.

    `more_holds` are the holds on the primary, if the topic is a replica.
    """
    current, done = load(topic.spark, topic.name), Truncation()

    def find_and_copy(snapshot: int) -> list[Leaving]:
        leaving = find_leaving_records(current, snapshot)
        if leaving:
            add_kept(done.kept, keep_leaving(current, {}, more_holds))
        return leaving

    steps = (Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS)
    for removed in _truncate(current, topic.name.records_table, find_and_copy, steps, done):
        done.add_records(removed)
    if rows := done.rows.total():
        log.info("removed %s records, %d data files entirely", number(rows), done.files)
    find_batches = partial(_leaving_batches, current, now_ms)
    steps = (Step.TRUNCATE_BATCHES, Step.TRUNCATE_BATCHES)
    for _ in _truncate(current, topic.name.batches_table, find_batches, steps, done):
        pass
    return done


def _truncate(
    topic: Topic,
    table: str,
    find: Callable[[int], list[Leaving]],
    steps: tuple[Step, Step],
    done: Truncation,
) -> Iterator[Sequence[Leaving]]:
    """Remove whole segments, then single rows; find them again if another writer moves them.

    Yield the rows that each commit removed, after adding its snapshots to `done`.
    """
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        snapshot = current_snapshot(topic.spark, table)
        # Checked after the snapshot: rows that an undo restores later make the commit conflict.
        check_no_undo(read_again(topic), since=topic)
        leaving = [] if snapshot is None else find(snapshot)
        if snapshot is None or not leaving:
            return
        announce_removal(topic)
        whole = [of_segment for of_segment in leaving if of_segment.is_whole]
        rest = [of_segment for of_segment in leaving if not of_segment.is_whole]
        try:
            if whole:
                segments: dict[int, list[int]] = {}
                for unit in (of_segment.unit for of_segment in whole):
                    segments.setdefault(unit.partition, []).append(unit.segment)
                made = delete_segments(topic.spark, table, snapshot, segments, steps[0], {})
                done.snapshot_ids += [] if made is None else [made]
                yield whole
            if rest:
                done.snapshot_ids += delete_leaving(topic.spark, table, rest, steps[1]).snapshots
                yield rest
            return
        except CommitConflictError as error:
            if attempt == COMMIT_ATTEMPTS:
                raise
            log.info("another writer changed rows to remove, finding them again: %s", error)


def find_leaving_records(topic: Topic, snapshot: int) -> list[Leaving]:
    """Find records below the log start offsets; open only files of segments that straddle one."""
    spark, table = topic.spark, topic.name.records_table
    starts = {p: s.log_start_offset for p, s in topic.partitions.items() if s.log_start_offset}
    if not starts:
        return []
    units = plan_segments(spark, table, snapshot, starts, bound="offset")
    whole = [unit for unit in units if _is_below(unit, starts[unit.partition])]
    astride = [unit for unit in units if not _is_below(unit, starts[unit.partition])]
    find = partial(_records_below, starts)
    parts = map_segments(spark, find, astride, count_rows(astride), "finding records to remove in")
    leaving = [Leaving(unit, unit.live_count, dropped=unit.files) for unit in whole]
    return [of_segment for of_segment in [*leaving, *parts] if of_segment.rows]


def _is_below(unit: SegmentFiles, start: int) -> bool:
    """Return whether all of a segment is below `start`, by its manifests."""
    return all(file.last is not None and file.last < start for file in unit.files)


def _records_below(starts: Mapping[int, int], unit: SegmentFiles) -> Leaving:
    """Return a segment's records below the log start offset. Runs in a Spark task."""
    rows = read_segment(unit, ("offset",))
    return leaving_of(unit, rows, rows.table["offset"].to_numpy() < starts[unit.partition])


def _leaving_batches(topic: Topic, now_ms: int, snapshot: int) -> list[Leaving]:
    """Return the batch rows before the first logical segment, without those to retain."""
    spark, table = topic.spark, topic.name.batches_table
    firsts = {p: state.segments[0].base_offset for p, state in topic.partitions.items()}
    ends = {partition: first for partition, first in firsts.items() if first}
    units = plan_segments(spark, table, snapshot, ends) if ends else []
    if not units:
        return []
    outlines = {}
    for partition in {unit.partition for unit in units}:
        state = topic.partitions[partition]
        # With a segment at 0, no row is excluded for being before the first segment.
        segments = (SegmentStart(0, 0), *state.segments)
        outlines[partition] = LogOutline(state.log_start_offset, segments)
    headers = look_at_headers(spark, table, outlines, snapshot)
    staying = {
        partition: _StayingBatches(
            _remembered(topic, of_partition, now_ms),
            outlines[partition].log_start_offset,
        )
        for partition, of_partition in headers.items()
    }
    find = partial(_batches_before, staying)
    parts = map_segments(spark, find, units, count_rows(units), "finding headers to remove in")
    return [of_segment for of_segment in parts if of_segment.rows]


@dataclass(frozen=True, slots=True)
class _StayingBatches:
    """The batches of a partition that are retained although their segment expired.

    Kafka remembers unexpired producers and the first offsets of open transactions beyond their
    segments. A concurrent ingest may also append batches at or above the log start offset to a
    segment that retention has already rolled.
    """

    remembered: Int64s  # base offsets
    log_start_offset: int


def _remembered(topic: Topic, headers: LogHeaders, now_ms: int) -> Int64s:
    """Return base offsets of the batches with a producer's last record or an open transaction."""
    candidates = headers.producers.last_batches_of_producers.batches()
    expiration_ms = topic.config.producer_id_expiration_ms
    last = last_records(candidates, now_ms=now_ms, expiration_ms=expiration_ms)
    first_offsets = open_transactions(headers.transactions).first_offsets.values()
    return np.array(sorted({*first_offsets, *remembered(candidates, last)}), np.int64)


def _batches_before(staying: Mapping[int, _StayingBatches], unit: SegmentFiles) -> Leaving:
    """Return the batch rows of a segment to remove. Runs in a Spark task."""
    of_partition = staying[unit.partition]
    rows = read_segment(unit, ("base_offset", "last_offset"), "base_offset")
    stays = np.isin(rows.table["base_offset"].to_numpy(), of_partition.remembered)
    stays |= rows.table["last_offset"].to_numpy() >= of_partition.log_start_offset
    return leaving_of(unit, rows, ~stays)


class OffsetsOfTimes(NamedTuple):
    """The offsets of times, by partition."""

    first: dict[int, int]  # the first offset at or after the partition's time
    older: dict[int, int]  # the number of older records behind that offset


def find_offsets(
    records: DataFrame,
    is_from: Callable[[int], Column],
    states: Mapping[int, PartitionState],
    times: Mapping[int, int],
    markers: DataFrame | None = None,
) -> OffsetsOfTimes:
    """Return the offset of each partition's time, in ms, without partitions that have none.

    `is_from` returns whether a record is at or after a time. A marker's timestamp is in ms.
    Kafka: UnifiedLog.fetchOffsetByTimestamp.
    """

    def in_log(condition: Callable[[int], Column]) -> Column:
        return _any_of(
            times,
            lambda partition: (
                (F.col("offset") >= states[partition].log_start_offset)
                & condition(times[partition])
            ),
        )

    found = records.where(in_log(is_from)).select("partition", "offset")
    if markers is not None:
        is_marked = in_log(lambda time_ms: F.col("timestamp") >= F.lit(time_ms))
        found = found.union(markers.where(is_marked).select("partition", "offset"))
    first = _by_partition(found, F.min("offset"))
    if not first:
        return OffsetsOfTimes({}, {})
    is_older = _any_of(
        first,
        lambda partition: (
            (F.col("offset") > first[partition])
            & ~F.coalesce(is_from(times[partition]), F.lit(False))
        ),
    )
    return OffsetsOfTimes(first, _by_partition(records.where(is_older), F.count("offset")))


def _any_of(partitions: Collection[int], condition: Callable[[int], Column]) -> Column:
    return any_column(
        (F.col("partition") == partition) & condition(partition) for partition in partitions
    )


def _by_partition(records: DataFrame, number: Column) -> dict[int, int]:
    rows = records.groupBy("partition").agg(number.alias("number")).collect()
    return {row["partition"]: row["number"] for row in rows}


EVENT_TIME = "event_time"


@dataclass(slots=True)
class Prefix(LeavingRows):
    """The rows of a partition below an offset.

    Event times are the bounds in the files' column statistics.
    """

    file_bytes: int = 0  # share of the files' bytes, by rows
    segments: int = 0  # removed entirely

    def add(self, leaving: Leaving) -> None:
        """Add one segment's rows to remove."""
        self.records += leaving.rows
        self.segments += leaving.is_whole
        self.files += len(leaving.dropped)
        unit = leaving.unit
        size_bytes = sum(file.size_bytes for file in unit.files)
        self.file_bytes += size_bytes * leaving.rows // max(1, unit.live_count)


def find_prefixes(topic: Topic, starts: Mapping[int, int]) -> dict[int, Prefix]:
    """Return the rows below each of these log start offsets; a prefix may be empty."""
    prefixes = {partition: Prefix() for partition in starts}
    snapshot = current_snapshot(topic.spark, topic.name.records_table)
    moved = _moved(topic, starts)
    leaving = [] if snapshot is None else find_leaving_records(moved, snapshot)
    leaving = [segment for segment in leaving if segment.unit.partition in prefixes]
    for of_segment in leaving:
        prefixes[of_segment.unit.partition].add(of_segment)
    if snapshot is not None and leaving:
        _add_event_times(topic, snapshot, leaving, prefixes)
        _add_keys(topic, leaving, starts, prefixes)
    return prefixes


def _moved(topic: Topic, starts: Mapping[int, int]) -> Topic:
    """Return the topic with these log start offsets, and 0 for all other partitions."""
    properties = dict(topic.properties)
    for partition, state in topic.partitions.items():
        after = state.moved(log_start_offset=starts.get(partition, 0))
        changes = to_properties(partition, after)
        properties |= {name: text for name, text in changes.items() if text is not None}
    return Topic(topic.name, properties, topic.spark)


def _add_event_times(
    topic: Topic, snapshot: int, leaving: Iterable[Leaving], prefixes: Mapping[int, Prefix]
) -> None:
    """Add the event-time bounds of files with rows to remove, from manifests alone."""
    table = open_table(topic.spark, topic.name.records_table)
    (column,) = (c.field_id for c in table.metadata.columns if c.name == EVENT_TIME)
    losing = {file.path for segment in leaving for file in segment.unit.files}
    ends: dict[int, int] = defaultdict(int)
    for segment in leaving:
        ends[segment.unit.partition] = max(ends[segment.unit.partition], segment.unit.segment + 1)
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
    for segment in leaving:
        firsts.setdefault(segment.unit.partition, segment.unit)
    units = list(firsts.values())
    find = partial(_first_keys, starts)
    for unit, keys in zip(
        units,
        map_segments(topic.spark, find, units, count_rows(units), "finding example keys in"),
        strict=True,
    ):
        prefixes[unit.partition].keys += keys


def _first_keys(starts: Mapping[int, int], unit: SegmentFiles) -> list[bytes]:
    """Return the first distinct keys of a segment's rows to remove, in a Spark task."""
    rows = read_segment(unit, ("offset", "key")).table
    going = rows.filter(pa.array(rows["offset"].to_numpy() < starts[unit.partition]))
    keys = dict.fromkeys(key for key in going["key"].slice(0, 1000).to_pylist() if key is not None)
    return list(keys)[:EXAMPLE_KEYS]
