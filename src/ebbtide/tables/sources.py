"""Segment files read in parallel by Spark: first every batch header, checked, then the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebbtide.errors import EbbtideError
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.batch import BATCH_SCHEMA, RECORD_SCHEMA
from ebbtide.records.segment import read_records, require_whole, walk_segment

_TIME = pa.timestamp("us", tz="UTC")
_WALK_EXTRA = [("partition", pa.int32()), ("path", pa.string()), ("segment", pa.int64())]
# One row a batch; a file that is not what it should be is one row with an error instead, and a
# torn end one row with its position.
WALK_SCHEMA = pa.schema(
    [*_WALK_EXTRA, *BATCH_SCHEMA, ("torn", pa.string()), ("error", pa.string())]
)
INGESTED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("segment", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", _TIME),
        ("event_time", _TIME),
        ("append_time", _TIME),
        *(RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "attributes")),
        ("is_tombstone", pa.bool_()),
        ("tombstone_by", pa.string()),
        ("size_bytes", pa.int32()),
    ]
)


class FileToWalk(NamedTuple):
    """A segment file whose batches are wanted; only the log's last may end in a torn batch."""

    partition: int
    path: str
    base_offset: int
    is_last: bool


class RecordsToRead(NamedTuple):
    """The byte range of a segment file whose records are wanted, from `first_offset` on."""

    partition: int
    path: str
    from_position: int
    to_position: int
    first_offset: int
    segment: int
    log_append_batches: list[int]  # base offsets of the batches that the broker's clock stamped


def walk_files(spark: SparkSession, files: Sequence[FileToWalk], max_batch_bytes: int) -> pa.Table:
    """Every batch of the files, checked, as WALK_SCHEMA in file and offset order."""

    def walk(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in _values(rows):
            yield from _walk_file(FileToWalk(**row), max_batch_bytes)

    return _run(spark, files, walk, WALK_SCHEMA).toArrow()


def _walk_file(file: FileToWalk, max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    try:
        found = walk_segment(file.path, max_batch_bytes=max_batch_bytes)
        if not file.is_last:
            require_whole(found, file.path)
    except EbbtideError as error:
        yield _walk_rows(file, BATCH_SCHEMA.empty_table().to_batches(), 1, error=str(error))
        return
    if found.batches.num_rows:
        yield _walk_rows(file, [found.batches], found.batches.num_rows)
    if found.torn is not None:
        at, expected, present = found.torn
        torn = f"{file.path}: a torn batch at position {at}, {present} of {expected} bytes"
        yield _walk_rows(file, [], 1, torn=torn)


def _walk_rows(
    file: FileToWalk,
    batches: Sequence[pa.RecordBatch],
    rows: int,
    *,
    torn: str | None = None,
    error: str | None = None,
) -> pa.RecordBatch:
    fixed = {
        "partition": file.partition,
        "path": file.path,
        "segment": file.base_offset,
        "torn": torn,
        "error": error,
    }
    header = batches[0] if batches and batches[0].num_rows else None
    columns = [
        header.column(field.name)
        if header is not None and field.name in BATCH_SCHEMA.names
        else pa.array([fixed.get(field.name)] * rows, field.type)
        for field in WALK_SCHEMA
    ]
    return pa.record_batch(columns, schema=WALK_SCHEMA)


def records_frame(
    spark: SparkSession, ranges: Sequence[RecordsToRead], append_time: pa.Scalar
) -> DataFrame:
    """The records of the byte ranges, as rows of a records table."""

    def read(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in _values(rows):
            wanted = RecordsToRead(**row)
            for chunk in read_records(wanted.path, wanted.from_position, wanted.to_position):
                yield _to_rows(wanted, chunk, append_time)

    return _run(spark, ranges, read, INGESTED_SCHEMA)


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
    """Base offsets of the batches whose records carry the broker's clock."""
    flags = pc.bit_wise_and(header.column("attributes"), LOG_APPEND_TIME)
    stamped: list[int] = header.filter(pc.not_equal(flags, 0)).column("base_offset").to_pylist()
    return stamped


def _values(rows: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in rows:
        yield from batch.to_pylist()


def _run(
    spark: SparkSession,
    tasks: Sequence[NamedTuple],
    function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """One Spark task for each of `tasks`: a file is the unit that is read in order."""
    from pyspark.sql.pandas.types import from_arrow_schema

    slices = spark.sparkContext.parallelize(list(tasks), max(len(tasks), 1))
    output: StructType = from_arrow_schema(schema)
    return spark.createDataFrame(slices, _task_schema(tasks)).mapInArrow(function, output)


def _task_schema(tasks: Sequence[NamedTuple]) -> str:
    types = {int: "bigint", str: "string", bool: "boolean", list: "array<bigint>"}
    first = tasks[0]
    return ", ".join(
        f"`{name}` {types[type(value)]}" for name, value in zip(first._fields, first, strict=True)
    )
