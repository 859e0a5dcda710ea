"""Tables in the layout of each profile, filled with the records of a Spark source's table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.layouts.layout import Choices
from ebbtide.settings.names import TopicName
from tests.tables.adopted import SPARK_COLUMNS, Record, source_frame, spark_table

_KEY = "cast(key AS string)"
_KAFKA_METADATA = (
    "named_struct('topic', topic, 'partition', `partition`, 'offset', `offset`, "
    "'timestamp', unix_millis(timestamp)) AS _kafka_metadata"
)
_METADATA_COLUMN = (
    "_kafka_metadata struct<topic: string, `partition`: int, `offset`: bigint, timestamp: bigint>"
)


class TableLayout(NamedTuple):
    """How a writer's table is created, and what of Spark's source goes into which column.

    `tombstone` is the condition of one in SQL; empty where the writer leaves such records out.
    """

    name: str
    columns: str
    expressions: tuple[str, ...]
    partition: str
    offset: str
    tombstone: str
    choices: Choices = Choices()
    partitioned_by: str = ""

    def create(self, spark: SparkSession, name: str, version: int) -> None:
        """Create an empty table."""
        partitioned = f"PARTITIONED BY ({self.partitioned_by})" if self.partitioned_by else ""
        spark_table(spark, name, version, partitioned, self.columns)

    def append(self, spark: SparkSession, name: str, records: Iterable[Record]) -> None:
        """Append records in one file of each table partition."""
        written = [record for record in records if self.tombstone or record.value is not None]
        if written:
            rows = source_frame(spark, written).selectExpr(*self.expressions).coalesce(1)
            rows.writeTo(TopicName.parse(name).records_table).append()

    def live(self, spark: SparkSession, name: str) -> list[tuple[int, int, bool]]:
        """Partition and offset of each live row, and whether it is a tombstone."""
        columns = (
            f"{self.partition} AS partition",
            f"{self.offset} AS offset",
            f"{self.tombstone or 'false'} AS tombstone",
        )
        rows = spark.table(TopicName.parse(name).records_table).selectExpr(*columns).collect()
        return [(row["partition"], row["offset"], row["tombstone"]) for row in rows]


SPARK_SOURCE = TableLayout(
    "spark_source", SPARK_COLUMNS, ("*",), "`partition`", "`offset`", "value IS NULL"
)
CONNECT = TableLayout(
    "connect_sink",
    f"id string, amount bigint, {_METADATA_COLUMN}",
    (f"{_KEY} AS id", "`offset` AS amount", _KAFKA_METADATA),
    "_kafka_metadata.`partition`",
    "_kafka_metadata.`offset`",
    "",
    Choices(key="id"),
)
CONNECT_FLAT = TableLayout(
    "connect_sink, flat",
    "id string, _kafka_metadata_topic string, _kafka_metadata_partition int, "
    "_kafka_metadata_offset bigint, _kafka_metadata_timestamp bigint",
    (
        f"{_KEY} AS id",
        "topic AS _kafka_metadata_topic",
        "`partition` AS _kafka_metadata_partition",
        "`offset` AS _kafka_metadata_offset",
        "unix_millis(timestamp) AS _kafka_metadata_timestamp",
    ),
    "_kafka_metadata_partition",
    "_kafka_metadata_offset",
    "",
    Choices(key="id"),
)
DEBEZIUM = TableLayout(
    "connect_sink, Debezium",
    "id string, _cdc struct<op: string, ts: timestamp, `offset`: bigint, "
    f"key: struct<id: string>>, {_METADATA_COLUMN}",
    (
        f"{_KEY} AS id",
        "named_struct('op', if(value IS NULL, 'D', 'U'), 'ts', timestamp, 'offset', `offset`, "
        f"'key', if(key IS NULL, null, named_struct('id', {_KEY}))) AS _cdc",
        _KAFKA_METADATA,
    ),
    "_kafka_metadata.`partition`",
    "_kafka_metadata.`offset`",
    "_cdc.op = 'D'",
    partitioned_by="bucket(4, id)",
)
REDPANDA = TableLayout(
    "redpanda",
    "redpanda struct<`partition`: int, timestamp: timestamp, `offset`: bigint, "
    "headers: array<struct<key: string, value: binary>>, key: binary, timestamp_type: int>, "
    "value binary",
    (
        "named_struct('partition', `partition`, 'timestamp', timestamp, 'offset', `offset`, "
        "'headers', cast(null AS array<struct<key: string, value: binary>>), 'key', key, "
        "'timestamp_type', timestampType) AS redpanda",
        "value",
    ),
    "redpanda.`partition`",
    "redpanda.`offset`",
    "value IS NULL",
    partitioned_by="hours(redpanda.timestamp)",
)
AUTOMQ = TableLayout(
    "automq",
    "id string, _cdc struct<op: string, ts: bigint, `offset`: bigint, source: string>, "
    "_kafka_header map<string, binary>, _kafka_key string, "
    "_kafka_metadata struct<`partition`: int, `offset`: bigint, timestamp: bigint>",
    (
        f"{_KEY} AS id",
        "named_struct('op', if(value IS NULL, 'D', 'I'), 'ts', unix_millis(timestamp), 'offset', "
        "`offset`, 'source', 's.t') AS _cdc",
        "cast(null AS map<string, binary>) AS _kafka_header",
        f"{_KEY} AS _kafka_key",
        "named_struct('partition', `partition`, 'offset', `offset`, 'timestamp', "
        "unix_millis(timestamp)) AS _kafka_metadata",
    ),
    "_kafka_metadata.`partition`",
    "_kafka_metadata.`offset`",
    "_cdc.op = 'D'",
)
EXPLICIT = TableLayout(
    "explicit",
    "p bigint, o bigint, at bigint, k string, v string",
    (
        "cast(`partition` AS bigint) AS p",
        "`offset` AS o",
        "unix_millis(timestamp) AS at",
        f"{_KEY} AS k",
        "cast(value AS string) AS v",
    ),
    "p",
    "o",
    "v IS NULL",
    Choices(partition="p", offset="o", timestamp="at", key="k", value="v"),
)
LAYOUTS = (SPARK_SOURCE, CONNECT, CONNECT_FLAT, DEBEZIUM, REDPANDA, AUTOMQ, EXPLICIT)
