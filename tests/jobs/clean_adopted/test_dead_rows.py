"""Rows that others have deleted are dead to every rule, by whichever kind of delete."""

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.settings.names import TopicName
from ebbtide.state.covered_offsets import HorizonRange
from tests.jobs.clean_adopted.dead_rows import DELETE_RETENTION_MS, NIGHT_MS, RETENTION_MS, Writers
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import (
    COMPACTED,
    Record,
    adopt,
    append,
    clean,
    delete_places,
    live,
    rewrite,
    spark_table,
)
from tests.tables.upserts import delete_equal, upsert

pytestmark = pytest.mark.long

KINDS = {2: {("EQUALITY_DELETES", "PARQUET"), ("POSITION_DELETES", "PARQUET")}}
KINDS[3] = {("EQUALITY_DELETES", "PARQUET"), ("POSITION_DELETES", "PUFFIN")}


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def expire(spark: SparkSession, name: str, now_ms: int) -> None:
    execute_expire(plan_expire(load(spark, TopicName.parse(name)), now_ms))


@pytest.mark.parametrize(("version", "nights"), [(2, 3), (3, 2)])
def test_rounds_leave_what_a_fold_of_the_living_leaves(
    spark: SparkSession, cluster: str, version: int, nights: int
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name, version)
    adopt(spark, name, {**COMPACTED, "kafka.delete.retention.ms": str(DELETE_RETENTION_MS)})
    writers = Writers(spark, name, version)
    for now_ms in range(NIGHT_MS, (nights + 1) * NIGHT_MS, NIGHT_MS):
        writers.night(now_ms)
        assert live(spark, name) == writers.fold.offsets
        clean(spark, name, now_ms)
        writers.fold.look(now_ms)
        writers.fold.clean(now_ms)
        assert live(spark, name) == writers.fold.offsets
    files = spark.table(f"{TopicName.parse(name).records_table}.delete_files").collect()
    contents = {1: "POSITION_DELETES", 2: "EQUALITY_DELETES"}
    assert {(contents[file["content"]], file["file_format"]) for file in files} == KINDS[version]


def test_retention_leaves_what_a_fold_of_the_living_leaves(
    spark: SparkSession, cluster: str
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name, 2)
    settings = {
        "kafka.cleanup.policy": "delete",
        "kafka.retention.ms": str(RETENTION_MS),
        "kafka.segment.ms": "1",
    }
    adopt(spark, name, settings)
    writers = Writers(spark, name, 7)
    for now_ms in range(NIGHT_MS, 5 * NIGHT_MS, NIGHT_MS):
        writers.night(now_ms)
        expire(spark, name, now_ms)
        writers.fold.look(now_ms)
        writers.fold.expire(now_ms)
        assert live(spark, name) == writers.fold.offsets
    segments = load(spark, TopicName.parse(name)).partitions[0].segments
    assert [segment.base_offset for segment in segments] == [
        segment.base_offset for segment in writers.fold.segments
    ]
    assert writers.fold.segments[0].base_offset > 0


def test_a_dead_row_holds_no_segment_back(spark: SparkSession, cluster: str) -> None:
    """The newest row of a segment dies after it was counted: the segment's time is another then."""
    name = f"{cluster}.t"
    spark_table(spark, name, 2)
    rows = [Record(0, "a", timestamp_ms=1_000), Record(1, "b", timestamp_ms=30_000)]
    append(spark, name, rows)
    settings = {
        "kafka.cleanup.policy": "delete",
        "kafka.retention.ms": "10000",
        "kafka.segment.ms": "1",
    }
    adopt(spark, name, settings, now_ms=31_000)
    expire(spark, name, 31_000)
    assert live(spark, name) == [0, 1]
    delete_equal(spark, name, "offset", 1)
    expire(spark, name, 32_000)
    assert live(spark, name) == []


def test_rows_that_come_and_die_between_two_looks_are_not_late(
    spark: SparkSession, cluster: str
) -> None:
    """Others also rewrite files meanwhile, so that no file tells what arrived."""
    name = f"{cluster}.t"
    spark_table(spark, name, 2)
    append(spark, name, [Record(4, "a"), Record(5, "b", None)])
    adopt(spark, name)
    clean(spark, name, 10_000)
    append(spark, name, [Record(1, "x", None), Record(2, "y"), Record(6, "c")])
    delete_places(spark, name, [1])
    rewrite(spark, name)
    clean(spark, name, 10_500)
    assert live(spark, name) == [2, 4, 5, 6]
    state = load(spark, TopicName.parse(name)).partitions[0]
    assert state.horizons == (HorizonRange(6, 11_000), HorizonRange(7, 11_500))
    assert sum(sums.record_count for sums in state.sums) == 4


def test_upserts_whose_rows_others_have_moved_all_count_as_late(
    spark: SparkSession, cluster: str
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name, 2)
    append(spark, name, [Record(4, "a"), Record(5, "b", None)])
    adopt(spark, name)
    clean(spark, name, 10_000)
    upsert(spark, name, [Record(6, "a")])
    rewrite(spark, name)
    clean(spark, name, 10_500)
    state = load(spark, TopicName.parse(name)).partitions[0]
    assert state.horizons == (HorizonRange(5, 11_000), HorizonRange(7, 11_500))
    assert live(spark, name) == [5, 6]
