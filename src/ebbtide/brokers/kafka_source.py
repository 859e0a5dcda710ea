"""Spark's Kafka source: ranges of a live topic's offsets as rows of a records table."""

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
# Spark's times are microseconds of 64 bits.
_TIME = re.compile(r"ArithmeticException: long overflow\s.*KafkaRecordToRowConverter", re.DOTALL)
# Most rows and bytes of an Arrow batch; the bytes if each record is as large as allowed.
MOST_ROWS, MOST_BYTES = 10_000, 256 * 1024**2


def source_frame(
    spark: SparkSession,
    options: Mapping[str, str],
    topic: str,
    ranges: Ranges,
    isolation: Isolation,
) -> DataFrame:
    """Return the records of these offsets, a Spark task a partition, in offset order."""
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
    """Return the source's records, cut into batches and into segments that go on from `active`.

    A task has whole partitions, one after the other, each in offset order. Of records with the same
    offset the first one stays.
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
    """Raise the source's Java client's errors about its brokers as errors of ours."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as failure:
        text = str(failure)
        if _TIME.search(text):
            raise NotCoveredError(
                f"expected times up to the year 294247 in {topic}, which Spark's Kafka source can "
                "read, found a record with another; ingest_segments takes the topic with any time "
                "from a copy of a broker's log directory"
            ) from failure
        kafka_error = _KAFKA_ERROR.search(text)
        if kafka_error is None and not _LOST.search(text):
            raise
        cause = kafka_error.group(0) if kafka_error else "that offsets are gone"
        message = (
            f"expected Spark's Kafka source to read {topic} from the brokers of connection "
            f"{connection!r}, found {cause}"
        )
        if kafka_error and _DENIED.search(kafka_error[1]):
            raise ConfigurationError(f"{message}; check that connection's user") from failure
        raise UnavailableError(f"{message}; run it again once they can be reached") from failure
