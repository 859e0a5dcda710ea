"""ingest_table: copy the new rows of a table that ebbtide does not own to an own topic.

The table's newest snapshot is pinned, and its rows that the topic lacks are copied in slices, like
the records of a live topic. Order for each slice: claim it in the state, append its records, derive
and append their batches, move the state. The last slice also records the snapshot as copied.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.live_records import INGESTED_SCHEMA, to_records
from ebbtide.errors import ForeignLogError, NotCoveredError, RequestError, UnknownTopicError
from ebbtide.iceberg.adopted.copied_rows import (
    SourceRows,
    Window,
    copied_topics,
    records_of,
    window_until,
)
from ebbtide.iceberg.adopted.rows import small_frame
from ebbtide.iceberg.catalog import find_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import without_erased
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    check_is_no_replica,
    compare_and_set,
    current_snapshot,
    find,
)
from ebbtide.jobs.ingest_segments.append import (
    NO_CHANGES,
    IngestOutcome,
    drop_left_behind,
    find_ends,
    make_views,
    new_slice,
    new_topic,
)
from ebbtide.jobs.ingest_topic import COPIED, finish_killed, log_ends, numbers_of_run, take_slice
from ebbtide.jobs.quarantine import RunOf, copy_to_quarantine
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.continuation import check_not_appended
from ebbtide.kafka.live_offsets import MAX_OFFSETS, Ranges, Slice
from ebbtide.layouts.copied import PARTS_OF_SLICE, CopiedTable, RowsOfOffsets, slices_of
from ebbtide.layouts.layout import Choices, Columns, Layout
from ebbtide.layouts.recognition import Profile, profile_named, recognise
from ebbtide.runner.job import Job, Parameters, PlanRequest, start_spark
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName, quoted_list
from ebbtide.settings.upstream import SOURCE, TABLE, Upstream
from ebbtide.spark.expressions import any_of
from ebbtide.state.topic_state import COPIED as COPIED_STATE
from ebbtide.state.topic_state import NEVER

# Topics of a table that a message names at most.
SHOWN = 20
NOTHING_CHOSEN = Choices()


@dataclass(frozen=True, slots=True)
class TableSource:
    """A run's table to copy, and its `now`."""

    now: datetime
    name: TopicName | None = None  # None: the table that the topic was copied from before
    choices: Choices = NOTHING_CHOSEN
    profile: str = ""
    topic: str = ""  # the topic to copy, if the table has several
    max_rows: int = MAX_OFFSETS  # of a slice


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """The source table at this moment, and the part of it that was copied."""

    name: TopicName
    profile: Profile
    rows: SourceRows
    copied: CopiedTable

    @property
    def upstream(self) -> str:
        """The value of the topic's property for its source."""
        return str(Upstream(TABLE, str(self.name)))


def open_source(
    spark: SparkSession, name: TopicName, topic: Topic | None, source: TableSource
) -> OpenedTable:
    """Return the source of a topic; `topic` is None if it does not exist yet.

    Raise RequestError if the topic has another source or none, and ForeignLogError if the table was
    replaced.
    """
    table_name = _name_of(name, topic, source)
    table = find_table(spark, table_name.records_table)
    if table is None:
        raise UnknownTopicError(
            f"expected the table {table_name.records_table}, found none. Check its name"
        )
    if table_exists(spark, table_name.batches_table):
        raise NotCoveredError(
            f"expected a table that ebbtide does not own, found {table_name}, an own topic. Use "
            "replicate_log to copy it"
        )
    columns = Columns.readable(table.metadata.schema, table_name.records_table)
    table_id = table.metadata.uuid
    kept = None if topic is None else CopiedTable.of(topic.properties)
    if kept is not None and kept.table_id != table_id:
        raise ForeignLogError(
            f"expected table {kept.table_id} at {table_name}, the source of {name}, found "
            f"{table_id}: the table was dropped and created again. Copy it to another topic, or "
            "drop the topic's tables to start over"
        )
    profile, layout = _layout(columns, source, kept)
    if layout.topic is not None and layout.topic_name is None:
        layout = replace(layout, topic_name=_topic_name(spark, table_name, layout, source))
    rows = SourceRows.of(spark, table_name.records_table, layout)
    copied = CopiedTable(table_id=table_id, layout=layout)
    if kept is not None:
        copied = replace(kept, layout=layout)
    return OpenedTable(table_name, profile, rows, copied)


def _name_of(name: TopicName, topic: Topic | None, source: TableSource) -> TopicName:
    """Return the name of the source table.

    Raise RequestError if it differs from the topic's source, or if neither is given.
    """
    upstream = None if topic is None else topic.config.upstream
    known = str(upstream) if upstream is not None else None
    if source.name is None:
        if upstream is None or upstream.kind != TABLE:
            raise RequestError(
                f"expected a topic that is copied from a table, found {name} with {SOURCE} "
                f"{known or 'not set'}. Name the table with --source"
            )
        return TopicName.parse(upstream.where)
    if source.name == name:
        raise RequestError(f"expected another table to copy {name} from, found the topic itself")
    asked = str(Upstream(TABLE, str(source.name)))
    if known not in (None, asked):
        raise RequestError(
            f"expected {name} without a source or with {asked}, found {known}: a topic has one "
            f"source of offsets. Copy to another topic, or unset {SOURCE} with configure_topic"
        )
    return source.name


def _layout(
    columns: Columns, source: TableSource, kept: CopiedTable | None
) -> tuple[Profile, Layout]:
    """Return the stored layout with new value columns, unless the run asks for another one."""
    if kept is not None and source.choices == NOTHING_CHOSEN and not source.profile:
        profile, layout = profile_named(kept.layout.profile), kept.layout
        now = profile.recognise(columns, NOTHING_CHOSEN)
        has_more = now is not None and set(layout.values) <= set(now.values)
        return profile, replace(layout, values=now.values) if now and has_more else layout
    found = recognise(columns, source.choices, source.profile)
    layout = replace(found.layout, topic_name=source.topic or None)
    if kept is not None:
        _check_same_places(kept.layout, layout)
        layout = replace(layout, topic_name=layout.topic_name or kept.layout.topic_name)
    return found.profile, layout


def _check_same_places(before: Layout, after: Layout) -> None:
    if (before.partition, before.offset) != (after.partition, after.offset):
        raise RequestError(
            "expected the partition and offset columns from which rows were copied before, found "
            "different ones. Copy the table to another topic"
        )


def _topic_name(
    spark: SparkSession, table: TopicName, layout: Layout, source: TableSource
) -> str | None:
    """Return the topic of the table to copy: the requested one, or its only one."""
    if source.topic:
        return source.topic
    names = SourceRows.of(spark, table.records_table, layout).topics()
    if len(names) > 1:
        raise RequestError(
            f"expected --source-topic for {table}, found none, but records of several topics: "
            f"{quoted_list(names[:SHOWN])}. Name the topic to copy"
        )
    return next(iter(names), None)


# Instead of a part's number: rows below the end of the previous run, and below the log end.
_BELOW, _TAKEN = -1, -2


@dataclass(slots=True)
class PlannedPartition:
    """A partition's rows to copy."""

    first_offset: int
    parts: list[RowsOfOffsets] = field(default_factory=list)  # in offset order
    below: int = 0  # rows below the end of the previous run: repeats or late rows

    @property
    def rows(self) -> int:
        """The number of new rows, including repeats."""
        return sum(part.rows for part in self.parts)

    @property
    def end_offset(self) -> int:
        """The log end offset after the copy."""
        return self.parts[-1].end_offset if self.parts else self.first_offset


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The rows of one snapshot to copy, and the state to record for them."""

    topic: Topic
    source: OpenedTable
    window: Window
    copied: CopiedTable  # with `until` and `ends` of this window
    partitions: Mapping[int, PlannedPartition]
    unplaced: int = 0  # rows without partition or offset

    @property
    def is_told_by_offsets(self) -> bool:
        """True if only offsets distinguish new rows, so that late rows cannot be detected."""
        return self.window.seen is None and bool(self.copied.ends)

    @property
    def seen(self) -> CopiedTable:
        """The source's state after all rows of the window are copied."""
        return replace(self.copied, seen=self.window.until, until=None, ends={})

    def notes(self) -> list[str]:
        """Return the notes of the run's result."""
        notes = [self.source.profile.warning] if self.copied.seen is None else []
        if self.is_told_by_offsets:
            notes.append(
                "the table's snapshots do not show which rows are new since the last run: rows are "
                "copied from the log end offsets, and late rows below them cannot be detected"
            )
        if self.unplaced:
            notes.append(f"{self.unplaced} rows have no partition or no offset and are not copied")
        return [note for note in notes if note]

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic=described(self.source, self.window.until))
        for partition, planned in self.partitions.items():
            state = self.topic.partitions.get(partition)
            start = planned.first_offset if state is None else state.log_start_offset
            outcome.partitions[partition] = {
                "log_start_offset": start,
                "low_watermark": self.topic.low_watermark(start),
                "log_end_offset": planned.end_offset,
                "offsets": planned.end_offset - planned.first_offset,
                "rows": planned.rows,
                "rows_below": planned.below,
            }
        if notes := self.notes():
            outcome.topic["note"] = "; ".join(notes)
        return outcome


def described(source: OpenedTable, snapshot: int) -> dict[str, Any]:
    """Return the result's fields about the source."""
    layout = source.rows.layout
    parts = ("partition", "offset", "timestamp", "key", "headers", "topic", "mark")
    found = ((part, getattr(layout, part)) for part in parts)
    columns = [f"{part}: {column.name}" for part, column in found if column is not None]
    columns += [f"value: {column.name}" for column in layout.values]
    if not layout.values:
        columns.append("value: JSON of the other columns")
    return {
        "source": source.upstream,
        "layout": f"{source.profile.writer} ({source.profile.source})",
        "columns": columns,
        "source_snapshot": str(snapshot),
    }


def plan_copy(topic: Topic, source: OpenedTable, most: int) -> CopyPlan | None:
    """Plan the window that a killed run began, or else all rows up to the newest snapshot.

    Return None if all snapshots of the table are copied.
    """
    rows, copied = source.rows, source.copied
    until, ends = copied.until, copied.ends
    if until is None or not rows.can_read(until):
        until, ends = current_snapshot(rows.spark, rows.table), log_ends(topic)
    if until is None or until == copied.seen:
        return None
    is_stamped = topic.config.message_timestamp_type == "LogAppendTime"
    window = window_until(rows, until, copied.seen, is_stamped=is_stamped)
    copied = replace(copied, until=until, ends=ends)
    if window.records is None:
        return CopyPlan(topic, source, window, copied, {})
    width = max(1, most // PARTS_OF_SLICE)
    partitions, unplaced = _counted(topic, window.records, ends, width)
    if window.seen is None:  # the window has all rows of the table, most of them copied before
        for planned in partitions.values():
            planned.below = 0
    return CopyPlan(topic, source, window, copied, partitions, unplaced)


def _counted(
    topic: Topic, records: DataFrame, ends: Mapping[int, int], width: int
) -> tuple[dict[int, PlannedPartition], int]:
    """Count the rows of each partition per `width` offsets, and the rows without a place."""
    now = log_ends(topic)
    is_taken, is_below = F.col("offset") < F.col("log_end"), F.col("offset") < F.col("end_before")
    from_start = F.col("offset") - F.coalesce(F.col("log_end"), F.lit(0))
    part = F.when(is_below, _BELOW).when(is_taken, _TAKEN).otherwise(F.floor(from_start / width))
    counts = (
        with_ends(topic.spark, records, {p: (ends.get(p, 0), end) for p, end in now.items()})
        .select("partition", "offset", part.alias("part"))
        .groupBy("partition", "part")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        .collect()
    )
    partitions: dict[int, PlannedPartition] = {}
    unplaced = sum(count["rows"] for count in counts if None in (count["partition"], count["part"]))
    placed = [count for count in counts if None not in (count["partition"], count["part"])]
    for row in sorted(placed, key=lambda count: count["part"]):
        partition = row["partition"]
        first = now.get(partition, row["first"])
        planned = partitions.setdefault(partition, PlannedPartition(first))
        if row["part"] == _BELOW:
            planned.below = row["rows"]
        elif row["part"] != _TAKEN:
            planned.parts.append(RowsOfOffsets(row["rows"], row["last"] + 1))
    return dict(sorted(partitions.items())), unplaced


def with_ends(
    spark: SparkSession, records: DataFrame, ends: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """Add the log end offsets at the window's begin and now; null for a new partition."""
    known = [(partition, *both) for partition, both in ends.items()]
    frame = small_frame(spark, known, ("of_partition", "end_before", "log_end"))
    is_its = F.col("partition") == F.col("of_partition")
    return records.join(F.broadcast(frame), is_its, "left")


# Rows of a copied table that arrived below the log end offset: repeats and late rows.
#
# Records are appended only at the log's end: readers, marks and rounds have passed lower offsets.
# So late rows are copied to the quarantine table and reported.


LATE_ROW = "late_row"
_PLACE = ["partition", "offset"]
_TIME = pa.timestamp("us", tz="UTC")


class LateOffsets(NamedTuple):
    """Late rows of a partition: their number, lowest and highest offset."""

    rows: int
    first_offset: int
    last_offset: int


class LateRows(NamedTuple):
    """The late rows of a window."""

    by_partition: Mapping[int, LateOffsets]
    snapshot: int | None  # of the quarantine, if rows were added to it

    def note(self, table: str) -> str:
        """Return the note about late rows in the quarantine `table`."""
        places = ", ".join(
            f"{late.rows} of partition {partition} with offsets {late.first_offset} to "
            f"{late.last_offset}"
            for partition, late in self.by_partition.items()
        )
        return (
            f"rows arrived late, below the log end offset: {places}. They are not in the log, but "
            f"in {table} with the reason {LATE_ROW}"
        )


def take_late_rows(topic: Topic, plan: CopyPlan, run: RunOf) -> LateRows:
    """Copy the window's late rows to the quarantine, without those that a killed run copied.

    A row is not late but a repeat if the table had it before the window, or if the topic has it.
    """
    found = _late(topic, plan).persist()
    try:
        by_partition = _by_partition(found)
        if not by_partition:
            return LateRows({}, None)

        def as_rows(rows: DataFrame) -> DataFrame:
            return without_erased(topic, _as_records(run.now, rows))

        return LateRows(by_partition, copy_to_quarantine(topic, found, LATE_ROW, run, as_rows))
    finally:
        found.unpersist()


def _late(topic: Topic, plan: CopyPlan) -> DataFrame:
    window, spark, rows = plan.window, topic.spark, plan.source.rows
    assert window.records is not None
    assert window.seen is not None
    ends = {partition: (plan.copied.ends.get(partition, 0), 0) for partition in log_ends(topic)}
    is_below = F.col("offset") < F.col("end_before")
    candidates = with_ends(spark, window.records, ends).where(is_below)
    candidates = candidates.drop("of_partition", "end_before", "log_end")
    candidates = candidates.dropDuplicates(_PLACE)
    held = spark.table(topic.name.records_table).select(_PLACE)
    late = candidates.join(held, _PLACE, "left_anti")
    if rows.can_read(window.seen):
        before = records_of(rows, rows.at(window.seen), is_stamped=False).select(_PLACE)
        late = late.join(before, _PLACE, "left_anti")
    return late


def _by_partition(found: DataFrame) -> dict[int, LateOffsets]:
    sums = found.groupBy("partition").agg(F.count(F.lit(1)), F.min("offset"), F.max("offset"))
    return {partition: LateOffsets(*numbers) for partition, *numbers in sorted(sums.collect())}


def _as_records(now: datetime, rows: DataFrame) -> DataFrame:
    """Return rows of the Kafka source as records; each offset is its own batch and segment."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = pa.scalar(now, _TIME)
        for batch in batches:
            table = pa.Table.from_batches([batch])
            offsets = table["offset"].to_numpy()
            records = to_records(table, offsets, offsets, at).select(INGESTED_SCHEMA.names)
            yield from records.cast(INGESTED_SCHEMA).to_batches()

    schema = from_arrow_schema(INGESTED_SCHEMA)
    return rows.mapInArrow(convert, schema)  # type: ignore[arg-type]


JOB = "ingest_table"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Done:
    """The outcome of a run so far, by slices and in addition to them."""

    slices: IngestOutcome = field(default_factory=IngestOutcome)
    late: dict[int, int] = field(default_factory=dict)
    repeated: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    has_quarantined: bool = False


def ingest_table(
    spark: SparkSession,
    name: TopicName,
    source: TableSource,
    run: RunOf,
    *,
    is_plan_only: bool = False,
) -> JobOutcome:
    """Append the rows of the table's newest snapshot that the topic lacks.

    A new topic is created.
    """
    name = TopicName.checked(name.cluster, name.topic)
    topic = find(spark, name)
    if topic is not None:
        topic = settle(topic, JOB, is_plan_only=is_plan_only)
        check_is_no_replica(topic, "ingest into")
    opened = open_source(spark, name, topic, source)
    if topic is None:
        origin = {SOURCE: opened.upstream}
        topic = new_topic(spark, name, origin, is_plan_only=is_plan_only)
    make_views(topic, is_plan_only=is_plan_only)
    if is_plan_only:
        plan = plan_copy(topic, opened, source.max_rows)
        return _nothing_new(topic) if plan is None else plan.outcome()
    done = _Done()
    topic = finish_killed(COPIED, topic, done.slices)
    topic = drop_left_behind(topic, find_ends(topic, topic.partitions), source.now)
    while plan := _plan_again(topic, opened, source.max_rows):
        topic = _execute(plan, source, run, done)
    return _answer(topic, opened, done)


def _plan_again(topic: Topic, opened: OpenedTable, most: int) -> CopyPlan | None:
    """Plan the next window, from the state after the last one."""
    copied = CopiedTable.of(topic.properties)
    if copied is not None:
        opened = replace(opened, copied=replace(copied, layout=opened.copied.layout))
    return plan_copy(topic, opened, most)


def _execute(plan: CopyPlan, source: TableSource, run: RunOf, done: _Done) -> Topic:
    """Copy a window: late rows to the quarantine, then the slices, and return the topic."""
    topic = plan.topic
    _check_not_appended(plan)
    done.notes += plan.notes()
    if any(planned.below for planned in plan.partitions.values()):
        _add_below(plan, take_late_rows(topic, plan, run), done)
    rows = {partition: planned.parts for partition, planned in plan.partitions.items()}
    starts = {partition: planned.first_offset for partition, planned in plan.partitions.items()}
    slices = list(slices_of(rows, starts, source.max_rows))
    before = {p: numbers["records"] for p, numbers in done.slices.partitions.items()}
    for number, ranges in enumerate(slices, 1):
        piece = new_slice(ranges, source.now)
        topic = _take_slice(plan, topic, piece, done.slices, is_last=number == len(slices))
    if not slices:
        topic = compare_and_set(topic, Step.COPY_SEEN, lambda _: _seen(plan))
    for partition, planned in plan.partitions.items():
        taken = done.slices.partitions.get(partition, {}).get("records", 0)
        again = planned.rows - (taken - before.get(partition, 0))
        done.repeated[partition] = done.repeated.get(partition, 0) + again
    return topic


def _check_not_appended(plan: CopyPlan) -> None:
    """Raise ForeignLogError if rows have offsets of records that were appended directly."""
    for partition, planned in plan.partitions.items():
        state = plan.topic.partitions.get(partition)
        if state is not None and state.first_appended_offset != NEVER and planned.parts:
            where = f"{plan.source.name} partition {partition}"
            check_not_appended(where, state.first_appended_offset, planned.end_offset)


def _add_below(plan: CopyPlan, late: LateRows, done: _Done) -> None:
    """Count late rows and repeats among the rows below the log end, and note late rows."""
    for partition, planned in plan.partitions.items():
        count = late.by_partition[partition].rows if partition in late.by_partition else 0
        done.late[partition] = done.late.get(partition, 0) + count
        done.repeated[partition] = done.repeated.get(partition, 0) + planned.below - count
    if late.by_partition:
        note = late.note(plan.topic.name.quarantine_table)
        log.warning("%s", note)
        done.notes.append(note)
        done.has_quarantined = True
    if late.snapshot is not None:
        done.slices.snapshot_ids.append(late.snapshot)


def _take_slice(
    plan: CopyPlan, topic: Topic, piece: Slice, done: IngestOutcome, *, is_last: bool
) -> Topic:
    """Copy the slice's rows; the last slice also records the snapshot as copied."""
    records = plan.window.records
    assert records is not None

    def read(_: Topic, ranges: Ranges) -> AbstractContextManager[DataFrame]:
        return nullcontext(in_order(records, ranges))

    of_source = {COPIED_STATE: plan.copied.to_property(), SOURCE: plan.source.upstream}
    seen = _seen(plan) if is_last else NO_CHANGES
    return take_slice(COPIED, topic, piece, read, done, claimed=of_source, on_end=seen)


def in_order(records: DataFrame, ranges: Ranges) -> DataFrame:
    """Return the records of these offsets in offset order, each partition in one Spark task."""
    wanted = any_of(
        f"`partition` = {p} AND offset >= {span.start} AND offset < {span.end}"
        for p, span in ranges.items()
    )
    by_partition = records.where(wanted).repartition(F.col("partition"))
    return by_partition.sortWithinPartitions("partition", "offset")


def _seen(plan: CopyPlan) -> PropertyChanges:
    return {COPIED_STATE: plan.seen.to_property(), SOURCE: plan.source.upstream}


def _nothing_new(topic: Topic) -> JobOutcome:
    nothing = {"offsets": 0, "rows": 0, "rows_below": 0}
    return JobOutcome({p: {**topic.offsets_of(p), **nothing} for p in topic.partitions})


def _answer(topic: Topic, opened: OpenedTable, done: _Done) -> JobOutcome:
    """Return the run's outcome, with zeros for partitions without new rows."""
    outcome = done.slices
    for partition in topic.partitions:
        outcome.partitions[partition] = {
            **numbers_of_run(outcome, topic, partition),
            "repeated": done.repeated.get(partition, 0),
            "late": done.late.get(partition, 0),
        }
    copied = CopiedTable.of(topic.properties)
    if copied is not None and copied.seen is not None:
        outcome.topic |= described(opened, copied.seen)
    if done.has_quarantined:
        outcome.topic["quarantine"] = topic.name.quarantine_table
    outcome.add_notes(done.notes)
    return outcome


def _check(args: Namespace) -> None:
    choices = Choices.of(args)
    if (args.source is not None or any(choices)) and len(args.topic) != 1:
        raise RequestError(
            f"expected one --topic with --source or columns, found {len(args.topic)}"
        )
    args.table = TableSource(
        args.now, args.source, choices, args.profile or "", args.source_topic or ""
    )


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    """Return the topics that the arguments name, or all that are copied from a table."""
    return {name: {} for name in args.topic or copied_topics(start_spark(JOB))}


def _do(spark: SparkSession, name: TopicName, request: PlanRequest) -> JobOutcome:
    args = request.given
    run = RunOf(args.run_id, args.now)
    return ingest_table(spark, name, args.table, run, is_plan_only=args.plan_only)


INGEST_TABLE: Job[Any] = Job(JOB, _do, asked=_asked, check=_check)
