"""Conditions of thousands of parts: Spark and Iceberg take them, since their trees are shallow."""

from pathlib import Path

import pytest
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.segment_planning import among, plan_segments, planned_files
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.jobs.mark_tombstones import within
from ebbtide.jobs.replicate_log import replica_segment
from ebbtide.settings.names import TopicName
from ebbtide.spark.expressions import any_column, any_of, balanced
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import PartitionState
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import HOUR_MS, ingest
from tests.tables.partition_log import T0, batch, write_segments

PARTITIONS = 8_000


def depth(tree: object) -> int:
    return 1 + max(map(depth, tree)) if isinstance(tree, tuple) else 0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 1000])
def test_a_tree_is_as_deep_as_the_logarithm_of_its_parts(count: int) -> None:
    tree = balanced(range(count), lambda left, right: (left, right))
    assert depth(tree) == (count - 1).bit_length()
    assert balanced(map(str, range(count)), str.__add__) == "".join(map(str, range(count)))
    assert balanced([], str.__add__) is None


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A topic of one record."""
    name = TopicName(cluster, "t")
    write_segments(tmp_path, {0: [batch(0)]})
    ingest(sandbox.session, str(name), tmp_path, T0 + HOUR_MS)
    return name


def test_iceberg_plans_the_files_of_thousands_of_partitions(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark, table = sandbox.session, name.records_table
    snapshot = current_snapshot(spark, table) or 0
    assert len(plan_segments(spark, table, snapshot, dict.fromkeys(range(PARTITIONS), 9))) == 1
    assert plan_segments(spark, table, snapshot, {}) == []
    segments = {(p, 0) for p in range(PARTITIONS)}
    assert len(planned_files(open_table(spark, table), snapshot, among(segments))) == 1


@pytest.mark.long
def test_spark_takes_a_condition_of_thousands_of_partitions(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    rows = sandbox.session.table(name.records_table)
    # Fewer: to optimize 8,000 parts takes Spark a minute on a busy machine.
    for condition in (
        within(dict.fromkeys(range(2_000), (0, 9))),
        any_column(F.col("partition") == p for p in range(2_000)),
    ):
        assert rows.where(condition).count() == 1
    assert rows.where(within({1: (0, 9)})).count() == 0
    assert rows.where(any_column([])).count() == 0
    assert rows.where(any_of([])).count() == 0


@pytest.mark.long
def test_spark_takes_the_segments_of_thousands_of_partitions(sandbox: LakeSandbox) -> None:
    """The replica's active segment of each partition is its number; it ends at offset 9."""
    lacking = {p: (ending_at(9, segment=p), ending_at(20, segment=0)) for p in range(PARTITIONS)}
    rows = sandbox.session.createDataFrame(
        [(PARTITIONS - 1, 8), (PARTITIONS - 1, 9), (0, 3), (PARTITIONS, 3)],
        "`partition` INT, segment BIGINT",
    )
    placed = rows.withColumn("segment", replica_segment(lacking))
    assert placed.schema == rows.schema
    assert [row["segment"] for row in placed.collect()] == [PARTITIONS - 1, 9, 0, 3]


def ending_at(log_end_offset: int, segment: int) -> PartitionState:
    return PartitionState(
        log_start_offset=0,
        log_end_offset=log_end_offset,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=(SegmentStart(segment, 0),),
    )
