"""Which files a table's segments have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.catalog import java_table, open_table
from ebbtide.iceberg.file_commits import describe_listed
from ebbtide.iceberg.segment_planning import below, plan_segments, planned_files, planned_tasks
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.numbers import MAX_OFFSET
from ebbtide.settings.names import TopicName
from ebbtide.spark.jvm import iceberg_class
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

SEGMENTS = [[Message("a", "1"), Message("b", "1")] for _ in range(3)]
ALL = [(p, s) for p in range(3) for s in (0, 2, 4)]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param(dict.fromkeys(range(3), MAX_OFFSET), ALL, id="all"),
        pytest.param({0: 3, 2: 5}, [(0, 0), (0, 2), (2, 0), (2, 2), (2, 4)], id="unequal ends"),
        pytest.param({1: 1}, [(1, 0)], id="one segment"),
        pytest.param({1: 0}, [], id="none of a partition"),
        pytest.param({}, [], id="no partition"),
    ],
)
def test_the_segments_below_each_partitions_end(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    ends: Mapping[int, int],
    expected: list[tuple[int, int]],
) -> None:
    name = TopicName(cluster, "t")
    for partition in range(3):
        write_log(tmp_path, "t", SEGMENTS, {}, partition=partition)
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    units = plan_segments(sandbox.session, name.records_table, snapshot, ends)
    assert [(unit.partition, unit.segment) for unit in units] == expected


def test_only_files_that_may_hold_an_offset_from_a_start_on(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    write_log(tmp_path, "t", SEGMENTS, {})
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    units = plan_segments(
        sandbox.session, name.records_table, snapshot, {0: MAX_OFFSET}, starts={0: 3}
    )
    assert [unit.segment for unit in units] == [2, 4]


def test_the_largest_value_of_a_column_is_told_of_each_file(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    write_log(tmp_path, "t", SEGMENTS, {})
    ingest(spark, str(name), tmp_path, FIRST_MS)
    snapshot = current_snapshot(spark, name.records_table)
    assert snapshot is not None
    ends = {0: MAX_OFFSET}
    told = plan_segments(spark, name.records_table, snapshot, ends, bound="offset")
    assert [file.last for unit in told for file in unit.files] == [1, 3, 5]
    untold = plan_segments(spark, name.records_table, snapshot, ends)
    assert {file.last for unit in untold for file in unit.files} == {None}


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """Two partitions of two segments, with files that other tools have moved and deleted from."""
    spark, table = sandbox.session, f"lake.{cluster}.planned"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{cluster}")
    spark.sql(
        f"CREATE TABLE {table} (`partition` INT, segment BIGINT, offset BIGINT) USING iceberg "
        "PARTITIONED BY (`partition`, segment) TBLPROPERTIES ('format-version' = '3', "
        "'write.delete.mode' = 'merge-on-read', 'commit.manifest.min-count-to-merge' = '2')"
    )
    for segment in (0, 10):
        spark.sql(
            f"INSERT INTO {table} SELECT CAST(id % 2 AS INT), {segment}L, id FROM range(10, 20)"
        )
    spark.sql(f"DELETE FROM {table} WHERE offset IN (12, 13) AND segment = 10")
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, offset)")
    spark.sql(f"INSERT INTO {table} SELECT 1, 10L, id FROM range(20, 30)")
    spark.sql(f"DELETE FROM {table} WHERE `partition` = 0 AND segment = 0")
    return table


def test_files_are_planned_as_iceberg_plans_them(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    loaded, snapshot = open_table(spark, table), current_snapshot(spark, table)
    assert snapshot is not None
    parser = iceberg_class(spark, "ScanTaskParser")
    everything = iceberg_class(spark, "expressions.Expressions").alwaysTrue()
    expected = {}
    for task in planned_tasks(loaded, snapshot, everything):
        described = json.loads(parser.toJson(task))
        file, sequence_number = described["data-file"], int(task.file().dataSequenceNumber())
        assert file.pop("spec-id") in (0, 1)
        expected[file["file-path"]] = (file, described["delete-files"], sequence_number)
    planned = planned_files(loaded, snapshot, below(dict.fromkeys(range(2), MAX_OFFSET)))
    assert {planned_file.file.path for planned_file in planned} == expected.keys()
    assert any(planned_file.vector for planned_file in planned)
    for planned_file in planned:
        file, deletes, sequence_number = expected[planned_file.file.path]
        told = describe_listed(planned_file.listed)
        assert {name: told[name] for name in told if name != "spec-id"}.items() <= file.items()
        assert (planned_file.listed.first_row_id, planned_file.listed.sequence_number) == (
            file["first-row-id"],
            sequence_number,
        )
        vectors = [] if planned_file.vector is None else [describe_listed(planned_file.vector)]
        assert vectors == [{name: of_delete[name] for name in vectors[0]} for of_delete in deletes]


def test_deletes_by_equality_are_refused(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    loaded = java_table(spark, table)
    builder = iceberg_class(spark, "FileMetadata").deleteFileBuilder(loaded.specs().get(0))
    one_id = spark.sparkContext._gateway.new_array(spark._jvm.int, 1)
    one_id[0] = 3
    deletes = (
        builder.ofEqualityDeletes(one_id)
        .withPath("file:///nowhere/deletes.parquet")
        .withFormat("parquet")
        .withPartitionPath("partition=1/segment=0")
        .withFileSizeInBytes(10)
        .withRecordCount(1)
        .build()
    )
    loaded.newRowDelta().addDeletes(deletes).commit()
    snapshot = current_snapshot(spark, table)
    assert snapshot is not None
    with pytest.raises(ConfigurationError, match="only deletion vectors among the delete files"):
        plan_segments(spark, table, snapshot, {1: 1})
    assert len(plan_segments(spark, table, snapshot, {0: 1})) == 0
