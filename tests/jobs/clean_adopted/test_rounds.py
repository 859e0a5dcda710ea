"""Cleaner rounds on tables that others write, through real Spark and real Iceberg."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ForeignLogError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.file_commits import commit_update
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.runner.plan_text import render_plan
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import iceberg_class
from ebbtide.state.covered_offsets import PENDING, HorizonRange
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, clean, live, rewrite, spark_table
from tests.tables.fixtures import KilledError, Meanwhile


@pytest.fixture(scope="module")
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def horizons(spark: SparkSession, name: str, partition: int = 0) -> tuple[HorizonRange, ...]:
    return load(spark, TopicName.parse(name)).partitions[partition].horizons


@pytest.mark.long(but="2")
@pytest.mark.parametrize("version", [2, 3])
def test_a_table_is_cleaned_night_after_night(
    spark: SparkSession, cluster: str, version: int
) -> None:
    """Rows that others delete meanwhile are dead; offsets repeat and are missing."""
    name = f"{cluster}.t"
    table = TopicName.parse(name).records_table
    spark_table(spark, name, version, "PARTITIONED BY (hours(timestamp))")
    rows = [Record(0, "a"), Record(1, "b"), Record(2, "a"), Record(2, "a"), Record(3, None)]
    append(spark, name, [*rows, Record(9, "d"), Record(8, "d"), Record(8, "d")])
    adopt(spark, name, now_ms=5_000)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE offset = 9")  # so what is left of its key stays
    outcome = clean(spark, name, 10_000)
    assert live(spark, name) == [1, 2, 2, 8, 8]
    assert outcome.partitions[0]["superseded"] == 1
    assert outcome.partitions[0]["keyless"] == 1
    append(spark, name, [Record(10, "b", None), Record(11, "c"), Record(12, "c")])
    clean(spark, name, 20_000)
    assert live(spark, name) == [2, 2, 8, 8, 10, 12]
    assert horizons(spark, name) == (HorizonRange(10, 0), HorizonRange(13, 21_000))
    assert clean(spark, name, 20_999).rows_removed == 0
    assert clean(spark, name, 21_000).partitions[0]["tombstones_removed"] == 1
    assert live(spark, name) == [2, 2, 8, 8, 12]
    assert horizons(spark, name) == (HorizonRange(13, 0),)
    kinds = {row["file_format"] for row in spark.table(f"{table}.delete_files").collect()}
    assert kinds == ({"PUFFIN"} if version == 3 else {"PARQUET"})


@pytest.mark.long
def test_rows_that_arrive_late_are_dirty_again(spark: SparkSession, cluster: str) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(5, "a"), Record(6, "b", None), Record(7, "c")])
    adopt(spark, name)
    clean(spark, name, 10_000)
    append(spark, name, [Record(3, "a"), Record(4, "d", None), Record(8, "e")])
    topic = TopicName.parse(name)
    before = load(spark, topic).partitions[0]
    assert before.first_dirty_offset == 8
    clean(spark, name, 10_500)  # 3 is superseded by 5, which lies above it
    assert live(spark, name) == [4, 5, 6, 7, 8]
    ranges = horizons(spark, name)
    assert ranges[:3] == (HorizonRange(4, 11_000), HorizonRange(5, 11_500), HorizonRange(8, 11_000))
    clean(spark, name, 11_000)
    assert live(spark, name) == [4, 5, 7, 8]
    java_table(spark, topic.records_table).expireSnapshots().expireOlderThan(2**62).retainLast(
        1
    ).commit()
    append(spark, name, [Record(9, "f", None)])
    java_table(spark, topic.records_table).expireSnapshots().expireOlderThan(2**62).retainLast(
        1
    ).commit()
    clean(spark, name, 11_600)  # nobody can tell which rows are late: the tombstone stays longer
    assert live(spark, name) == [4, 5, 7, 8, 9]
    assert horizons(spark, name)[1] == HorizonRange(5, 12_600)
    assert all(horizon.horizon_ms != PENDING for horizon in horizons(spark, name))


@pytest.mark.long
def test_updates_by_others_delay_no_tombstone(spark: SparkSession, cluster: str) -> None:
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark_table(spark, name)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.update.mode'='merge-on-read')")
    append(spark, name, [Record(0, "a"), Record(1, "b", None)])
    adopt(spark, name)
    clean(spark, name, 10_000)
    spark.sql(f"UPDATE {table} SET value = cast('w' as binary) WHERE offset = 0")
    append(spark, name, [Record(2, "c"), Record(3, "c")])
    clean(spark, name, 10_500)
    assert live(spark, name) == [0, 1, 3]
    assert horizons(spark, name) == (HorizonRange(2, 11_000), HorizonRange(4, 11_500))
    clean(spark, name, 11_000)
    assert live(spark, name) == [0, 3]


@pytest.mark.long
def test_other_writers_are_never_in_the_way(
    spark: SparkSession, cluster: str, meanwhile: Meanwhile
) -> None:
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "b"), Record(2, "a")])
    append(spark, name, [Record(3, "b")])
    adopt(spark, name)
    meanwhile(Step.ROUND_RECORDS, lambda: append(spark, name, [Record(4, "b"), Record(1, "b")]))
    clean(spark, name, 10_000)
    assert live(spark, name) == [1, 2, 3, 4]  # what arrived meanwhile is judged next time
    append(spark, name, [Record(5, "c")])

    meanwhile(Step.ROUND_RECORDS, lambda: rewrite(spark, name))
    with pytest.raises(CommitConflictError):
        clean(spark, name, 20_000)
    assert clean(spark, name, 30_000).rows_removed == 2
    assert live(spark, name) == [2, 4, 5]
    assert spark.table(table).count() == 3


def test_a_round_that_is_resumed_leaves_the_rows_of_a_log_that_began_again(
    spark: SparkSession, cluster: str, kill_at: list[Step]
) -> None:
    name, topic = f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(n, "a") for n in range(3)])
    adopt(spark, name)
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(spark, name, 10_000)
    spark.sql(f"TRUNCATE TABLE {topic.records_table}")
    append(spark, name, [Record(n, "a", timestamp_ms=20_000) for n in range(2)])
    for _ in range(2):
        with pytest.raises(ForeignLogError, match="newer than 1970-01-01 00:00 UTC"):
            clean(spark, name, 30_000)
    assert live(spark, name) == [0, 1]
    execute_abandonment(plan_abandonment(spark, topic))
    adopt(spark, name)
    assert clean(spark, name, 40_000).rows_removed == 1
    assert live(spark, name) == [1]


def test_a_round_names_its_own_snapshot_where_a_sink_commits_at_once(
    spark: SparkSession, cluster: str
) -> None:
    name, table = f"{cluster}.t", TopicName(cluster, "t").records_table
    spark_table(spark, name)
    append(spark, name, [Record(0, "a")])
    loaded = java_table(spark, table)
    update = loaded.newDelete().deleteFromRowFilter(
        iceberg_class(spark, "expressions.Expressions").alwaysTrue()
    )

    class ThenAppended:
        def deleteWith(self, keep: Any) -> ThenAppended:  # noqa: N802
            update.deleteWith(keep)
            return self

        def commit(self) -> None:
            update.commit()
            append(spark, name, [Record(1, "b")])
            loaded.refresh()

        def updateEvent(self) -> Any:  # noqa: N802  as Iceberg calls it
            return update.updateEvent()

    snapshot = loaded.snapshot(commit_update(spark, loaded, ThenAppended()))
    assert snapshot.operation() == "delete"


@pytest.mark.long
def test_files_whose_bounds_hold_no_dirty_key_stay_closed(
    spark: SparkSession, cluster: str
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "c")])
    append(spark, name, [Record(2, "x"), Record(3, "z")])
    adopt(spark, name)
    clean(spark, name, 10_000)
    append(spark, name, [Record(4, "b"), Record(5, "d")])
    plan = plan_clean(load(spark, TopicName.parse(name)), 20_000)
    assert "reads 2 of 3 data files" in render_plan("clean_log", name, plan.outcome())
    append(spark, name, [Record(6, "x", None)])
    clean(spark, name, 30_000)
    outcome = clean(spark, name, 32_000)  # a tombstone is due, and nothing is dirty
    assert outcome.partitions[0]["tombstones_removed"] == 1
    assert (outcome.topic["files_read"], outcome.topic["files"]) == (1, 4)


def test_a_plan_is_not_executed_on_other_settings(spark: SparkSession, cluster: str) -> None:
    name, topic = f"{cluster}.t", TopicName(cluster, "t")
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(1, "a")])
    adopt(spark, name)
    plan = plan_clean(load(spark, topic), 10_000)
    set_properties(spark, topic.records_table, {"kafka.delete.retention.ms": "5"})
    before = load(spark, topic).properties
    with pytest.raises(CommitConflictError, match="as of the plan, found a change by another job"):
        execute_clean(plan)
    assert load(spark, topic).properties == before
    assert live(spark, name) == [0, 1]
    clean(spark, name, 10_000)
    assert horizons(spark, name) == (HorizonRange(2, 10_005),)


STEPS = (Step.ADOPTED_ROWS_SEEN, Step.ROUND_STARTED, Step.ROUND_RECORDS, Step.ROUND_STATE)


def test_a_killed_round_ends_as_an_unbroken_one(
    spark: SparkSession, cluster: str, kill_at: list[Step]
) -> None:
    ends = []
    for steps in ((), STEPS):
        name = f"{cluster}.t{len(steps)}"
        spark_table(spark, name)
        append(spark, name, [Record(0, "a"), Record(1, "b", None), Record(2, "a")])
        adopt(spark, name)
        for step in steps:
            kill_at.append(step)
            with pytest.raises(KilledError):
                clean(spark, name, 10_000)
        clean(spark, name, 10_000)
        ends.append((live(spark, name), load(spark, TopicName.parse(name)).partitions))
    assert ends[0] == ends[1]
    assert ends[0][0] == [1, 2]


@pytest.mark.long
def test_a_tombstone_that_arrives_while_a_round_is_begun_anew_waits_for_its_own_horizon(
    spark: SparkSession, cluster: str, kill_at: list[Step]
) -> None:
    name = f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(0, "a"), Record(5, "b", None)])
    adopt(spark, name)
    clean(spark, name, 10_000)
    append(spark, name, [Record(6, "c"), Record(7, "c")])
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(spark, name, 11_000)
    append(spark, name, [Record(3, "z", None)])
    clean(spark, name, 11_000)  # 5 is due, and 3 lies in the same range
    assert live(spark, name) == [0, 3, 7]
    clean(spark, name, 11_500)
    assert live(spark, name) == [0, 3, 7]
    clean(spark, name, 12_500)
    assert live(spark, name) == [0, 7]
