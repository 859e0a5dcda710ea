"""Tables as other writers make them, with little logs in them, and the jobs on such tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.removal import DELETE_MODE
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.jobs.adopt_table import execute_adoption, plan_adoption
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.layouts.layout import Choices
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName

# Every closed segment is cleaned, and each look closes one.
COMPACTED = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.segment.ms": "1",
    "kafka.delete.retention.ms": "1000",
}
SPARK_COLUMNS = (
    "key binary, value binary, topic string, `partition` int, offset bigint, "
    "timestamp timestamp, timestampType int"
)


class Record(NamedTuple):
    """A record: a value of None is a tombstone."""

    offset: int
    key: str | None
    value: str | None = "v"
    partition: int = 0
    timestamp_ms: int = 1_000


def spark_table(
    spark: SparkSession, name: str, version: int = 3, more: str = "", columns: str = SPARK_COLUMNS
) -> None:
    """Create a table, with the columns of Spark's Kafka source unless told others."""
    table = TopicName.parse(name).records_table
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{name.split('.')[0]}`")
    spark.sql(
        f"CREATE TABLE {table} ({columns}) USING iceberg {more} "
        f"TBLPROPERTIES ('format-version'='{version}')"
    )


def source_frame(spark: SparkSession, records: Iterable[Record], topic: str = "t") -> DataFrame:
    """Records as Spark's Kafka source has them."""
    rows = list(records)
    of_columns = {
        "key": pa.array([None if r.key is None else r.key.encode() for r in rows], pa.binary()),
        "value": pa.array(
            [None if r.value is None else r.value.encode() for r in rows], pa.binary()
        ),
        "topic": pa.array([topic] * len(rows), pa.string()),
        "partition": pa.array([r.partition for r in rows], pa.int32()),
        "offset": pa.array([r.offset for r in rows], pa.int64()),
        "timestamp": pa.array([r.timestamp_ms * 1000 for r in rows], pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * len(rows), pa.int32()),
    }
    return spark.createDataFrame(pa.table(of_columns))


def append(spark: SparkSession, name: str, records: Iterable[Record], topic: str = "t") -> None:
    """Append records as Spark's Kafka source has them, in one file."""
    rows = source_frame(spark, records, topic).coalesce(1)
    rows.writeTo(TopicName.parse(name).records_table).append()


def adopt(
    spark: SparkSession,
    name: str,
    settings: dict[str, str] | None = None,
    choices: Choices | None = None,
    now_ms: int = 0,
) -> JobOutcome:
    of_topic = COMPACTED if settings is None else settings
    chosen = choices or Choices()
    plan = plan_adoption(spark, TopicName.parse(name), chosen, of_topic, now_ms)
    return execute_adoption(plan)


def delete_places(spark: SparkSession, name: str, offsets: Iterable[int]) -> None:
    """Delete rows merge-on-read: position deletes in format 2, vectors in format 3."""
    table = TopicName.parse(name).records_table
    before = java_table(spark, table).properties().get(DELETE_MODE)
    set_properties(spark, table, {DELETE_MODE: "merge-on-read"})
    listed = ", ".join(map(str, offsets))
    spark.sql(f"DELETE FROM {table} WHERE offset IN ({listed})")
    set_properties(spark, table, {DELETE_MODE: before})


def rewrite(spark: SparkSession, name: str) -> None:
    """Write all files anew, as another tool's maintenance does."""
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{name}', "
        "options => map('rewrite-all', 'true'))"
    )


def clean(spark: SparkSession, name: str, now_ms: int) -> JobOutcome:
    return execute_clean(plan_clean(load(spark, TopicName.parse(name)), now_ms))


def live(spark: SparkSession, name: str, offset: str = "offset") -> list[int]:
    """The offsets of the live rows, ascending, with repeats."""
    table = TopicName.parse(name).records_table
    rows = spark.table(table).select(F.col(offset).alias("offset")).orderBy("offset")
    return [int(row["offset"]) for row in rows.collect() if row["offset"] is not None]
