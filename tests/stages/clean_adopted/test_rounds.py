"""Cleaner rounds on tables that others write, through real Spark and real Iceberg."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.adopted.horizons import HorizonRange
from ebbtide.log.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, spark_table


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def horizons(spark: SparkSession, name: str, partition: int = 0) -> tuple[HorizonRange, ...]:
    return load(spark, TopicName.parse(name)).partitions[partition].horizons


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_is_cleaned_night_after_night(
    spark: SparkSession, cluster: str, version: int
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name, version)
    append(spark, name, [Record(0, "a"), Record(1, "b"), Record(2, "a"), Record(3, None)])
    adopt(spark, name, now_ms=5_000)
    outcome = clean(spark, name, 10_000)
    assert live(spark, name) == [1, 2]
    assert outcome.partitions[0]["superseded"] == 1
    assert outcome.partitions[0]["keyless"] == 1
    append(spark, name, [Record(4, "b", None), Record(5, "c"), Record(6, "c")])
    clean(spark, name, 20_000)
    assert live(spark, name) == [2, 4, 6]
    assert horizons(spark, name) == (HorizonRange(4, 0), HorizonRange(7, 21_000))
    assert clean(spark, name, 20_999).rows_removed == 0
    assert clean(spark, name, 21_000).partitions[0]["tombstones_removed"] == 1
    assert live(spark, name) == [2, 6]
    assert horizons(spark, name) == (HorizonRange(7, 0),)
