"""export_segments: write a topic's tables as a broker's log directory, in format v2 (KIP-534).

Every logical segment becomes a segment file, also the active segment. Every row of the batches
table becomes a batch with its own header, so Kafka reads delete horizons and markers too. Batches
of magic 0 and 1 are written as magic 2.

As in Kafka, a checkpoint of the log start offset hides all records below it. A batch entirely below
it has no records any more and is written as a header alone. A batch that straddles the log start
offset is written with its remaining records; the offsets in its header do not change. The same
holds for a batch from which retention removed single records.

Each task writes one segment file to a directory next to the target. One rename then makes that
directory the target. A killed export leaves no target, and the next run starts from the beginning.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import SparkSession

from ebbtide.columns.erased_keys import ErasedKeys
from ebbtide.errors import CommitConflictError, RequestError, SafetyError, UnavailableError
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import SegmentFiles, read_segment
from ebbtide.iceberg.erasures import shared_erased_keys
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic, current_snapshot, load
from ebbtide.jobs.unfinished import settle
from ebbtide.records.log_directory import PartitionDirectory, SegmentFile
from ebbtide.records.log_directory_writer import (
    RECORD_COLUMNS,
    Epochs,
    StoredBatch,
    WrittenBatch,
    begin_log_directory,
    check_target,
    epochs_from,
    finish_log_directory,
    next_epochs,
    open_segment,
    partition_name,
    read_export,
    segment_name,
    set_modified,
    to_stored_batches,
    unfinished,
    write_batches,
    write_beside_segments,
)
from ebbtide.runner.job import Job, PlanRequest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import PREFIX
from ebbtide.settings.names import TopicName
from ebbtide.spark.tasks import in_tasks
from ebbtide.state.topic_state import PartitionState
from ebbtide.stores.store import join
from ebbtide.text import size

# Segments per core that are written between two lines of progress in the log.
SEGMENTS_PER_CORE = 4


class StoredSegment(NamedTuple):
    """The files of one physical segment in both tables."""

    batches: SegmentFiles
    records: SegmentFiles | None  # None if the segment has no record any more


class SegmentToWrite(NamedTuple):
    """One logical segment: the batches whose base offsets are in [base_offset, end_offset)."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    modified_ms: int
    log_start_offset: int
    expired_end_offset: int
    max_message_bytes: int
    path: str
    stored: tuple[StoredSegment, ...]
    erased: Broadcast[ErasedKeys] | None = None  # keys of which no older record is written


class WrittenSegment(NamedTuple):
    """A written segment file and its contents in numbers."""

    partition: int
    file: SegmentFile
    batches: int
    records: int
    converted: int  # batches of magic 0 or 1 that were written as magic 2
    too_large: int  # batches larger than max.message.bytes
    largest_batch_bytes: int
    epochs: Epochs


def write_segments(
    spark: SparkSession, segments: Sequence[SegmentToWrite]
) -> Iterator[list[WrittenSegment]]:
    """Write the segments, SEGMENTS_PER_CORE per core at a time. Yield each such group, written."""
    at_once = max(1, spark.sparkContext.defaultParallelism) * SEGMENTS_PER_CORE
    for start in range(0, len(segments), at_once):
        yield in_tasks(spark, write_segment, segments[start : start + at_once], "writing")


def write_segment(segment: SegmentToWrite) -> WrittenSegment:
    """Write one segment file, in a task, and return its numbers."""
    batches = records = converted = too_large = size_bytes = largest_bytes = 0
    epochs: Epochs = ()
    with _writing(segment.path), open_segment(segment.path) as stream:
        for batch, record_count, data in _batches(segment):
            stream.write(data)
            batches += 1
            records += record_count
            converted += batch.magic < 2
            too_large += len(data) > segment.max_message_bytes
            size_bytes += len(data)
            largest_bytes = max(largest_bytes, len(data))
            epochs = next_epochs(epochs, batch.leader_epoch, batch.base_offset)
    set_modified(segment.path, segment.modified_ms)
    return WrittenSegment(
        segment.partition,
        SegmentFile(segment.path, segment.base_offset, size_bytes, segment.modified_ms),
        batches,
        records,
        converted,
        too_large,
        largest_bytes,
        epochs,
    )


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Raise RequestError if the file may not be written, UnavailableError for other I/O errors."""
    try:
        yield
    except PermissionError as failure:
        raise RequestError(
            f"{path}: expected permission to write the file, found: {failure}. Grant it to this "
            "user, or export to another target"
        ) from failure
    except OSError as failure:
        raise UnavailableError(
            f"{path}: expected a writable file and readable tables, found: {failure}. Run "
            "export_segments again once both are"
        ) from failure


def _batches(segment: SegmentToWrite) -> Iterator[WrittenBatch]:
    """Yield the segment's batches. The memory holds the rows of one physical segment at a time."""
    for batches, records in segment.stored:
        headers = read_segment(batches, StoredBatch._fields, "base_offset").table
        stored = to_stored_batches(_within(headers, "base_offset", segment))
        rows = _NO_RECORDS
        if records is not None:
            judged = () if segment.erased is None else ("append_time", "is_tombstone")
            rows = read_segment(records, (*RECORD_COLUMNS, *judged)).table
            rows = _within(rows, "batch", segment)
            if segment.erased is not None:
                rows = segment.erased.value.stripped(rows).select(RECORD_COLUMNS)
        is_visible = pc.greater_equal(rows["offset"], segment.log_start_offset)
        for written in write_batches(stored, rows.filter(is_visible)):
            _check_count(segment, written)
            yield written


_NO_RECORDS = pa.table({name: pa.array([], pa.int64()) for name in RECORD_COLUMNS})


def _within(rows: pa.Table, column: str, segment: SegmentToWrite) -> pa.Table:
    """Return the rows whose batch begins in the segment."""
    bases = rows[column].to_numpy()
    is_within = (bases >= segment.base_offset) & (bases < segment.end_offset)
    return rows if np.all(is_within) else rows.filter(pa.array(is_within))


def _check_count(segment: SegmentToWrite, written: WrittenBatch) -> None:
    """Raise SafetyError if the table has more or fewer records of a batch than its header counts.

    A batch that begins below the log start offset or `expired_end_offset` may have fewer.
    """
    batch, count, _ = written
    expected = 0 if batch.is_control else batch.record_count
    # DeleteRecords hides records below the first offset, retention removes some below the second.
    may_miss = batch.base_offset < max(segment.log_start_offset, segment.expired_end_offset)
    if count > expected or (count < expected and not may_miss):
        raise SafetyError(
            f"expected {expected} records in the batch [{batch.base_offset}, {batch.last_offset}] "
            f"of {partition_name(segment.topic, segment.partition)}, found {count}: another tool "
            "added or deleted rows. Nothing was exported. Roll the table back to a snapshot from "
            "before that"
        )


log = logging.getLogger(__name__)

TOPIC_ID = f"{PREFIX}topic.id"
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Export:
    """A request to export a topic to a target."""

    target: str
    run_id: str
    partitions: tuple[int, ...] = ()  # empty: all


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The segments to write, or none if the run had finished the export when it was killed."""

    topic: Topic
    export: Export
    states: Mapping[int, PartitionState]
    segments: Sequence[SegmentToWrite]
    written: Mapping[str, Numbers] | None = None  # of the finished export, by partition

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic={"target": self.export.target})
        for partition, state in self.states.items():
            outcome.partitions[partition] = {
                **self.topic.offsets_of(partition),
                "segments": len(state.segments),
                **(self.written or {}).get(str(partition), {}),
            }
        return outcome


def plan_export(topic: Topic, export: Export) -> ExportPlan:
    """Plan the export of the topic's current segments.

    Raise RequestError if the topic lacks a requested partition or the target is in use.
    """
    states = _states(topic, export)
    earlier_export = read_export(export.target)
    if earlier_export is not None:
        names = ("topic", "run_id")
        is_own = [earlier_export.get(each) for each in names] == [str(topic.name), export.run_id]
        if is_own and set(earlier_export.get("partitions", ())) == set(map(str, states)):
            return ExportPlan(topic, export, states, (), earlier_export["partitions"])
    check_target(export.target)
    stored = _stored_segments(topic, states)
    erased = shared_erased_keys(topic)
    segments = [
        segment._replace(erased=erased)
        for partition in states
        for segment in _segments(topic, export, partition, stored[partition])
    ]
    return ExportPlan(topic, export, states, segments)


def _states(topic: Topic, export: Export) -> dict[int, PartitionState]:
    states, wanted = topic.partitions, export.partitions
    unknown = sorted(set(wanted) - set(states))
    if unknown or not states:
        raise RequestError(
            f"expected partitions of {topic.name} among {sorted(states)}, found "
            f"{unknown or 'none, since nothing was ingested'}"
        )
    return {p: state for p, state in states.items() if not wanted or p in wanted}


def _stored_segments(
    topic: Topic, states: Mapping[int, PartitionState]
) -> dict[int, list[StoredSegment]]:
    """Return the physical segments of each partition.

    Raise CommitConflictError if another job changed the topic meanwhile.
    """
    ends = {partition: state.log_end_offset for partition, state in states.items()}
    found: list[list[SegmentFiles]] = []
    for table in (topic.name.records_table, topic.name.batches_table):
        snapshot = current_snapshot(topic.spark, table)
        found.append([] if snapshot is None else plan_segments(topic.spark, table, snapshot, ends))
    if load(topic.spark, topic.name).properties != topic.properties:
        raise CommitConflictError(
            f"expected no change of {topic.name} while its export is planned, found one by another "
            "job. Run export_segments again"
        )
    of_records = {(unit.partition, unit.segment): unit for unit in found[0]}
    stored = defaultdict(list)
    for unit in found[1]:
        records_of_unit = of_records.get((unit.partition, unit.segment))
        stored[unit.partition].append(StoredSegment(unit, records_of_unit))
    return stored


def _segments(
    topic: Topic, export: Export, partition: int, stored: Sequence[StoredSegment]
) -> list[SegmentToWrite]:
    """Return a partition's logical segments, each with the physical segments that may hold it."""
    state = topic.partitions[partition]
    uri = unfinished(export.target)
    directory = partition_name(topic.name.topic, partition)
    ends = [base for base, _ in state.segments[1:]] + [state.log_end_offset]
    stored_ends = [segment.batches.segment for segment in stored[1:]] + [state.log_end_offset]
    return [
        SegmentToWrite(
            topic=topic.name.topic,
            partition=partition,
            base_offset=base,
            end_offset=end,
            modified_ms=modified_ms,
            log_start_offset=state.log_start_offset,
            expired_end_offset=state.expired_end_offset,
            max_message_bytes=topic.config.max_message_bytes,
            path=join(uri, directory, segment_name(base)),
            stored=tuple(
                segment
                for segment, stored_end in zip(stored, stored_ends, strict=False)  # one end if none
                if segment.batches.segment < end and stored_end > base
            ),
        )
        for (base, modified_ms), end in zip(state.segments, ends, strict=True)
    ]


def execute_export(plan: ExportPlan) -> JobOutcome:
    """Write the segment files, the checkpoints and the manifest, and rename their directory.

    Until the rename, the directory is next to the target.
    """
    topic, target = plan.topic, plan.export.target
    if plan.written is not None:
        log.info("%s: this run has exported everything already", target)
        return plan.outcome()
    partitions = [(topic.name.topic, partition) for partition in plan.states]
    uri = begin_log_directory(target, partitions)
    written = _write(plan)
    outcome = plan.outcome()
    for partition, numbers in outcome.partitions.items():
        numbers |= _numbers(written[partition])
    directories = [_directory(plan, partition, parts) for partition, parts in written.items()]
    epochs = {
        partition: _epochs(parts, plan.states[partition].log_start_offset)
        for partition, parts in written.items()
    }
    manifest = _manifest(plan, directories, outcome)
    commit(
        Step.EXPORT_CHECKPOINTS,
        lambda: write_beside_segments(uri, directories, epochs, manifest),
    )
    commit(Step.EXPORT_TARGET, lambda: finish_log_directory(target, directories))
    return outcome


def _write(plan: ExportPlan) -> dict[int, list[WrittenSegment]]:
    """Write the segments and return them by partition."""
    written: dict[int, list[WrittenSegment]] = {partition: [] for partition in plan.states}
    count = size_bytes = 0
    for some in write_segments(plan.topic.spark, plan.segments):
        for segment in some:
            written[segment.partition].append(segment)
            size_bytes += segment.file.size_bytes
        count += len(some)
        log.info("wrote %d of %d segments, %s", count, len(plan.segments), size(size_bytes))
    return written


def _numbers(written: Sequence[WrittenSegment]) -> Numbers:
    return {
        "batches": sum(segment.batches for segment in written),
        "records": sum(segment.records for segment in written),
        "bytes": sum(segment.file.size_bytes for segment in written),
        "converted_batches": sum(segment.converted for segment in written),
        "batches_above_max_message_bytes": sum(segment.too_large for segment in written),
        "largest_batch_bytes": max(segment.largest_batch_bytes for segment in written),
    }


def _directory(
    plan: ExportPlan, partition: int, written: Sequence[WrittenSegment]
) -> PartitionDirectory:
    topic, state = plan.topic, plan.states[partition]
    name = partition_name(topic.name.topic, partition)
    return PartitionDirectory(
        topic=topic.name.topic,
        partition=partition,
        path=join(unfinished(plan.export.target), name),
        topic_id=topic.config.topic_id,
        high_watermark=state.log_end_offset,
        log_start_offset=state.log_start_offset,
        segments=tuple(segment.file for segment in written),
    )


def _epochs(written: Sequence[WrittenSegment], log_start_offset: int) -> Epochs:
    epochs: Epochs = ()
    for segment in written:
        for epoch, start in segment.epochs:
            epochs = next_epochs(epochs, epoch, start)
    return epochs_from(epochs, log_start_offset)


def _manifest(
    plan: ExportPlan, directories: Sequence[PartitionDirectory], outcome: JobOutcome
) -> dict[str, Any]:
    topic = plan.topic
    config = {
        name.removeprefix(PREFIX): value
        for name, value in sorted(topic.properties.items())
        if name.startswith(PREFIX) and name != TOPIC_ID
    }
    return {
        "last_append_ms": max(
            segment.modified_ms for each in directories for segment in each.segments
        ),
        "topics": {topic.name.topic: {"config": config}},
        "export": {
            "topic": str(topic.name),
            "run_id": plan.export.run_id,
            "partitions": {str(p): numbers for p, numbers in outcome.partitions.items()},
        },
    }


def _check(args: Namespace) -> None:
    if (named := len(args.topic)) > 1:
        raise RequestError(f"expected one --topic, found {named}. Export each to its own target")


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ExportPlan:
    args = request.given
    topic = settle(load(spark, name), "export_segments", is_plan_only=args.plan_only)
    return plan_export(topic, Export(args.target, args.run_id, tuple(args.partition)))


EXPORT_SEGMENTS = Job("export_segments", _plan, execute_export, check=_check)
