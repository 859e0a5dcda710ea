"""Write segment files in parallel by Spark, one logical segment a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.errors import RequestError, SafetyError, UnavailableError
from ebbtide.iceberg.files.data_files import SegmentFiles, read_segment
from ebbtide.records.files.log_directory import SegmentFile
from ebbtide.records.files.log_directory_writer import (
    Epochs,
    next_epochs,
    open_segment,
    partition_name,
    set_modified,
)
from ebbtide.records.files.segment_writer import (
    RECORD_COLUMNS,
    StoredBatch,
    WrittenBatch,
    to_stored_batches,
    write_batches,
)
from ebbtide.spark.tasks import in_tasks

# Segments that are written between two lines of progress, for each core.
SEGMENTS_PER_CORE = 4


class StoredSegment(NamedTuple):
    """The files of a physical segment's batch rows and of its records; None where none is left."""

    batches: SegmentFiles
    records: SegmentFiles | None


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


class WrittenSegment(NamedTuple):
    """A written segment file and its contents in numbers."""

    partition: int
    file: SegmentFile
    batches: int
    records: int
    converted: int  # of magic 0 or 1 before
    too_large: int  # larger than max.message.bytes
    largest_batch_bytes: int
    epochs: Epochs


def write_segments(
    spark: SparkSession, segments: Sequence[SegmentToWrite]
) -> Iterator[list[WrittenSegment]]:
    """Write the segments, some at a time; yield what was written."""
    at_once = max(1, spark.sparkContext.defaultParallelism) * SEGMENTS_PER_CORE
    for start in range(0, len(segments), at_once):
        yield in_tasks(spark, write_segment, segments[start : start + at_once], "writes")


def write_segment(segment: SegmentToWrite) -> WrittenSegment:
    """Write one segment file, in a task; return what it holds."""
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
    """Yield a full or failing disk is no fault of the tables."""
    try:
        yield
    except PermissionError as failure:
        raise RequestError(
            f"{path}: expected a file that this user may write, found: {failure}; grant it, or "
            "export to another place"
        ) from failure
    except OSError as failure:
        raise UnavailableError(
            f"{path}: expected a file that can be written and tables that can be read, found: "
            f"{failure}; run again when they can"
        ) from failure


def _batches(segment: SegmentToWrite) -> Iterator[WrittenBatch]:
    """Yield the segment's batches; the rows of one physical segment are held at a time."""
    for batches, records in segment.stored:
        headers = read_segment(batches, StoredBatch._fields, "base_offset").table
        stored = to_stored_batches(_within(headers, "base_offset", segment))
        rows = _NO_RECORDS
        if records is not None:
            rows = _within(read_segment(records, RECORD_COLUMNS).table, "batch", segment)
        is_visible = pc.greater_equal(rows["offset"], segment.log_start_offset)
        for written in write_batches(stored, rows.filter(is_visible)):
            _check_count(segment, written)
            yield written


_NO_RECORDS = pa.table({name: pa.array([], pa.int64()) for name in RECORD_COLUMNS})


def _within(rows: pa.Table, column: str, segment: SegmentToWrite) -> pa.Table:
    """Return the rows of the segment's batches."""
    bases = rows[column].to_numpy()
    is_within = (bases >= segment.base_offset) & (bases < segment.end_offset)
    return rows if np.all(is_within) else rows.filter(pa.array(is_within))


def _check_count(segment: SegmentToWrite, written: WrittenBatch) -> None:
    """Raise SafetyError where the records table has not all that a visible batch counts."""
    batch, count, _ = written
    expected = 0 if batch.is_control else batch.record_count
    # DeleteRecords hides some below the one, retention may have deleted some below the other.
    may_miss = batch.base_offset < max(segment.log_start_offset, segment.expired_end_offset)
    if count > expected or (count < expected and not may_miss):
        raise SafetyError(
            f"expected {expected} records of the batch [{batch.base_offset}, {batch.last_offset}] "
            f"in {partition_name(segment.topic, segment.partition)}, found {count}: rows were "
            "added or deleted by another than these jobs; roll the table back to a snapshot "
            "before that"
        )
