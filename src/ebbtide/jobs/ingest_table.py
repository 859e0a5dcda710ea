"""ingest_table: append the new rows of a table that others write to an ordinary topic.

The table's newest snapshot is pinned; rows of it that the topic lacks are taken in slices, as those
of a live topic are. Each slice is written to the state, its records are appended, their batches are
worked out from those records, and the state is moved: the last one moves the snapshot too.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
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

# Of a table's topics, how many a message names.
SHOWN = 20
NOTHING_CHOSEN = Choices()


@dataclass(frozen=True, slots=True)
class TableSource:
    """A run's source and its clock; without a name, the one that each topic is copied from.

    `topic` is the one to copy of a table that holds several.
    """

    now: datetime
    name: TopicName | None = None
    choices: Choices = NOTHING_CHOSEN
    profile: str = ""
    topic: str = ""
    max_rows: int = MAX_OFFSETS  # of a slice


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """The source as it is now, and how far it has been copied."""

    name: TopicName
    profile: Profile
    rows: SourceRows
    copied: CopiedTable

    @property
    def upstream(self) -> str:
        """The source as the topic's property names it."""
        return str(Upstream(TABLE, str(self.name)))


def open_source(
    spark: SparkSession, name: TopicName, topic: Topic | None, source: TableSource
) -> OpenedTable:
    """Return the source of a topic, which is None where it does not exist yet.

    Raise RequestError where the topic has another source or none, and ForeignLogError where the
    table is another than before.
    """
    table_name = _name_of(name, topic, source)
    table = find_table(spark, table_name.records_table)
    if table is None:
        raise UnknownTopicError(f"expected the table {table_name.records_table}, found none")
    if table_exists(spark, table_name.batches_table):
        raise NotCoveredError(
            f"expected a table that others write, found {table_name}, a topic of ebbtide's own; "
            "replicate_log copies such"
        )
    columns = Columns.readable(table.metadata.schema, table_name.records_table)
    table_id = table.metadata.uuid
    kept = None if topic is None else CopiedTable.of(topic.properties)
    if kept is not None and kept.table_id != table_id:
        raise ForeignLogError(
            f"expected the table {kept.table_id} at {table_name}, which {name} is copied from, "
            f"found {table_id}: it was dropped and created anew; copy it to another topic, or drop "
            "the topic's tables to begin anew"
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
    """Return the name of the source: the one asked for, which must be the topic's if it has one."""
    upstream = None if topic is None else topic.config.upstream
    known = str(upstream) if upstream is not None else None
    if source.name is None:
        if upstream is None or upstream.kind != TABLE:
            raise RequestError(
                f"expected a topic that is copied from a table, found {SOURCE} of {name} to be "
                f"{known or 'not set'}; name the table with --source"
            )
        return TopicName.parse(upstream.where)
    if source.name == name:
        raise RequestError(f"expected a table to copy {name} from, found the topic's own")
    asked = str(Upstream(TABLE, str(source.name)))
    if known not in (None, asked):
        raise RequestError(
            f"expected {name} to have no source or {asked}, found {known}: offsets belong to one "
            f"writer; copy to another topic, or unset {SOURCE} with configure_topic first"
        )
    return source.name


def _layout(
    columns: Columns, source: TableSource, kept: CopiedTable | None
) -> tuple[Profile, Layout]:
    """Return the kept layout with value columns that came since, unless others are asked for."""
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
            "expected the columns of partition and offset from which rows have been copied, found "
            "others; copy the table to another topic"
        )


def _topic_name(
    spark: SparkSession, table: TopicName, layout: Layout, source: TableSource
) -> str | None:
    """Return the table's topic to copy: the one asked for, or its only one."""
    if source.topic:
        return source.topic
    names = SourceRows.of(spark, table.records_table, layout).topics()
    if len(names) > 1:
        raise RequestError(
            f"expected --source-topic for {table}, which holds records of "
            f"{quoted_list(names[:SHOWN])}, found none; name the one to copy"
        )
    return next(iter(names), None)


# In place of a number of offsets: rows below where the run before ended, and below the log end.
_BELOW, _TAKEN = -1, -2


@dataclass(slots=True)
class PlannedPartition:
    """A partition's new rows in order of offsets, and where they begin; how many lie below."""

    first_offset: int
    parts: list[RowsOfOffsets] = field(default_factory=list)
    below: int = 0  # rows below the end that the run before left: repeats, or late

    @property
    def rows(self) -> int:
        """How many rows are new, repeats included."""
        return sum(part.rows for part in self.parts)

    @property
    def end_offset(self) -> int:
        """The log end offset once they are copied."""
        return self.parts[-1].end_offset if self.parts else self.first_offset


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The rows that a run copies of one snapshot, and the state that says so."""

    topic: Topic
    source: OpenedTable
    window: Window
    copied: CopiedTable  # with `until` and `ends` of this window
    partitions: Mapping[int, PlannedPartition]
    unplaced: int = 0  # rows without partition or offset

    @property
    def is_told_by_offsets(self) -> bool:
        """Whether offsets alone tell what is new, so that nobody can tell late rows."""
        return self.window.seen is None and bool(self.copied.ends)

    @property
    def seen(self) -> CopiedTable:
        """The source once all of the window's rows are copied."""
        return replace(self.copied, seen=self.window.until, until=None, ends={})

    def notes(self) -> list[str]:
        """Return what the numbers do not say."""
        notes = [self.source.profile.warning] if self.copied.seen is None else []
        if self.is_told_by_offsets:
            notes.append(
                "the table's snapshots do not tell which rows came since the last run, so rows are "
                "taken from the log end offsets on; whether any came below them meanwhile, nobody "
                "can tell"
            )
        if self.unplaced:
            notes.append(f"{self.unplaced} rows have no partition or no offset: none was copied")
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
    """Return what is to be said of the source."""
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
    """Plan the window that a killed run began, or else all up to the newest snapshot.

    None where the table has no snapshot that is not copied.
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
    if window.seen is None:  # all rows of the table, most of them copied long ago
        for planned in partitions.values():
            planned.below = 0
    return CopyPlan(topic, source, window, copied, partitions, unplaced)


def _counted(
    topic: Topic, records: DataFrame, ends: Mapping[int, int], width: int
) -> tuple[dict[int, PlannedPartition], int]:
    """Count the rows of each partition by `width` offsets; also those that have no place."""
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
    """Add the log end offsets of a window's begin and of now, null for a new partition."""
    known = [(partition, *both) for partition, both in ends.items()]
    frame = small_frame(spark, known, ("of_partition", "end_before", "log_end"))
    is_its = F.col("partition") == F.col("of_partition")
    return records.join(F.broadcast(frame), is_its, "left")


# Rows of a copied table that came below the log end offset: repeats, and late rows.
#
# A log takes records at its end only: readers, marks and rounds have passed what is below. So a
# late row goes to the quarantine table, whole, and is named.


LATE_ROW = "late_row"
_PLACE = ["partition", "offset"]
_TIME = pa.timestamp("us", tz="UTC")


class LateOffsets(NamedTuple):
    """Late rows of a partition: how many, and the least and greatest of their offsets."""

    rows: int
    first_offset: int
    last_offset: int


class LateRows(NamedTuple):
    """Late rows by partition; the snapshot that holds those new to the quarantine, if any are."""

    by_partition: Mapping[int, LateOffsets]
    snapshot: int | None

    def note(self, table: str) -> str:
        """Return which rows are late, and where they are now."""
        places = ", ".join(
            f"{late.rows} of partition {partition} with offsets {late.first_offset} to "
            f"{late.last_offset}"
            for partition, late in self.by_partition.items()
        )
        return (
            f"rows came below the log end offset after it had been copied: {places}; the log takes "
            f"none there, so they are in {table}, with the reason {LATE_ROW}"
        )


def take_late_rows(topic: Topic, plan: CopyPlan, run: RunOf) -> LateRows:
    """Put the window's late rows into the quarantine; those of a killed run are there already.

    A row is a repeat if the table had it before the window, or if the topic has it.
    """
    found = _late(topic, plan).persist()
    try:
        by_partition = _by_partition(found)
        if not by_partition:
            return LateRows({}, None)
        as_rows = partial(_as_records, run.now)
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
    """Return rows of the Kafka source as records, each a batch and a segment of its own."""
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
    """What a run has done so far, beside what its slices say."""

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
    """Create a new topic, and append all that the table's newest snapshot has and it lacks."""
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
    """Plan what is left, by the state as the last window has left it."""
    copied = CopiedTable.of(topic.properties)
    if copied is not None:
        opened = replace(opened, copied=replace(copied, layout=opened.copied.layout))
    return plan_copy(topic, opened, most)


def _execute(plan: CopyPlan, source: TableSource, run: RunOf, done: _Done) -> Topic:
    """Copy a window: late rows to the quarantine, slice after slice, and the snapshot with them."""
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
    """Raise ForeignLogError where rows have offsets that records were given to directly."""
    for partition, planned in plan.partitions.items():
        state = plan.topic.partitions.get(partition)
        if state is not None and state.first_appended_offset != NEVER and planned.parts:
            where = f"{plan.source.name} partition {partition}"
            check_not_appended(where, state.first_appended_offset, planned.end_offset)


def _add_below(plan: CopyPlan, late: LateRows, done: _Done) -> None:
    """Tell late rows from repeats among those below the log end."""
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
    """Take the slice's rows of the table; the last one moves the snapshot too."""
    records = plan.window.records
    assert records is not None

    def read(_: Topic, ranges: Ranges) -> AbstractContextManager[DataFrame]:
        return nullcontext(in_order(records, ranges))

    of_source = {COPIED_STATE: plan.copied.to_property(), SOURCE: plan.source.upstream}
    seen = _seen(plan) if is_last else NO_CHANGES
    return take_slice(COPIED, topic, piece, read, done, claimed=of_source, on_end=seen)


def in_order(records: DataFrame, ranges: Ranges) -> DataFrame:
    """Return the records of these offsets, whole partitions a task, in offset order."""
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
    """Return what the run did, and that there was nothing new of the other partitions."""
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
    if done.notes:
        outcome.topic["note"] = "; ".join(done.notes)
    return outcome


def _check(args: Namespace) -> None:
    choices = Choices.of(args)
    if (args.source is not None or any(choices)) and len(args.topic) != 1:
        raise RequestError("expected one --topic with --source or columns")
    args.table = TableSource(
        args.now, args.source, choices, args.profile or "", args.source_topic or ""
    )


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    """Return the topics that are named, or all that are copied from a table."""
    return {name: {} for name in args.topic or copied_topics(start_spark(JOB))}


def _do(spark: SparkSession, name: TopicName, request: PlanRequest) -> JobOutcome:
    args = request.given
    run = RunOf(args.run_id, args.now)
    return ingest_table(spark, name, args.table, run, is_plan_only=args.plan_only)


INGEST_TABLE: Job[Any] = Job(JOB, _do, asked=_asked, check=_check)
