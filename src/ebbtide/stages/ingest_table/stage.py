"""ingest_table: append the new rows of a table that others write to an ordinary topic.

The table's newest snapshot is pinned; rows of it that the topic lacks are taken in slices, as those
of a live topic are. Each slice is written to the state, its records are appended, their batches are
worked out from those records, and the state is moved: the last one moves the snapshot too.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.replica_tables import check_is_no_replica
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, find
from ebbtide.log.adopted.copied import CopiedTable, slices_of
from ebbtide.log.continuation import check_not_appended
from ebbtide.log.live_offsets import Ranges, Slice
from ebbtide.log.settings.names import TopicName
from ebbtide.log.settings.upstream import SOURCE
from ebbtide.log.state.topic_state import COPIED as COPIED_STATE
from ebbtide.log.state.topic_state import NEVER
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.conditions import any_of
from ebbtide.stages.ingest_segments.append import (
    NO_CHANGES,
    IngestOutcome,
    drop_left_behind,
    make_views,
    new_slice,
    new_topic,
)
from ebbtide.stages.ingest_segments.table_ends import find_ends
from ebbtide.stages.ingest_table.late_rows import LateRows, take_late_rows
from ebbtide.stages.ingest_table.source import OpenedTable, TableSource, open_source
from ebbtide.stages.ingest_table.window_plan import CopyPlan, described, plan_copy
from ebbtide.stages.ingest_topic.slices import COPIED, finish_killed, numbers_of_run, take_slice
from ebbtide.stages.mark_tombstones.quarantine import RunOf
from ebbtide.stages.unfinished import settle

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
    if any(of.below for of in plan.partitions.values()):
        _add_below(plan, take_late_rows(topic, plan, run), done)
    rows = {partition: of.parts for partition, of in plan.partitions.items()}
    starts = {partition: of.first_offset for partition, of in plan.partitions.items()}
    slices = list(slices_of(rows, starts, source.max_rows))
    before = {p: of["records"] for p, of in done.slices.partitions.items()}
    for number, ranges in enumerate(slices, 1):
        piece = new_slice(ranges, source.now)
        topic = _take_slice(plan, topic, piece, done.slices, is_last=number == len(slices))
    if not slices:
        topic = compare_and_set(topic, Step.COPY_SEEN, lambda _: _seen(plan))
    for partition, of in plan.partitions.items():
        taken = done.slices.partitions.get(partition, {}).get("records", 0)
        again = of.rows - (taken - before.get(partition, 0))
        done.repeated[partition] = done.repeated.get(partition, 0) + again
    return topic


def _check_not_appended(plan: CopyPlan) -> None:
    """Raise ForeignLogError where rows have offsets that records were given to directly."""
    for partition, of in plan.partitions.items():
        state = plan.topic.partitions.get(partition)
        if state is not None and state.first_appended_offset != NEVER and of.parts:
            where = f"{plan.source.name} partition {partition}"
            check_not_appended(where, state.first_appended_offset, of.end_offset)


def _add_below(plan: CopyPlan, late: LateRows, done: _Done) -> None:
    """Tell late rows from repeats among those below the log end."""
    for partition, of in plan.partitions.items():
        count = late.by_partition[partition].rows if partition in late.by_partition else 0
        done.late[partition] = done.late.get(partition, 0) + count
        done.repeated[partition] = done.repeated.get(partition, 0) + of.below - count
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
        f"`partition` = {p} AND offset >= {of.start} AND offset < {of.end}"
        for p, of in ranges.items()
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
