"""Read segment files in parallel by Spark: first every batch header, checked, then the records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from heapq import heapify, heapreplace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from ebbtide.columns.ingested_records import INGESTED_SCHEMA
from ebbtide.errors import CorruptSegmentError, SourceError, UnavailableError
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.batch import BATCH_SCHEMA
from ebbtide.records.files.kept_batches import WantedBatches
from ebbtide.records.files.record_reader import read_records
from ebbtide.records.files.segment_reader import (
    EVERY_BATCH,
    BatchLimits,
    SegmentWalk,
    require_whole,
    walk_segment,
)
from ebbtide.spark.tasks import map_segments, told_as_text
from ebbtide.stores.store import Store

log = logging.getLogger(__name__)

MIB = 1024 * 1024
# A Spark task costs 0.1 s or more, so a smaller one is not worth it; a larger one risks too much.
LEAST_TASK_BYTES = 1 * MIB
MOST_TASK_BYTES = 256 * MIB
TASKS_PER_CORE = 2
# Only a file's size is known beforehand; its rows are estimated with records of this size.
RECORD_BYTES = 100

_PATH = pa.dictionary(pa.int32(), pa.string())  # said once for all batches of a file
_WALK_EXTRA = [("partition", pa.int32()), ("path", _PATH), ("segment", pa.int64())]
# One row a batch. A malformed file is one row with an error and its class instead, and a torn
# end is one row with its position.
WALK_SCHEMA = pa.schema(
    [
        *_WALK_EXTRA,
        *BATCH_SCHEMA,
        *((name, pa.string()) for name in ("torn", "error", "error_class")),
    ]
)


class BatchAt(NamedTuple):
    """A batch in a segment file."""

    position: int
    base_offset: int


class FileToWalk(NamedTuple):
    """A segment file whose batches are wanted; only the log's last may end in a torn batch."""

    partition: int
    path: str
    base_offset: int
    size_bytes: int
    is_last: bool
    wanted: WantedBatches = EVERY_BATCH
    taken: BatchAt | None = None  # the last batch that this run has taken of the file

    @property
    def unread_bytes(self) -> int:
        """The bytes behind what this run has taken."""
        return self.size_bytes - (self.taken.position if self.taken else 0)


class WalkedFile(NamedTuple):
    """A file's wanted batches as WALK_SCHEMA; an error counts as one batch."""

    rows: pa.Table
    counted: int
    is_cut: bool


class RecordsToRead(NamedTuple):
    """The byte range of a segment file whose records are wanted, from `first_offset` on."""

    partition: int
    path: str
    from_position: int
    to_position: int
    first_offset: int
    segment: int
    log_append_batches: list[int]  # base offsets of the batches that the broker's clock stamped


def walk_files(
    spark: SparkSession, limits: BatchLimits, store: Store, files: Sequence[FileToWalk]
) -> list[WalkedFile]:
    """Read and check the files' batches; UnavailableError where a file has gone."""
    walk = partial(walk_file, limits, store)
    rows = sum(file.unread_bytes for file in files) // RECORD_BYTES
    return map_segments(spark, walk, files, rows, "walks")


def walk_file(limits: BatchLimits, store: Store, file: FileToWalk) -> WalkedFile:
    """Return the batches of one file, or one row with its error; runs in a task."""
    try:
        with _reading(file.path):
            walked = _walk(limits, store, file)
        if not file.is_last:
            require_whole(walked, file.path)
    except SourceError as error:
        bad = _walk_rows(file, [], 1, error=error)
        return WalkedFile(pa.Table.from_batches([bad]), 1, is_cut=False)
    rows = []
    if walked.batches.num_rows:
        rows.append(_walk_rows(file, [walked.batches], walked.batches.num_rows))
    if walked.torn is not None and not walked.is_cut:
        at, expected, present = walked.torn
        torn = f"{file.path}: a torn batch at position {at}, {present} of {expected} bytes"
        rows.append(_walk_rows(file, [], 1, torn=torn))
    return WalkedFile(pa.Table.from_batches(rows, WALK_SCHEMA), walked.counted, walked.is_cut)


def _walk(limits: BatchLimits, store: Store, file: FileToWalk) -> SegmentWalk:
    """Go on at the last batch taken; walk the whole file where another one lies there by now."""
    walk = partial(
        walk_segment,
        file.path,
        max_batch_bytes=limits.file_bytes,
        max_decompressed_bytes=limits.decompressed_bytes,
        wanted=file.wanted,
        store=store,
    )
    if file.taken is not None:
        with suppress(CorruptSegmentError):
            walked = walk(from_position=file.taken.position)
            if walked.batches.column("base_offset")[:1].to_pylist() == [file.taken.base_offset]:
                return walked
    return walk()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise SourceError or UnavailableError where a disk or store fails: no fault of the bytes."""
    try:
        yield
    except PermissionError as failure:
        raise SourceError(
            f"{path}: expected a file that this user may read, found: {failure}; grant it, or "
            "leave its topic out",
            path,
        ) from failure
    except OSError as failure:
        raise UnavailableError(
            f"{path}: expected a file that can be read, found: {failure}; run again when it can"
        ) from failure


def _walk_rows(
    file: FileToWalk,
    batches: Sequence[pa.RecordBatch],
    rows: int,
    *,
    torn: str | None = None,
    error: SourceError | None = None,
) -> pa.RecordBatch:
    fixed = {
        "partition": file.partition,
        "path": file.path,
        "segment": file.base_offset,
        "torn": torn,
        "error": None if error is None else str(error),
        "error_class": None if error is None else type(error).__name__,
    }
    header = batches[0] if batches and batches[0].num_rows else None
    columns = [
        header.column(field.name)
        if header is not None and field.name in BATCH_SCHEMA.names
        else _repeated(fixed.get(field.name), rows, field.type)
        for field in WALK_SCHEMA
    ]
    return pa.record_batch(columns, schema=WALK_SCHEMA)


def _repeated(value: object, rows: int, of_type: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(rows, of_type)
    if of_type == _PATH:
        codes = pa.repeat(pa.scalar(0, of_type.index_type), rows)
        return pa.DictionaryArray.from_arrays(codes, pa.array([value], of_type.value_type))
    return pa.repeat(pa.scalar(value, of_type), rows)


def records_of(
    append_time: pa.Scalar, limits: BatchLimits, store: Store, wanted: RecordsToRead
) -> Iterator[pa.Table]:
    """Yield the records of a byte range as chunks of records-table rows; runs in a task."""
    with _reading(wanted.path):
        for chunk in read_records(
            wanted.path,
            wanted.from_position,
            wanted.to_position,
            max_decompressed_bytes=limits.decompressed_bytes,
            store=store,
        ):
            yield pa.Table.from_batches([_to_rows(wanted, chunk, append_time)])


def records_frame(
    spark: SparkSession,
    ranges: Sequence[RecordsToRead],
    read: Callable[[RecordsToRead], Iterator[pa.Table]],
) -> DataFrame:
    """Return the records of the byte ranges, as rows of a records table.

    A task reads several ranges, and its rows come segment by segment, so that one data file is open
    at a time.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    sizes = [wanted.to_position - wanted.from_position for wanted in ranges]
    groups = [
        [ranges[i] for i in group]
        for group in spread(sizes, task_count(sizes, spark.sparkContext.defaultParallelism))
    ]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_as_text():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    for wanted in groups[number]:
                        for rows in read(wanted):
                            yield from rows.to_batches()

    numbers = spark.range(0, len(groups), 1, len(groups))
    return numbers.mapInArrow(run, from_arrow_schema(INGESTED_SCHEMA))  # type: ignore[arg-type]


def _to_rows(
    wanted: RecordsToRead, chunk: pa.RecordBatch, append_time: pa.Scalar
) -> pa.RecordBatch:
    chunk = chunk.filter(pc.greater_equal(chunk.column("offset"), wanted.first_offset))
    rows = chunk.num_rows
    timestamp = chunk.column("timestamp")
    appended = pa.repeat(append_time, rows)
    if wanted.log_append_batches:
        bases = pa.array(wanted.log_append_batches, pa.int64())
        is_stamped = pc.is_in(chunk.column("batch"), value_set=bases)
        appended = pc.if_else(is_stamped, pc.coalesce(timestamp, appended), appended)
    derived = {
        "partition": pa.repeat(pa.scalar(wanted.partition, pa.int32()), rows),
        "segment": pa.repeat(pa.scalar(wanted.segment, pa.int64()), rows),
        "event_time": pc.coalesce(chunk.column("producer_timestamp"), timestamp),
        "append_time": appended,
        "is_tombstone": pa.repeat(pa.scalar(False), rows),
        "tombstone_by": pa.nulls(rows, pa.string()),
    }
    columns = [
        derived[name] if name in derived else chunk.column(name) for name in INGESTED_SCHEMA.names
    ]
    return pa.record_batch(columns, schema=INGESTED_SCHEMA)


def log_append_batches(header: pa.Table) -> list[int]:
    """Return base offsets of the batches whose records carry the broker's clock."""
    flags = pc.bit_wise_and(header.column("attributes"), LOG_APPEND_TIME)
    stamped: list[int] = header.filter(pc.not_equal(flags, 0)).column("base_offset").to_pylist()
    return stamped


def task_count(sizes: Sequence[int], cores: int) -> int:
    """Return how many tasks read files of these sizes, in bytes."""
    total = sum(sizes)
    worthwhile = total // LEAST_TASK_BYTES + 1
    at_most = max(cores * TASKS_PER_CORE, total // MOST_TASK_BYTES)
    return min(len(sizes), worthwhile, at_most)


def spread(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Spread the indices of `sizes` over groups of about equal sums, ascending in each.

    No group is empty.
    """
    loads = [(0, 0, group) for group in range(groups)]  # bytes, files, group
    heapify(loads)
    spread: list[list[int]] = [[] for _ in range(groups)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, count, group = loads[0]
        spread[group].append(index)
        heapreplace(loads, (load + sizes[index], count + 1, group))
    return [sorted(group) for group in spread]
