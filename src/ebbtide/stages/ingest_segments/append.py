"""Append what an ingest takes: records, then batches, then state.

A run first writes to the state which offsets it is about to take. Its appends fail if another run
was faster, and so does its state if another has taken the work over.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.ingested_records import INGESTED_SCHEMA
from ebbtide.errors import (
    CommitConflictError,
    EbbtideError,
    ForeignLogError,
    RequestError,
    standing_for,
)
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import OWN, Step, commit, current_commits
from ebbtide.iceberg.files.added_files import (
    Appending,
    NewFile,
    Target,
    pack,
    write_new_file,
)
from ebbtide.iceberg.files.data_files import CutOut, in_segments
from ebbtide.iceberg.files.rows_beyond import RowsBeyond
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.replica_tables import check_is_no_replica
from ebbtide.iceberg.schema import BATCH_NAMES, create_topic
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    find_snapshot,
    load,
    own_spec_id,
    snapshot_after,
)
from ebbtide.iceberg.views import create_views
from ebbtide.log.live_offsets import Range, Ranges, Slice
from ebbtide.log.settings.names import TopicName
from ebbtide.log.settings.upstream import SOURCE, TABLE
from ebbtide.log.state.topic_state import (
    COPIED_SLICE,
    FILES_SLICE,
    REMOVING,
    SLICE,
    PartitionState,
    to_properties,
)
from ebbtide.log.timestamp_units import likely_unit, unit_in_words
from ebbtide.records.attributes import NO_TIMESTAMP
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import watched
from ebbtide.spark.tasks import errors_of_tasks, in_threads, map_segments
from ebbtide.stages.ingest_segments.event_time import failing_clearly
from ebbtide.stages.ingest_segments.segment_source import RecordsToRead
from ebbtide.stages.ingest_segments.source_log import SourceLog
from ebbtide.stages.ingest_segments.table_ends import Ends, Ingested, find_ends, read_ingested

log = logging.getLogger(__name__)

T = TypeVar("T")
NO_CHANGES: PropertyChanges = MappingProxyType({})
TOPIC_ID = "kafka.topic.id"
# In the summary of a snapshot of records, the slice that they are of.
SLICE_ID = "ebbtide.slice"
# Numbers of a partition that add up over slices.
SUMMED = ("records", "batches", "bytes", "timestamps_in_headers", "event_times_missing")


@dataclass(slots=True)
class IngestOutcome(JobOutcome):
    """A JobOutcome of one slice or several; a segment that two of them grew counts once."""

    segments: dict[int, set[int]] = field(default_factory=dict)  # base offsets, by partition


def new_topic(
    spark: SparkSession, name: TopicName, properties: dict[str, str], *, is_plan_only: bool
) -> Topic:
    """Return the topic with its tables made, or as it would be."""
    if is_plan_only:
        return Topic(name, properties, spark)
    commit(Step.CREATE_TOPIC, lambda: create_topic(spark, name, properties))
    return load(spark, name)


def check_takes_ingests(topic: Topic) -> None:
    """Raise RequestError for a replica, and for a topic that is copied from a table."""
    check_is_no_replica(topic, "ingest into")
    check_copies_no_table(topic)


def check_copies_no_table(topic: Topic) -> None:
    """Raise RequestError for a topic that is copied from a table."""
    upstream = topic.config.upstream
    if upstream is not None and upstream.kind == TABLE:
        raise RequestError(
            f"expected a topic that no table is copied to, found {topic.name}, whose {SOURCE} is "
            f"{upstream}: offsets belong to one writer; unset {SOURCE} with configure_topic if it "
            "is to be copied no more"
        )


def make_views(topic: Topic, *, is_plan_only: bool) -> None:
    """Make the views that a killed create may lack."""
    if not is_plan_only:
        create_views(topic.spark, topic.name)


def pinned(topic_ids: Collection[str]) -> dict[str, str]:
    """Return the property that holds the table to the one topic id; none where it is not known."""
    return {TOPIC_ID: next(iter(topic_ids))} if topic_ids else {}


def check_topic_id(topic: Topic, source_id: str | None, where: str) -> None:
    """Raise ForeignLogError where the source is another topic of the same name."""
    expected = topic.config.topic_id
    if expected is not None and source_id is not None and source_id != expected:
        raise ForeignLogError(
            f"expected topic id {expected} for {topic.name}, found {source_id} in "
            f"{where}: the topic was deleted and created anew; ingest it under "
            "another cluster name, or drop the table to begin anew"
        )


def appended_slice(topic: Topic, name: str) -> Slice | None:
    """Return the claim whose rows a killed ingest has appended without moving the state, if any."""
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
    """Return a slice that the run at work is about to take."""
    commits = current_commits()
    run_id = "" if commits is None else commits.run_id
    return Slice(dict(ranges), now, uuid.uuid4().hex, run_id, datetime.now(UTC))


def claim(
    topic: Topic, step: Step, name: str, piece: Slice, more: PropertyChanges = NO_CHANGES
) -> Topic:
    """Write down which offsets this run is about to take, in place of what another has claimed.

    CommitConflictError if another run has moved a log end offset since the slice was planned.
    """

    def claimed(current: Topic) -> PropertyChanges:
        for partition in piece.ranges:
            _check_end(current, partition, topic.partitions.get(partition))
        others = dict.fromkeys({FILES_SLICE, SLICE, COPIED_SLICE} - {name})
        return {**others, name: piece.to_property(), **more}

    return compare_and_set(topic, step, claimed)


def ended(current: Topic, name: str, piece: Slice) -> PropertyChanges:
    """Return the change that ends a claim; CommitConflictError if it is another run's by now."""
    if current.properties.get(name) != piece.to_property():
        raise CommitConflictError(
            f"expected {name} of {current.name} to be what this run has written there, found that "
            "another ingest has taken the work over; run the job again"
        )
    return {name: None}


def _check_end(
    current: Topic, partition: int, planned: PartitionState | None
) -> PartitionState | None:
    """Return the state; CommitConflictError if another ingest has moved its end since the plan."""
    found = current.partitions.get(partition)
    if (found and found.log_end_offset) != (planned and planned.log_end_offset):
        raise CommitConflictError(
            f"expected the log end offset of {current.name} partition {partition} to be as "
            "planned, found that another ingest moved it; run the job again"
        )
    return found


def drop_left_behind(topic: Topic, ends: Ends, now: datetime) -> Topic:
    """Remove the rows beyond the ends, which a killed ingest has left; it may still be at work.

    They may not be what the source holds by now. The topic afterwards.
    """
    if not ends.left_behind:
        return topic
    of_claim = {p: Range(ends.records.ends[p], ends.records.ends[p]) for p in ends.left_behind}
    piece = new_slice(of_claim, now)
    topic = claim(topic, Step.LEFT_CLAIMED, FILES_SLICE, piece, {REMOVING: "true"})
    left = {p: end for p, end in ends.records.ends.items() if p in ends.left_behind}
    ends.batches._replace(ends=left).drop(Step.LEFT_BATCHES)
    ends.records._replace(ends=left).drop(Step.LEFT_RECORDS)
    log.warning("removed what a killed ingest has left in partitions %s", sorted(left))
    return set_counted(topic, Step.LEFT_STATE, lambda now: ended(now, FILES_SLICE, piece))


def append_records(
    topic: Topic, rows: DataFrame, event_time: Column | None, beyond: RowsBeyond, slice_id: str
) -> int:
    """Append rows that come segment by segment; the id of the snapshot that holds them.

    CommitConflictError if another job has added some to `beyond` meanwhile.
    """
    if event_time is not None:  # else as the records say themselves
        rows = rows.withColumn("event_time", F.coalesce(event_time, F.col("event_time")))
    spark, table = topic.spark, topic.name.records_table
    writer = (
        beyond.guard_writer(rows.writeTo(table))
        .option(f"snapshot-property.{OWN}", "true")
        .option(f"snapshot-property.{SLICE_ID}", slice_id)
        .option("output-spec-id", str(own_spec_id(open_table(spark, table))))
        # No sort, and no writer is held open for another segment.
        .option("use-table-distribution-and-ordering", "false")
        .option("fanout-enabled", "false")
    )
    # There are no such rows to overwrite: it appends, and checks that nobody else has.
    append = partial(snapshot_after, spark, table, partial(writer.overwrite, beyond.condition))
    watching = watched(spark, log, "reads and writes records")
    with watching, errors_of_tasks(), failing_clearly(topic.config.event_time):
        return commit(Step.INGEST_RECORDS, append) or -1


class _FileToWrite(NamedTuple, Generic[T]):
    """A new data file, and where its rows come from."""

    target: Target
    source: T


def _write(read: Callable[[T], Iterable[pa.Table]], file: _FileToWrite[T]) -> NewFile | None:
    return write_new_file(file.target, read(file.source))


def append_read(
    topic: Topic,
    ranges: Sequence[RecordsToRead],
    read: Callable[[RecordsToRead], Iterable[pa.Table]],
    rows: int,
    beyond: RowsBeyond,
    slice_id: str,
) -> int:
    """Append what `read` gives of the ranges, a file each; the id of the snapshot.

    CommitConflictError if another job has added some to `beyond` meanwhile.
    """
    appending = Appending.of(topic.spark, topic.name.records_table, INGESTED_SCHEMA.names)
    targets = appending.targets((wanted.partition, wanted.segment) for wanted in ranges)
    work = [_FileToWrite(*each) for each in zip(targets, ranges, strict=True)]
    write = partial(_write, read)
    files = map_segments(topic.spark, write, work, rows, "reads and writes records of", pack)
    append = partial(appending.append, files, beyond, {SLICE_ID: slice_id})
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
    """Append the batches of the logs' records, which are in their table, and move the state.

    With it go the end of the claim `piece`, and `more`, by the topic and the changes so far. Return
    the topic then, and what the slice says of each partition. CommitConflictError if another job
    was faster.
    """
    with failing_clearly(topic.config.event_time):
        ingested = read_ingested(topic, logs, now_ms, event_time)
    outcome = outcome_of(topic, logs)
    outcome.snapshot_ids += _append_batches(topic, ingested, beyond)

    def moved(current: Topic) -> PropertyChanges:
        of_claim = {} if piece is None else ended(current, name, piece)
        changes = _state_changes(current, logs, ingested)
        return {**of_claim, **changes, **more(current, changes)}

    topic = set_counted(topic, Step.INGEST_STATE, moved)
    _add_ingested(outcome, ingested)
    return topic, outcome


def _append_batches(topic: Topic, ingested: Ingested, beyond: RowsBeyond) -> list[int]:
    """Append the rows of the batches; snapshot ids."""
    spark, name = topic.spark, topic.name
    if not ingested.batches.num_rows:
        return []
    by_segment = in_segments(ingested.batches.select(BATCH_NAMES), "base_offset")
    appending = Appending.of(spark, name.batches_table, BATCH_NAMES)
    targets = appending.targets(by_segment)
    work = [_FileToWrite(*each) for each in zip(targets, by_segment.values(), strict=True)]

    def rows_of(cut: CutOut) -> list[pa.Table]:
        return [cut.rows]

    files = in_threads(spark, partial(_write, rows_of), work, "writes headers of", pack)
    return [commit(Step.INGEST_BATCHES, partial(appending.append, files, beyond, {}))]


def _state_changes(
    current: Topic, logs: Mapping[int, SourceLog], ingested: Ingested
) -> dict[str, str | None]:
    """Return the state changes that the logs lead to.

    Raise CommitConflictError where the state moved since they were planned.
    """
    changes: dict[str, str | None] = {}
    for partition, log in logs.items():
        state = _check_end(current, partition, log.held.state)
        after = log.state_after(state, ingested.max_event_times_ms.get(partition, -1))
        if after is not None and after != state:
            changes |= to_properties(partition, after)
    return changes


def outcome_of(topic: Topic, logs: Mapping[int, SourceLog]) -> IngestOutcome:
    """What a slice says of each partition."""
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
    """Add to the outcome how many planned records the table now holds, and odd timestamps."""
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
    """Add what one slice did to what those before it did."""
    for partition, numbers in of_slice.partitions.items():
        before = done.partitions.get(partition, {})
        summed = {name: before.get(name, 0) + numbers[name] for name in SUMMED}
        grown = done.segments.setdefault(partition, set())
        grown |= of_slice.segments[partition]
        summed["segments"] = len(grown)
        gaps = before.get("accepted_gaps", []) + numbers["accepted_gaps"]
        done.partitions[partition] = {**numbers, **summed, "accepted_gaps": gaps}
    done.snapshot_ids += of_slice.snapshot_ids
    errors = [error for error in (done.error, of_slice.error) if isinstance(error, EbbtideError)]
    done.error = standing_for(errors)
