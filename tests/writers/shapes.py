"""The tables that writers write, each with its columns, and their rows as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.tables.adopted import SPARK_COLUMNS
from tests.writers.producing import Produced

_METADATA = "topic: string, `partition`: int, offset: bigint, timestamp: bigint"
_NUMBER = "cast(get_json_object(cast(value AS string), '$.n') AS bigint)"


class Shape(NamedTuple):
    """A writer's columns; the last four are expressions, of a record's parts."""

    columns: str
    arguments: Sequence[str]  # of adopt_table
    partition: str
    offset: str
    key: str
    number: str
    has_null_values: bool = True


CONNECT_NESTED = Shape(
    f"id string, n bigint, _kafka_metadata struct<{_METADATA}>",
    ("--key-column", "id"),
    *("_kafka_metadata.`partition`", "_kafka_metadata.offset", "id", "n"),
    has_null_values=False,
)
CONNECT_FLAT = Shape(
    "id string, n bigint, _kafka_metadata_topic string, _kafka_metadata_partition int, "
    "_kafka_metadata_offset bigint, _kafka_metadata_timestamp bigint",
    ("--key-column", "id"),
    *("_kafka_metadata_partition", "_kafka_metadata_offset", "id", "n"),
    has_null_values=False,
)
SPARK_SOURCE = Shape(SPARK_COLUMNS, (), "`partition`", "offset", "cast(key AS string)", _NUMBER)
REDPANDA = Shape(
    "redpanda struct<`partition`: int, timestamp: timestamp, offset: bigint, "
    "headers: array<struct<key: string, value: binary>>, key: binary, timestamp_type: int>, "
    "value binary",
    (),
    *("redpanda.`partition`", "redpanda.offset", "cast(redpanda.key AS string)", _NUMBER),
)


class WrittenTable(NamedTuple):
    """A table of a writer: `<namespace>.<table>`, its shape, and how it was created."""

    name: str
    shape: Shape
    version: int
    partitioned_by: str = ""

    @property
    def table(self) -> str:
        return TopicName.parse(self.name).records_table

    def create(self, spark: SparkSession) -> None:
        """As the owner of the table would."""
        partitioning = f"PARTITIONED BY ({self.partitioned_by})" if self.partitioned_by else ""
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{self.name.partition('.')[0]}`")
        spark.sql(
            f"CREATE TABLE {self.table} ({self.shape.columns}) USING iceberg {partitioning} "
            f"TBLPROPERTIES ('format-version'='{self.version}')"
        )

    def arriving(self, records: Sequence[Produced]) -> list[Produced]:
        """Those of the records that its writer writes."""
        return [
            record for record in records if self.shape.has_null_values or record.number is not None
        ]

    def live(self, spark: SparkSession) -> list[Produced]:
        """Its rows as records, by partition and offset, with repeats."""
        shape = self.shape
        rows = spark.table(self.table).selectExpr(
            shape.partition, shape.offset, shape.key, shape.number
        )
        return sorted((Produced(*row) for row in rows.collect()), key=lambda record: record[:2])

    def ends(self, spark: SparkSession) -> dict[int, int]:
        """The offset behind its last row, by partition."""
        shape = self.shape
        rows = spark.sql(
            f"SELECT {shape.partition} AS p, max({shape.offset}) + 1 AS end "
            f"FROM {self.table} GROUP BY 1"
        )
        return {row["p"]: row["end"] for row in rows.collect()}
