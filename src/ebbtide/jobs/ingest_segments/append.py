"""Append the data of an ingest: records, then batches, then state.

A run first claims the offsets in the state. Its appends fail if another run has appended since,
and its state commit fails if another run has claimed them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from ebbtide.columns.erased_keys import ErasedKeys
from ebbtide.columns.headers import (
    TIMES,
    batch_totals,
    open_transactions,
    slices_by_value,
    together_by_batch,
    with_totals,
)
from ebbtide.columns.live_records import INGESTED_SCHEMA
from ebbtide.columns.transaction_rows import LogOutline
from ebbtide.errors import (
    CommitConflictError,
    EbbtideError,
    ForeignLogError,
    RequestError,
    standing_for,
)
from ebbtide.iceberg.batch_rows import look_at_headers
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import OWN, Step, commit, current_commits
from ebbtide.iceberg.data_files import CutOut, SegmentFiles, count_rows, in_segments, read_segment
from ebbtide.iceberg.erasures import (
    ROWS_OF_ERASED_KEYS,
    erased_above_tombstones,
    erased_keys,
    erasures_snapshot,
    without_erased,
)
from ebbtide.iceberg.file_changes import (
    Appending,
    NewFile,
    OffsetsOfFiles,
    RowsBeyond,
    Target,
    in_groups,
    offsets_of_files,
    pack,
    write_new_file,
)
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.schema import BATCH_NAMES, create_topic, create_views
from ebbtide.iceberg.segment_planning import ColumnBounds, plan_segments, plan_where
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    check_is_no_replica,
    compare_and_set,
    current_snapshot,
    exists,
    find_snapshot,
    load,
    own_spec_id,
    snapshot_after,
)
from ebbtide.jobs.ingest_segments.source import HeldLog, RecordsToRead, SourceLog, first_offsets
from ebbtide.kafka.batch_header import likely_unit, unit_in_words
from ebbtide.kafka.live_offsets import Range, Ranges, Slice
from ebbtide.moments import later, machine_clock
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import TIMESTAMP_HEADER
from ebbtide.records.attributes import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import OF_TIMESTAMP, EventTime
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import SOURCE, TABLE
from ebbtide.spark.expressions import Expression, any_of
from ebbtide.spark.job_log import watched
from ebbtide.spark.tasks import Shared, errors_of_tasks, in_threads, map_segments, shared
from ebbtide.state.topic_state import (
    COPIED_SLICE,
    FILES_SLICE,
    REMOVING,
    SLICE,
    PartitionState,
    to_properties,
)
from ebbtide.text import number

LATEST_MS = 253_402_300_799_999  # the end of the year 9999
HAS_ZONE = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.]\d{1,9})?(Z|[+-]\d\d:?\d\d)$"
_EXPECTED = (
    "an expression over key, value, headers and timestamp of type timestamp, or of type bigint for "
    "ms since the epoch,"
)


def event_time_of(spark: SparkSession, source: EventTime) -> Column | None:
    """Return the event time by `source` as a column, or None if it is the timestamp.

    The column is null for a record whose event time is unreadable. Raise ConfigurationError if an
    expression has no type of time.
    """
    if source.source == "header":
        return _of_header(source.text)
    if source.source == "sql":
        return _of_expression(spark, _expression(source))
    return None


def _of_header(name: str) -> Column:
    """Read the last header of that name: ms since the epoch, or ISO 8601 with a zone."""
    matching = F.filter("headers", lambda header: header["key"] == F.lit(name))
    text = F.try_element_at(matching, F.lit(-1))["value"].cast("string")
    of_text = F.when(text.rlike(HAS_ZONE), text.try_cast("timestamp"))
    return F.coalesce(_of_millis(text.try_cast("bigint")), _within_range(of_text))


def _of_millis(millis: Column) -> Column:
    return F.when(millis.between(0, LATEST_MS), F.timestamp_millis(millis))


def _within_range(time: Column) -> Column:
    first, last = (F.timestamp_millis(F.lit(ms)) for ms in (0, LATEST_MS))
    return F.when(time.between(first, last), time)


def failing_clearly(source: EventTime) -> AbstractContextManager[None]:
    """Turn an expression's failure on a record into a ConfigurationError with the expression."""
    return _expression(source).failing_clearly() if source.source == "sql" else nullcontext()


def _expression(source: EventTime) -> Expression:
    return Expression("ebbtide.event.time=sql:", source.text, _EXPECTED)


def _of_expression(spark: SparkSession, expression: Expression) -> Column:
    data_type = expression.type(spark)
    if isinstance(data_type, TimestampType):
        return _within_range(expression.column)
    if isinstance(data_type, LongType):
        return _of_millis(expression.column)
    raise expression.refused(f"one of type {data_type.simpleString()}")


_BATCH = ("base_offset", "last_offset", "leader_epoch", "attributes", "record_count", "crc")
# Columns that an ingest sets to null; a cleaner round may set them when it rewrites a batch.
SET_BY_ROUNDS = ("header_base_offset", "producer_timestamp_ms")


class Ends(NamedTuple):
    """The log ends of some partitions in the tables, and the rows beyond them."""

    held: dict[int, HeldLog]
    records: RowsBeyond
    batches: RowsBeyond
    left_records: frozenset[int] = frozenset()  # partitions with rows beyond in that table
    left_batches: frozenset[int] = frozenset()

    @property
    def left_behind(self) -> frozenset[int]:
        """The partitions with rows beyond their ends in one of the tables."""
        return self.left_records | self.left_batches

    def without(self, partitions: Container[int]) -> Ends:
        """Return the ends of all other partitions."""
        held = {p: held_log for p, held_log in self.held.items() if p not in partitions}
        ends = {p: end for p, end in self.records.ends.items() if p not in partitions}
        records, batches = (rows._replace(ends=ends) for rows in (self.records, self.batches))
        left = (beyond & held.keys() for beyond in (self.left_records, self.left_batches))
        return Ends(held, records, batches, *left)


def find_ends(topic: Topic, partitions: Iterable[int]) -> Ends:
    """Find the log ends of the partitions by the state, and the rows beyond them."""
    held = {partition: HeldLog(topic.partitions.get(partition)) for partition in partitions}
    ends = {partition: held_log.log_end_offset for partition, held_log in held.items()}
    if not exists(topic.spark, topic.name):
        records, batches = (
            RowsBeyond(topic.spark, table, column, ends, None) for table, column in _tables(topic)
        )
        return Ends(held, records, batches)
    found = [_beyond(topic, table, column, ends) for table, column in _tables(topic)]
    (records, _), (batches, bounds) = found
    last_batches = _last_batches(batches, bounds)
    held = {p: held_log._replace(last_batch=last_batches.get(p)) for p, held_log in held.items()}
    left = (frozenset(rows.partitions(of_files)) for rows, of_files in found)
    return Ends(held, records, batches, *left)


def _tables(topic: Topic) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the records and the batches table, each with its column of offsets."""
    return (topic.name.records_table, "offset"), (topic.name.batches_table, "base_offset")


def _beyond(
    topic: Topic, name: str, column: str, ends: Mapping[int, int] | None
) -> tuple[RowsBeyond, OffsetsOfFiles]:
    """Return the rows of a table beyond the ends, and the offsets of its files.

    If `ends` is None, use the state's log end offset of every partition in the table.
    """
    table = open_table(topic.spark, name)
    bounds = offsets_of_files(table, column)
    if ends is None:
        states = topic.partitions
        ends = {p: states[p].log_end_offset if p in states else 0 for p in bounds}
    snapshot = None if table.current is None else table.current.id
    return RowsBeyond(topic.spark, name, column, ends, snapshot), bounds


def ends_passed(topic: Topic) -> dict[int, int]:
    """Return the log end offsets of the partitions that have rows at or beyond them.

    The offset is 0 for a partition without state. A job that is running or was killed has appended
    these rows.
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
            # A file merged by another tool may have batches on both sides of the end.
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
    """The appended records of the planned batches: numbers and times by partition."""

    batches: pa.Table  # the planned batches of all partitions, with their times
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
    """Read the planned batches' times and counts from their appended records."""
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
    """Return the open transactions in the batches table, if new batches may end any.

    They are the first offset of each producer id, by partition.
    """
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
    """Return one row per batch: its number of records in the table, and their largest times."""
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    firsts = {partition: log.first_offset for partition, log in logs.items()}
    units = []
    if snapshot is not None:
        units = plan_segments(spark, table, snapshot, dict.fromkeys(firsts, MAX_OFFSET), firsts)
    count = partial(_count_records, firsts, topic.config.message_timestamp_after_max_ms)
    counted = map_segments(spark, count, units, count_rows(units), "counting records of")
    # The records of a batch may be in two files.
    return together_by_batch(counted)


def _count_records(firsts: Mapping[int, int], future_limit_ms: int, unit: SegmentFiles) -> pa.Table:
    """Count a segment's records from the partition's first planned offset, in a Spark task."""
    rows = read_segment(unit, TIMES).table
    rows = rows.filter(pc.greater_equal(rows["offset"], firsts[unit.partition]))
    return batch_totals(unit.partition, rows, future_limit_ms)


def _record_totals_by(topic: Topic, condition: str, event_time: Column) -> pa.Table:
    """Return record totals like `_record_totals`, and the number of missing event times.

    Spark computes the event times.
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
    """Add the largest event time (-1: none) and the append time of each batch.

    A batch without visible records gets the header's largest timestamp, if event times are the
    producer's timestamps. A timestamp in the future is replaced by `now_ms`.
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
    """Return whether the header's largest timestamp is an event time, by batch."""
    is_stamped = pc.bit_wise_and(batches.column("attributes"), LOG_APPEND_TIME)
    return pc.and_(pc.equal(is_stamped, 0), pa.scalar(source == OF_TIMESTAMP))


def _check_counts(topic: Topic, log: SourceLog, batches: pa.Table) -> None:
    """Raise ForeignLogError unless the table has each visible record exactly once."""
    is_data = pc.equal(pc.bit_wise_and(batches.column("attributes"), CONTROL), 0)
    is_visible = pc.greater_equal(batches.column("base_offset"), log.visible_from)
    counts = pc.coalesce(batches.column("records"), 0)
    differs = pc.not_equal(counts, pc.cast(batches.column("record_count"), pa.int64()))
    for row in batches.filter(pc.and_(pc.and_(is_data, is_visible), differs)).to_pylist()[:1]:
        count = row["records"] or 0
        raise ForeignLogError(
            f"expected {row['record_count']} records of the batch [{row['base_offset']}, "
            f"{row['last_offset']}] in {topic.name.records_table}, found {count}: the source "
            "changed during the ingest, or another tool changed the table. Run the job again"
        )


def _timestamps_in_headers(topic: Topic, condition: str) -> dict[int, int]:
    """Count the records whose timestamp does not fit its column and is stored in a header."""
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


log = logging.getLogger(__name__)

T = TypeVar("T")
NO_CHANGES: PropertyChanges = MappingProxyType({})
TOPIC_ID = "kafka.topic.id"
# In the summary of a snapshot of records: the id of their slice.
SLICE_ID = "ebbtide.slice"
# There too: the snapshot of the table of erasures that the slice was compared with.
SEEN_ERASURES = "ebbtide.erasures"
# Numbers of a partition that are summed over slices.
SUMMED = ("records", "batches", "bytes", "timestamps_in_headers", "event_times_missing")


@dataclass(slots=True)
class IngestOutcome(JobOutcome):
    """A JobOutcome of one or more slices; a segment in two slices counts once."""

    segments: dict[int, set[int]] = field(default_factory=dict)  # base offsets, by partition


def new_topic(
    spark: SparkSession, name: TopicName, properties: dict[str, str], *, is_plan_only: bool
) -> Topic:
    """Create the topic's tables and return it; for a plan, return it without creating them."""
    if is_plan_only:
        return Topic(name, properties, spark)
    commit(Step.CREATE_TOPIC, lambda: create_topic(spark, name, properties))
    return load(spark, name)


def check_takes_ingests(topic: Topic) -> None:
    """Raise RequestError if the topic is a replica or is copied from a table."""
    check_is_no_replica(topic, "ingest into")
    check_copies_no_table(topic)


def check_copies_no_table(topic: Topic) -> None:
    """Raise RequestError if the topic is copied from a table."""
    upstream = topic.config.upstream
    if upstream is not None and upstream.kind == TABLE:
        raise RequestError(
            f"expected a topic that is not copied from a table, found {topic.name} with "
            f"{SOURCE}={upstream}: a topic has one source of offsets. If the table is no longer "
            f"copied, unset {SOURCE} with configure_topic"
        )


def make_views(topic: Topic, *, is_plan_only: bool) -> None:
    """Create the topic's views, which may be missing after a killed ingest."""
    if not is_plan_only:
        create_views(topic.spark, topic.name)


def pinned(topic_ids: Collection[str]) -> dict[str, str]:
    """Return the property that pins the table to its topic id; none if the id is unknown."""
    return {TOPIC_ID: next(iter(topic_ids))} if topic_ids else {}


def check_topic_id(topic: Topic, source_id: str | None, where: str) -> None:
    """Raise ForeignLogError if the source's topic id differs from the table's."""
    expected = topic.config.topic_id
    if expected is not None and source_id is not None and source_id != expected:
        raise ForeignLogError(
            f"expected topic id {expected} for {topic.name}, found {source_id} in {where}: the "
            "topic was deleted and created again. Ingest it under another cluster name, or drop "
            "the tables to start over"
        )


def appended_slice(topic: Topic, name: str) -> Slice | None:
    """Return the claimed slice whose rows a killed ingest appended without moving the state.

    Return None if there is none.
    """
    if name not in topic.properties:
        return None
    piece = Slice.parse(topic.properties[name], name)
    if not piece.continues(topic.partitions):
        return None
    if piece.id:
        table = topic.name.records_table
        is_appended = find_snapshot(topic.spark, table, SLICE_ID, piece.id) is not None
    else:
        is_appended = bool(find_ends(topic, piece.ranges).left_behind)
    return piece if is_appended else None


def new_slice(ranges: Ranges, now: datetime) -> Slice:
    """Return a new slice of this run, to be claimed."""
    commits = current_commits()
    run_id = "" if commits is None else commits.run_id
    return Slice(dict(ranges), now, uuid.uuid4().hex, run_id, machine_clock())


def claim(
    topic: Topic, step: Step, name: str, piece: Slice, more: PropertyChanges = NO_CHANGES
) -> Topic:
    """Claim the slice's offsets in the state, in place of any other claim; return the topic.

    Raise CommitConflictError if another run has moved a log end offset since the slice was planned.
    """

    def claimed(current: Topic) -> PropertyChanges:
        for partition in piece.ranges:
            _check_end(current, partition, topic.partitions.get(partition))
        others = dict.fromkeys({FILES_SLICE, SLICE, COPIED_SLICE} - {name})
        return {**others, name: piece.to_property(), **more}

    return compare_and_set(topic, step, claimed)


def ended(current: Topic, name: str, piece: Slice) -> PropertyChanges:
    """Return the change that ends a claim.

    Raise CommitConflictError if another run has claimed offsets since.
    """
    if current.properties.get(name) != piece.to_property():
        raise CommitConflictError(
            f"expected this run's claim in {name} of {current.name}, found that of another "
            "ingest. Run the job again"
        )
    return {name: None}


def _check_end(
    current: Topic, partition: int, planned: PartitionState | None
) -> PartitionState | None:
    """Return the current state of a partition, or None if it is new.

    Raise CommitConflictError if another ingest has moved its log end offset since the plan.
    """
    found = current.partitions.get(partition)
    if (found and found.log_end_offset) != (planned and planned.log_end_offset):
        raise CommitConflictError(
            f"expected the planned log end offset of {current.name} partition {partition}, found "
            "another one: another ingest moved it. Run the job again"
        )
    return found


def drop_left_behind(topic: Topic, ends: Ends, now: datetime) -> Topic:
    """Remove the rows that another ingest appended beyond the ends, and return the topic.

    The source may have changed since. If that ingest is still running, its next commit fails.
    """
    if not ends.left_behind:
        return topic
    of_claim = {p: Range(ends.records.ends[p], ends.records.ends[p]) for p in ends.left_behind}
    piece = new_slice(of_claim, now)
    topic = claim(topic, Step.LEFT_CLAIMED, FILES_SLICE, piece, {REMOVING: "true"})
    left = {p: end for p, end in ends.records.ends.items() if p in ends.left_behind}
    ends.batches._replace(ends=left).drop(Step.LEFT_BATCHES)
    ends.records._replace(ends=left).drop(Step.LEFT_RECORDS)
    log.warning("removed rows of a killed ingest from partitions %s", sorted(left))
    return set_counted(topic, Step.LEFT_STATE, lambda now: ended(now, FILES_SLICE, piece))


def append_records(
    topic: Topic, rows: DataFrame, event_time: Column | None, beyond: RowsBeyond, slice_id: str
) -> int:
    """Append rows, sorted by segment, and return the id of their snapshot.

    Raise CommitConflictError if another job has appended rows beyond the ends since.
    """
    if event_time is not None:  # otherwise the rows have their event time
        rows = rows.withColumn("event_time", F.coalesce(event_time, F.col("event_time")))
    seen = erasures_snapshot(topic.spark)
    rows = without_erased(topic, rows)
    spark, table = topic.spark, topic.name.records_table
    writer = (
        beyond.guard_writer(rows.writeTo(table))
        .option(f"snapshot-property.{OWN}", "true")
        .option(f"snapshot-property.{SLICE_ID}", slice_id)
        .option(f"snapshot-property.{SEEN_ERASURES}", seen)
        .option("output-spec-id", str(own_spec_id(open_table(spark, table))))
        # Spark neither sorts nor keeps a writer open per segment.
        .option("use-table-distribution-and-ordering", "false")
        .option("fanout-enabled", "false")
    )
    # There are no rows to overwrite: this is an append that fails if another job has appended.
    append = partial(snapshot_after, spark, table, partial(writer.overwrite, beyond.condition))
    watching = watched(spark, log, "reading and writing records")
    with watching, errors_of_tasks(), failing_clearly(topic.config.event_time):
        return commit(Step.INGEST_RECORDS, append) or -1


class _FileToWrite(NamedTuple, Generic[T]):
    """A new data file, and the source of its rows."""

    target: Target
    source: T


def _write(read: Callable[[T], Iterable[pa.Table]], file: _FileToWrite[T]) -> NewFile | None:
    return write_new_file(file.target, read(file.source))


_LOOKUP_BYTES = 16 * 1024 * 1024  # of records whose keys are looked up together


def _read_without(
    erased: Shared[ErasedKeys | None], read: Callable[[T], Iterable[pa.Table]], source: T
) -> Iterable[pa.Table]:
    """Read rows so that refused records have no key, value and headers."""
    rows, keys = read(source), erased.value
    return rows if keys is None else map(keys.stripped, in_groups(rows, _LOOKUP_BYTES))


def append_read(
    topic: Topic,
    ranges: Sequence[RecordsToRead],
    read: Callable[[RecordsToRead], Iterable[pa.Table]],
    rows: int,
    beyond: RowsBeyond,
    slice_id: str,
) -> int:
    """Append the records that `read` yields, one file per range; return the id of their snapshot.

    Raise CommitConflictError if another job has appended rows beyond the ends since.
    """
    appending = Appending.of(topic.spark, topic.name.records_table, INGESTED_SCHEMA.names)
    targets = appending.targets((wanted.partition, wanted.segment) for wanted in ranges)
    work = [_FileToWrite(*each) for each in zip(targets, ranges, strict=True)]
    seen = erasures_snapshot(topic.spark)
    with shared(topic.spark, erased_keys(topic), rows) as erased:
        write = partial(_write, partial(_read_without, erased, read))
        files = map_segments(topic.spark, write, work, rows, "reading and writing records of", pack)
    summary = {SLICE_ID: slice_id, SEEN_ERASURES: seen}
    append = partial(appending.append, files, beyond, summary)
    return commit(Step.INGEST_RECORDS, append)


def end_slice(
    topic: Topic,
    name: str,
    piece: Slice | None,
    logs: Mapping[int, SourceLog],
    beyond: RowsBeyond,
    now_ms: int,
    event_time: Column | None,
    more: Callable[[Topic, PropertyChanges], PropertyChanges],
) -> tuple[Topic, IngestOutcome]:
    """Append the batches of appended records, move the state, and return topic and outcome.

    The state's commit also ends the claim `piece` and adds the changes that `more` returns for the
    topic and the changes so far. Raise CommitConflictError if another job has committed since.
    """
    with failing_clearly(topic.config.event_time):
        ingested = read_ingested(topic, logs, now_ms, event_time)
    outcome = outcome_of(topic, logs)
    outcome.snapshot_ids += _append_batches(topic, ingested, beyond)
    if piece is not None and (late := _erased_meanwhile(topic, piece)):
        outcome.topic[ROWS_OF_ERASED_KEYS] = late

    def moved(current: Topic) -> PropertyChanges:
        of_claim = {} if piece is None else ended(current, name, piece)
        changes = _state_changes(current, logs, ingested)
        return {**of_claim, **changes, **more(current, changes)}

    topic = set_counted(topic, Step.INGEST_STATE, moved)
    _add_ingested(outcome, ingested)
    return topic, outcome


def _erased_meanwhile(topic: Topic, piece: Slice) -> int:
    """Count the slice's records with a key that was erased after their rows were read.

    Records below the erasure's tombstone are omitted: it supersedes them.
    """
    records = open_table(topic.spark, topic.name.records_table).metadata
    appended = records.find_after(SLICE_ID, piece.id) if piece.id else None
    if appended is None:
        return 0
    if records.snapshot(appended).summary.get(SEEN_ERASURES) == erasures_snapshot(topic.spark):
        return 0
    is_new = any_of(
        f"`partition` = {p} AND offset >= {offsets.start} AND offset < {offsets.end}"
        for p, offsets in piece.ranges.items()
    )
    return erased_above_tombstones(topic, is_new)


def _append_batches(topic: Topic, ingested: Ingested, beyond: RowsBeyond) -> list[int]:
    """Append the rows of the batches; return the id of their snapshot in a list."""
    spark, name = topic.spark, topic.name
    if not ingested.batches.num_rows:
        return []
    by_segment = in_segments(ingested.batches.select(BATCH_NAMES), "base_offset")
    appending = Appending.of(spark, name.batches_table, BATCH_NAMES)
    targets = appending.targets(by_segment)
    work = [_FileToWrite(*each) for each in zip(targets, by_segment.values(), strict=True)]

    def rows_of(cut: CutOut) -> list[pa.Table]:
        return [cut.rows]

    files = in_threads(spark, partial(_write, rows_of), work, "writing headers of", pack)
    return [commit(Step.INGEST_BATCHES, partial(appending.append, files, beyond, {}))]


def _state_changes(
    current: Topic, logs: Mapping[int, SourceLog], ingested: Ingested
) -> dict[str, str | None]:
    """Return the state changes after the logs were appended.

    Raise CommitConflictError if the state has moved since the plan.
    """
    changes: dict[str, str | None] = {}
    for partition, log in logs.items():
        state = _check_end(current, partition, log.held.state)
        after = log.state_after(state, ingested.max_event_times_ms.get(partition, -1))
        if after is not None and after != state:
            changes |= to_properties(partition, after)
    return changes


def outcome_of(topic: Topic, logs: Mapping[int, SourceLog]) -> IngestOutcome:
    """Return a slice's outcome: the planned numbers of each partition."""
    segments = {
        p: set(pc.unique(log.batches.column("segment")).to_pylist()) for p, log in logs.items()
    }
    partitions = {
        partition: {
            "log_start_offset": log.log_start_offset,
            "low_watermark": topic.low_watermark(log.log_start_offset),
            "log_end_offset": log.log_end_offset,
            "records": log.records,
            "batches": log.batches.num_rows,
            "bytes": log.bytes,
            "segments": len(segments[partition]),
            "skipped": log.skipped,
            "accepted_gaps": log.accepted_gaps,
        }
        for partition, log in logs.items()
    }
    return IngestOutcome(partitions, segments=segments)


def _add_ingested(outcome: JobOutcome, ingested: Ingested) -> None:
    """Add to the outcome the numbers of appended records and of unusual timestamps."""
    largest_ms = ingested.largest_timestamps_ms() if ingested.batches.num_rows else {}
    for partition, numbers in outcome.partitions.items():
        numbers["records"] = ingested.records.get(partition, 0)
        numbers["timestamps_in_headers"] = ingested.timestamps_in_headers.get(partition, 0)
        numbers["event_times_missing"] = ingested.event_times_missing.get(partition, 0)
        newest_ms = largest_ms.get(partition, NO_TIMESTAMP)
        if (unit := likely_unit(newest_ms, ingested.now_ms)) is not None:
            numbers["timestamp_unit"] = unit
            numbers["note"] = unit_in_words(unit, newest_ms)


def add_slice(done: IngestOutcome, of_slice: IngestOutcome) -> None:
    """Add the outcome of one slice to that of the slices before it."""
    for partition, numbers in of_slice.partitions.items():
        before = done.partitions.get(partition, {})
        summed = {name: before.get(name, 0) + numbers[name] for name in SUMMED}
        grown = done.segments.setdefault(partition, set())
        grown |= of_slice.segments[partition]
        summed["segments"] = len(grown)
        gaps = before.get("accepted_gaps", []) + numbers["accepted_gaps"]
        done.partitions[partition] = {**numbers, **summed, "accepted_gaps": gaps}
    if late := of_slice.topic.get(ROWS_OF_ERASED_KEYS):
        done.topic[ROWS_OF_ERASED_KEYS] = done.topic.get(ROWS_OF_ERASED_KEYS, 0) + late
        done.add_notes(
            [
                f"{number(late)} records have a key that was erased while they were ingested. Run "
                "erase_keys again with this key"
            ]
        )
    done.snapshot_ids += of_slice.snapshot_ids
    errors = [error for error in (done.error, of_slice.error) if isinstance(error, EbbtideError)]
    done.error = standing_for(errors)
