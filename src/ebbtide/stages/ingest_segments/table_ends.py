"""Find where the tables' copy of a source log ends, and what a killed ingest has left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.batch_totals import TIMES, batch_totals, together_by_batch, with_totals
from ebbtide.columns.header_columns import open_transactions
from ebbtide.columns.log_headers import LogOutline
from ebbtide.columns.slices import slices_by_value
from ebbtide.errors import ForeignLogError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import MAX_OFFSET, SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.iceberg.files.segment_planning import ColumnBounds, plan_segments, plan_where
from ebbtide.iceberg.topics import Topic, current_snapshot, exists
from ebbtide.log.settings.config import OF_TIMESTAMP, EventTime
from ebbtide.records.attributes import CONTROL, LOG_APPEND_TIME
from ebbtide.records.decoding.record_columns import TIMESTAMP_HEADER
from ebbtide.spark.conditions import any_of
from ebbtide.spark.tasks import map_segments
from ebbtide.stages.ingest_segments.source_log import HeldLog, SourceLog, first_offsets

_BATCH = ("base_offset", "last_offset", "leader_epoch", "attributes", "record_count", "crc")
# Header fields that are lost once a cleaner round has rewritten the batch.
SET_BY_ROUNDS = ("header_base_offset", "producer_timestamp_ms")


def find_ends(topic: Topic, partitions: Iterable[int]) -> dict[int, HeldLog]:
    """Find where each table's copy of each partition ends."""
    if not exists(topic.spark, topic.name):
        return {partition: HeldLog() for partition in partitions}
    record_ends = _last_offsets(topic.spark, topic.name.records_table, "offset")
    batch_ends = _last_offsets(topic.spark, topic.name.batches_table, "base_offset", "last_offset")
    last_batches = _last_batches(topic, {p: base for p, (base, _) in batch_ends.items()})
    return {
        partition: HeldLog(
            topic.partitions.get(partition),
            records_end=record_ends.get(partition, [-1])[-1] + 1,
            batches_end=batch_ends.get(partition, [-1])[-1] + 1,
            last_batch=last_batches.get(partition),
        )
        for partition in partitions
    }


def ends_passed(topic: Topic) -> dict[int, int]:
    """Return the log end offsets of the partitions whose tables hold rows at or beyond them.

    0 for a partition that the state does not know. A job that was killed, or is at work, has
    appended these rows.
    """
    tables = ((topic.name.records_table, "offset"), (topic.name.batches_table, "last_offset"))
    ends = {partition: state.log_end_offset for partition, state in topic.partitions.items()}
    return {
        partition: ends.get(partition, 0)
        for table, column in tables
        for partition, (last,) in _last_offsets(topic.spark, table, column).items()
        if last >= ends.get(partition, 0)
    }


def _last_offsets(spark: SparkSession, name: str, *columns: str) -> dict[int, list[int]]:
    """Return the largest value of the columns in each partition's files, from manifests alone."""
    table = open_table(spark, name)
    ids = {column.name: column.field_id for column in table.metadata.columns}
    largest: dict[int, list[int]] = {}
    for file in current_files(table, has_bounds=True):
        if file.is_data:
            assert file.bounds is not None
            last = [file.bounds.upper.get(ids[column], -1) for column in columns]
            known = largest.setdefault(file.partition["partition"], last)
            known[:] = map(max, known, last)
    return largest


def _last_batches(topic: Topic, base_offsets: Mapping[int, int]) -> dict[int, dict[str, Any]]:
    """Return the row of the batch that begins at this offset of each partition."""
    table = topic.name.batches_table
    snapshot = current_snapshot(topic.spark, table)
    if snapshot is None or not base_offsets:
        return {}
    ends = {partition: base + 1 for partition, base in base_offsets.items()}

    def may_hold(partition: int, columns: ColumnBounds) -> bool:
        last = columns.upper("base_offset")
        return last is not None and last >= base_offsets[partition]

    found: dict[int, dict[str, Any]] = {}
    for unit in plan_where(topic.spark, table, snapshot, ends, may_hold):
        rows = read_segment(unit, _BATCH, "base_offset").table
        is_last = pc.equal(rows["base_offset"], base_offsets[unit.partition])
        for row in rows.filter(is_last).to_pylist():
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


def read_ingested(
    topic: Topic, all_logs: Mapping[int, SourceLog], now_ms: int, event_time: Column | None
) -> Ingested:
    """Read the planned batches' times and counts from their records, which are in the table now."""
    logs = {p: log for p, log in all_logs.items() if log.batches.num_rows}
    if not logs:
        return Ingested(pa.table({"is_written": pa.array([], pa.bool_())}))
    undecided = _undecided(topic, logs.values())
    planned = [
        log.batches.append_column(
            "is_written", pc.less(log.batches.column("base_offset"), log.held.batches_end)
        ).append_column("txn_first_offset", first_offsets(log, undecided.get(partition, {})))
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
    )


def _undecided(topic: Topic, logs: Iterable[SourceLog]) -> dict[int, dict[int, int]]:
    """Return the transactions that the batches table leaves open, if new batches may end any."""
    if not any(log.is_transactional.any() and log.held.batches_end for log in logs):
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
    # A killed ingest may have split a batch: its records then lie in two files.
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
    is_future = event_ms > append_ms + topic.config.message_timestamp_after_max_ms
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
    limit_ms = now_ms + topic.config.message_timestamp_after_max_ms
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
            + _what_to_do(topic, log, row["partition"], is_twice=count > row["record_count"])
        )


def _what_to_do(topic: Topic, log: SourceLog, partition: int, *, is_twice: bool) -> str:
    if is_twice:
        return (
            "two ingests ran at a time, and both added them; roll the table back to the snapshot "
            f"before the later append, which {topic.name.records_table}.snapshots shows, and run "
            "again"
        )
    return (
        "a killed ingest read another log; delete the rows where partition = "
        f"{partition} and offset >= {log.first_offset}, and run again"
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
