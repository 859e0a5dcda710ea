"""Spark's Kafka source: ranges of a live topic's offsets, as rows of a records table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ebbtide.columns.headers import slices_by_value
from ebbtide.columns.live_records import INGESTED_SCHEMA, SOURCE_COLUMNS, ActiveSegment, Appender
from ebbtide.errors import ConfigurationError, NotCoveredError, UnavailableError
from ebbtide.kafka.live_offsets import Isolation, Ranges
from ebbtide.settings.config import TopicConfig

_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors|config)\.(\w+)(?:: (.*))?")
_DENIED = re.compile(r"Authorization|Authentication|ConfigException|InvalidTopic|Ssl")
_LOST = re.compile(r"KafkaIllegalStateException|OffsetOutOfRange|UnknownTopicOrPartition")
# Spark's timestamps are 64-bit microseconds.
_TIME = re.compile(r"ArithmeticException: long overflow\s.*KafkaRecordToRowConverter", re.DOTALL)
# Limits of an Arrow batch, in rows and in bytes if each record has the largest size allowed.
MOST_ROWS, MOST_BYTES = 10_000, 256 * 1024**2


def source_frame(
    spark: SparkSession,
    options: Mapping[str, str],
    topic: str,
    ranges: Ranges,
    isolation: Isolation,
) -> DataFrame:
    """Return the records of these offsets in offset order, with one Spark task per partition."""
    taken = {str(partition): offsets for partition, offsets in ranges.items()}
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("kafka.isolation.level", isolation)
        .option("assign", json.dumps({topic: sorted(ranges)}))
        .option("startingOffsets", json.dumps({topic: {p: r.start for p, r in taken.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: r.end for p, r in taken.items()}}))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
        .select(*SOURCE_COLUMNS)
    )


def live_records(
    source: DataFrame, active: Mapping[int, ActiveSegment], config: TopicConfig, now: datetime
) -> DataFrame:
    """Return the source's records, cut into batches, and into segments that continue `active`.

    A task reads whole partitions, one after the other, each in offset order. Of several records
    with the same offset, the first is used.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = max(1, min(MOST_ROWS, MOST_BYTES // max(1, config.max_message_bytes)))
    source.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at: int | None = None
        appender: Appender | None = None
        for partition, rows in _by_partition(batches):
            if partition != at:
                if appender is not None:
                    yield from _conform(appender.append(rows.slice(0, 0), is_last=True))
                at, appender = partition, Appender(active[partition], config, now)
            assert appender is not None
            empty = rows.slice(0, 0)
            yield from _conform(appender.append(rows))
        if appender is not None:
            yield from _conform(appender.append(empty, is_last=True))

    schema = from_arrow_schema(INGESTED_SCHEMA)
    return source.mapInArrow(append, schema)  # type: ignore[arg-type]


def _by_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    for batch in batches:
        yield from slices_by_value(pa.Table.from_batches([batch]), "partition")


def _conform(table: pa.Table) -> list[pa.RecordBatch]:
    rows: list[pa.RecordBatch] = (
        table.select(INGESTED_SCHEMA.names).cast(INGESTED_SCHEMA).to_batches()
    )
    return rows


@contextmanager
def reading(topic: str, connection: str) -> Iterator[None]:
    """Convert errors of the source's Java client about its brokers to ebbtide's errors."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as failure:
        text = str(failure)
        if _TIME.search(text):
            raise NotCoveredError(
                f"expected record times up to the year 294247 in {topic}, found a later time, "
                "which Spark's Kafka source cannot read. Copy a broker's log directory and run "
                "ingest_segments, which reads any time"
            ) from failure
        kafka_error = _KAFKA_ERROR.search(text)
        if kafka_error is None and not _LOST.search(text):
            raise
        cause = (
            kafka_error.group(0) if kafka_error else "that the brokers have removed some of them"
        )
        message = (
            f"expected the offsets of {topic} from the brokers of connection {connection!r}, "
            f"found {cause}"
        )
        if kafka_error and _DENIED.search(kafka_error[1]):
            raise ConfigurationError(f"{message}. Check that connection's user") from failure
        raise UnavailableError(
            f"{message}. Run it again once the brokers can be reached"
        ) from failure
