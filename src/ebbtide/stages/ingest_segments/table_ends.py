"""Find where the tables' copy of a source log ends, and what a killed ingest has left."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from ebbtide.columns.batch_totals import TIMES, batch_totals, together_by_batch, with_totals
from ebbtide.columns.header_columns import open_transactions
from ebbtide.columns.log_headers import LogOutline
from ebbtide.columns.slices import slices_by_value
from ebbtide.errors import ForeignLogError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.rows_beyond import OffsetsOfFiles, RowsBeyond, offsets_of_files
from ebbtide.iceberg.files.segment_planning import ColumnBounds, plan_segments, plan_where
from ebbtide.iceberg.topics import Topic, current_snapshot, exists
from ebbtide.log.settings.config import OF_TIMESTAMP, EventTime
from ebbtide.moments import later
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.attributes import CONTROL, LOG_APPEND_TIME
from ebbtide.records.decoding.record_columns import TIMESTAMP_HEADER
from ebbtide.spark.conditions import any_of
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.ingest_segments.source_log import HeldLog, SourceLog, first_offsets

_BATCH = ("base_offset", "last_offset", "leader_epoch", "attributes", "record_count", "crc")
# Header fields that are lost once a cleaner round has rewritten the batch.
SET_BY_ROUNDS = ("header_base_offset", "producer_timestamp_ms")


class Ends(NamedTuple):
    """Where the tables' copies of some partitions end, and the rows that lie beyond."""

    held: dict[int, HeldLog]
    records: RowsBeyond
    batches: RowsBeyond
    left_records: frozenset[int] = frozenset()  # the partitions that have rows beyond
    left_batches: frozenset[int] = frozenset()

    @property
    def left_behind(self) -> frozenset[int]:
        """The partitions that have rows beyond their ends in one of the tables."""
        return self.left_records | self.left_batches

    def without(self, partitions: Container[int]) -> Ends:
        """Return the ends of all other partitions."""
        held = {p: of for p, of in self.held.items() if p not in partitions}
        ends = {p: end for p, end in self.records.ends.items() if p not in partitions}
        records, batches = (of._replace(ends=ends) for of in (self.records, self.batches))
        left = (of & held.keys() for of in (self.left_records, self.left_batches))
        return Ends(held, records, batches, *left)


def find_ends(topic: Topic, partitions: Iterable[int]) -> Ends:
    """Find where the tables' copies of the partitions end, by the state."""
    held = {partition: HeldLog(topic.partitions.get(partition)) for partition in partitions}
    ends = {partition: of.log_end_offset for partition, of in held.items()}
    if not exists(topic.spark, topic.name):
        records, batches = (
            RowsBeyond(topic.spark, table, column, ends, None) for table, column in _tables(topic)
        )
        return Ends(held, records, batches)
    found = [_beyond(topic, table, column, ends) for table, column in _tables(topic)]
    (records, _), (batches, bounds) = found
    last_batches = _last_batches(batches, bounds)
    held = {p: of._replace(last_batch=last_batches.get(p)) for p, of in held.items()}
    left = (frozenset(rows.partitions(of_files)) for rows, of_files in found)
    return Ends(held, records, batches, *left)


def _tables(topic: Topic) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return both tables, each with the column of its rows' offsets."""
    return (topic.name.records_table, "offset"), (topic.name.batches_table, "base_offset")


def _beyond(
    topic: Topic, name: str, column: str, ends: Mapping[int, int] | None
) -> tuple[RowsBeyond, OffsetsOfFiles]:
    """Return the rows of a table beyond the ends, of all partitions without them."""
    table = open_table(topic.spark, name)
    bounds = offsets_of_files(table, column)
    if ends is None:
        states = topic.partitions
        ends = {p: states[p].log_end_offset if p in states else 0 for p in bounds}
    snapshot = None if table.current is None else table.current.id
    return RowsBeyond(topic.spark, name, column, ends, snapshot), bounds


def ends_passed(topic: Topic) -> dict[int, int]:
    """Return the log end offsets of the partitions whose tables hold rows at or beyond them.

    0 for a partition that the state does not know. A job that was killed, or is at work, has
    appended these rows.
    """
    passed: dict[int, int] = {}
    for table, column in _tables(topic):
        rows, bounds = _beyond(topic, table, column, None)
        passed |= {partition: rows.ends[partition] for partition in rows.partitions(bounds)}
    return passed


def _last_batches(batches: RowsBeyond, bounds: OffsetsOfFiles) -> dict[int, dict[str, Any]]:
    """Return the row of each partition's last batch below its end."""
    ends, firsts = batches.ends, dict[int, int]()
    for partition, end in ends.items():
        lasts = [last for first, last in bounds.get(partition, ()) if first < end]
        if lasts:
            # A file that another tool has put together may reach beyond the end.
            firsts[partition] = max((last for last in lasts if last < end), default=0)
    if batches.snapshot is None or not firsts:
        return {}

    def may_hold(partition: int, columns: ColumnBounds) -> bool:
        first, last = columns.lower("base_offset") or 0, columns.upper("base_offset")
        is_late = last is not None and last >= firsts[partition]
        return is_late and first < ends[partition]

    found: dict[int, dict[str, Any]] = {}
    below = {partition: ends[partition] for partition in firsts}
    for unit in plan_where(batches.spark, batches.table, batches.snapshot, below, may_hold):
        rows = read_segment(unit, _BATCH, "base_offset").table
        rows = rows.filter(pc.less(rows["base_offset"], ends[unit.partition]))
        for row in rows.slice(max(0, rows.num_rows - 1)).to_pylist():  # units come in order
            found[unit.partition] = row
    return found


@dataclass(slots=True)
class Ingested:
    """The planned batches' records that the table now holds, by partition."""

    batches: pa.Table  # the planned ones of all partitions, with their times
    records: dict[int, int] = field(default_factory=dict)
    max_event_times_ms: dict[int, int] = field(default_factory=dict)
    timestamps_in_headers: dict[int, int] = field(default_factory=dict)
    event_times_missing: dict[int, int] = field(default_factory=dict)
    now_ms: int = 0

    def largest_timestamps_ms(self) -> dict[int, int]:
        """Return the largest timestamp of each partition's data batches."""
        is_data = pc.equal(pc.bit_wise_and(self.batches.column("attributes"), CONTROL), 0)
        largest = (
            self.batches.filter(is_data)
            .group_by("partition")
            .aggregate([("max_timestamp_ms", "max")])
        )
        names = ("partition", "max_timestamp_ms_max")
        return dict(zip(*(largest[name].to_pylist() for name in names), strict=True))


def read_ingested(
    topic: Topic, all_logs: Mapping[int, SourceLog], now_ms: int, event_time: Column | None
) -> Ingested:
    """Read the planned batches' times and counts from their records, which are in the table now."""
    logs = {p: log for p, log in all_logs.items() if log.batches.num_rows}
    if not logs:
        return Ingested(pa.table({}))
    undecided = _undecided(topic, logs.values())
    planned = [
        log.batches.append_column(
            "txn_first_offset", first_offsets(log, undecided.get(partition, {}))
        )
        for partition, log in logs.items()
    ]
    is_planned = any_of(
        f"`partition` = {p} AND offset >= {log.first_offset}" for p, log in logs.items()
    )
    record_totals = (
        _record_totals(topic, logs)
        if event_time is None
        else _record_totals_by(topic, is_planned, event_time)
    )
    batches = _with_times(with_totals(pa.concat_tables(planned), record_totals), topic, now_ms)
    for name in SET_BY_ROUNDS:
        batches = batches.append_column(name, pa.nulls(batches.num_rows, pa.int64()))
    for partition, rows in slices_by_value(batches, "partition"):
        _check_counts(topic, logs[partition], rows)
    totals = batches.group_by("partition").aggregate(
        [
            *((name, "sum") for name in ("records", "untimed", "event_times_missing")),
            ("max_event_time_ms", "max"),
        ]
    )
    by_partition = {row["partition"]: row for row in totals.to_pylist()}
    is_untimed = any(row["untimed_sum"] for row in by_partition.values())
    return Ingested(
        batches,
        {p: row["records_sum"] or 0 for p, row in by_partition.items()},
        {p: row["max_event_time_ms_max"] for p, row in by_partition.items()},
        _timestamps_in_headers(topic, is_planned) if is_untimed else {},
        {p: row["event_times_missing_sum"] or 0 for p, row in by_partition.items()},
        now_ms,
    )


def _undecided(topic: Topic, logs: Iterable[SourceLog]) -> dict[int, dict[int, int]]:
    """Return the transactions that the batches table leaves open, if new batches may end any."""
    if not any(log.is_transactional.any() and log.held.log_end_offset for log in logs):
        return {}
    outlines = {
        partition: LogOutline(state.log_start_offset, state.segments)
        for partition, state in topic.partitions.items()
    }
    headers = look_at_headers(topic.spark, topic.name.batches_table, outlines)
    return {
        partition: open_transactions(of_partition.transactions).first_offsets
        for partition, of_partition in headers.items()
    }


def _record_totals(topic: Topic, logs: Mapping[int, SourceLog]) -> pa.Table:
    """Return one row a batch: its count of records in the table, and their largest times in ms."""
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    firsts = {partition: log.first_offset for partition, log in logs.items()}
    units = []
    if snapshot is not None:
        units = plan_segments(spark, table, snapshot, dict.fromkeys(firsts, MAX_OFFSET), firsts)
    count = partial(_count_records, firsts, topic.config.message_timestamp_after_max_ms)
    counted = map_segments(spark, count, units, count_rows(units), "counts records of")
    # The records of a batch may lie in two files.
    return together_by_batch(counted)


def _count_records(firsts: Mapping[int, int], future_limit_ms: int, unit: SegmentFiles) -> pa.Table:
    """Count a segment's records from the partition's first planned offset on, in a task."""
    rows = read_segment(unit, TIMES).table
    rows = rows.filter(pc.greater_equal(rows["offset"], firsts[unit.partition]))
    return batch_totals(unit.partition, rows, future_limit_ms)


def _record_totals_by(topic: Topic, condition: str, event_time: Column) -> pa.Table:
    """Return record totals as `_record_totals` does, and how many event times are missing.

    Spark works the event times out.
    """
    append_ms, event_ms = F.unix_millis("append_time"), F.unix_millis("event_time")
    is_future = event_ms - append_ms > topic.config.message_timestamp_after_max_ms
    return (
        topic.spark.table(topic.name.records_table)
        .where(condition)
        .groupBy("partition", F.col("batch").alias("base_offset"))
        .agg(
            F.count("*").alias("records"),
            F.count_if(F.col("timestamp").isNull()).alias("untimed"),
            F.count_if(event_time.isNull()).alias("event_times_missing"),
            F.max(F.when(is_future, append_ms).otherwise(event_ms)).alias("event_ms"),
            F.max(append_ms).alias("append_ms"),
        )
        .toArrow()
    )


def _with_times(batches: pa.Table, topic: Topic, now_ms: int) -> pa.Table:
    """Add the largest event time, future ones clamped, -1 for none, and the append time.

    Where no record is visible, the header's largest timestamp stands for their event times, if
    these are timestamps of the producer.
    """
    limit_ms = later(now_ms, topic.config.message_timestamp_after_max_ms)
    header_ms = batches.column("max_timestamp_ms")
    clamped_ms = pc.if_else(pc.greater(header_ms, limit_ms), now_ms, header_ms)
    is_data = pc.equal(pc.bit_wise_and(batches.column("attributes"), CONTROL), 0)
    has_records = pc.greater(batches.column("record_count"), 0)
    is_hidden = pc.and_(pc.and_(is_data, has_records), pc.is_null(batches.column("records")))
    is_known = pc.and_(is_hidden, _has_event_time(batches, topic.config.event_time))
    hidden_ms = pc.if_else(is_known, clamped_ms, -1)
    event_ms = pc.coalesce(batches.column("event_ms"), hidden_ms)
    append_ms = pc.coalesce(batches.column("append_ms"), now_ms)
    return batches.append_column("max_event_time_ms", event_ms).append_column(
        "append_time_ms", append_ms
    )


def _has_event_time(batches: pa.Table, source: EventTime) -> pa.ChunkedArray:
    """Return for each batch whether its header's largest timestamp is an event time."""
    is_stamped = pc.bit_wise_and(batches.column("attributes"), LOG_APPEND_TIME)
    return pc.and_(pc.equal(is_stamped, 0), pa.scalar(source == OF_TIMESTAMP))


def _check_counts(topic: Topic, log: SourceLog, batches: pa.Table) -> None:
    """Raise ForeignLogError where the table does not hold each visible record once."""
    is_data = pc.equal(pc.bit_wise_and(batches.column("attributes"), CONTROL), 0)
    is_visible = pc.greater_equal(batches.column("base_offset"), log.visible_from)
    counts = pc.coalesce(batches.column("records"), 0)
    differs = pc.not_equal(counts, pc.cast(batches.column("record_count"), pa.int64()))
    for row in batches.filter(pc.and_(pc.and_(is_data, is_visible), differs)).to_pylist()[:1]:
        count = row["records"] or 0
        raise ForeignLogError(
            f"expected {row['record_count']} records of the batch [{row['base_offset']}, "
            f"{row['last_offset']}] in {topic.name.records_table}, found {count}: "
            "the source changed while it was read, or another tool changed the table; run again"
        )


def _timestamps_in_headers(topic: Topic, condition: str) -> dict[int, int]:
    """Count the records whose timestamp is kept in a header because no column can hold it."""
    rows = (
        topic.spark.table(topic.name.records_table)
        .where(condition)
        .where("timestamp IS NULL")
        .where(F.exists("headers", lambda header: header["key"] == TIMESTAMP_HEADER))
        .groupBy("partition")
        .count()
        .collect()
    )
    return {row["partition"]: row["count"] for row in rows}
