"""Columns of adopted tables: nested, null, renamed, added, dropped; keys of several types."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.layouts.layout import Choices
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import (
    Record,
    adopt,
    append,
    clean,
    live,
    source_frame,
    spark_table,
)

pytestmark = pytest.mark.long

MAPPED = Choices(partition="p", offset="o", timestamp="at", key="k", value="v")


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def test_nested_columns_and_keys_are_followed_by_their_ids(
    spark: SparkSession, cluster: str
) -> None:
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    spark.sql(
        f"CREATE TABLE {table} (id bigint, _cdc struct<op: string, key: struct<id: bigint>>, "
        "_kafka_metadata struct<topic: string, `partition`: int, offset: bigint, "
        "timestamp: bigint>) USING iceberg PARTITIONED BY (bucket(4, id)) "
        "TBLPROPERTIES ('format-version'='3')"
    )

    def write(*rows: tuple[int, int, str]) -> None:
        values = ", ".join(
            f"({key}, named_struct('op', '{op}', 'key', named_struct('id', {key}L)), "
            f"named_struct('topic', 't', 'partition', 0, 'offset', {offset}L, "
            "'timestamp', 1000L))"
            for offset, key, op in rows
        )
        spark.sql(f"INSERT INTO {table} VALUES {values}")

    write((0, 1, "I"), (1, 2, "I"), (2, 1, "U"), (3, 2, "D"))
    spark.sql(f"INSERT INTO {table} VALUES (9, null, null)")  # nobody knows its offset
    assert "1 rows have no partition or no offset" in adopt(spark, name).topic["note"]
    clean(spark, name, 10_000)
    assert live(spark, name, "_kafka_metadata.offset") == [2, 3]
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN _cdc.op TO operation")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN _kafka_metadata TO source")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN more string")
    clean(spark, name, 11_000)
    assert live(spark, name, "source.offset") == [2]
    spark.sql(f"ALTER TABLE {table} DROP COLUMN _cdc")
    with pytest.raises(ConfigurationError, match="column of 'key', 'mark' was dropped"):
        clean(spark, name, 12_000)


def test_rows_written_under_an_older_and_a_newer_schema_are_one_log(
    spark: SparkSession, cluster: str
) -> None:
    """Columns are added, renamed and widened between rounds; one that comes anew is another."""
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "b")])
    adopt(spark, name)
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note string FIRST")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN key TO id")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN value TO payload")
    rows = source_frame(spark, [Record(2, "a"), Record(3, "c", None)]).selectExpr(
        "'n' AS note",
        "key AS id",
        "value AS payload",
        "topic",
        "`partition`",
        "`offset`",
        "timestamp",
        "timestampType",
    )
    rows.writeTo(table).append()
    clean(spark, name, 10_000)
    assert live(spark, name) == [1, 2, 3]
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN partition TYPE bigint")
    clean(spark, name, 11_000)
    assert live(spark, name) == [1, 2]
    spark.sql(f"ALTER TABLE {table} DROP COLUMN payload")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN payload binary")
    with pytest.raises(ConfigurationError, match="column of 'value' was dropped"):
        clean(spark, name, 12_000)


def test_a_key_of_several_columns_may_hold_nulls(spark: SparkSession, cluster: str) -> None:
    """A null in a key is a value like any other; a key that is null is none. So with places."""
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    spark.sql(
        f"CREATE TABLE {table} (k struct<id: bigint, region: string>, v string, p int, o bigint, "
        "at timestamp) USING iceberg TBLPROPERTIES ('format-version'='2')"
    )

    def write(*rows: tuple[str, str, str]) -> None:
        values = ", ".join(
            f"({key}, 'v', {partition}, {offset}, timestamp_millis(1000))"
            for key, partition, offset in rows
        )
        spark.sql(f"INSERT INTO {table} VALUES {values}")

    plain, eu = "named_struct('id', 1L, 'region', null)", "named_struct('id', 1L, 'region', 'eu')"
    empty = "named_struct('id', null, 'region', null)"
    write((plain, "0", "0L"), (eu, "0", "1L"), (plain, "0", "2L"), (empty, "0", "3L"))
    write((empty, "0", "4L"), ("null", "0", "5L"), (eu, "null", "6L"), (eu, "0", "null"))
    outcome = adopt(spark, name, choices=MAPPED)
    assert "2 rows have no partition or no offset" in outcome.topic["note"]
    outcome = clean(spark, name, 10_000)
    assert live(spark, name, "o") == [1, 2, 4, 6]
    assert spark.table(table).count() == 5
    assert (outcome.partitions[0]["superseded"], outcome.partitions[0]["keyless"]) == (2, 1)
