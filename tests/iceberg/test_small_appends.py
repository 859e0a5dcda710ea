"""Rows that are appended, and files that are listed, without a query: as Spark sees them."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.manifests import all_sizes, current_files
from ebbtide.iceberg.own_tables import prepare_append
from ebbtide.settings.names import quoted
from tests.lake_sandbox import LakeSandbox

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """A table by day, with a list."""
    name = quoted("lake", cluster, "t.with`dot")
    sandbox.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted('lake', cluster)}")
    sandbox.session.sql(
        f"CREATE TABLE {name} (id BIGINT, at TIMESTAMP, word STRING, ids ARRAY<BIGINT>) "
        "USING iceberg PARTITIONED BY (days(at)) TBLPROPERTIES ('format-version' = '3', "
        "'write.delete.mode' = 'merge-on-read')"
    )
    return name


def rows(*ids: int) -> pa.Table:
    time = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([NOON] * len(ids), time),
            "word": pa.array([f"word {n}" for n in ids]),
            "ids": pa.array([[n, n + 1] for n in ids], pa.list_(pa.int64())),
        }
    )


def test_what_is_appended_is_what_spark_reads_and_prunes(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    prepare_append(spark, table, rows(1, 2), "at")()
    prepare_append(spark, table, rows(3), "at")()
    appended = spark.sql(
        f"SELECT * FROM {table} WHERE at >= DATE '2026-03-01' ORDER BY id"
    ).collect()
    assert [(r["id"], r["word"], r["ids"]) for r in appended] == [
        (n, f"word {n}", [n, n + 1]) for n in (1, 2, 3)
    ]
    assert spark.sql(f"SELECT * FROM {table} WHERE at >= DATE '2026-03-02'").collect() == []
    listed = spark.sql(f"SELECT record_count, readable_metrics.word FROM {table}.files").collect()
    assert sorted(row["record_count"] for row in listed) == [1, 2]
    assert {row["word"]["lower_bound"] for row in listed} == {"word 1", "word 3"}


def test_nothing_is_appended_before_it_is_committed(sandbox: LakeSandbox, table: str) -> None:
    prepare_append(sandbox.session, table, rows(1), "at")
    assert sandbox.session.table(table).count() == 0


def test_files_are_listed_as_the_metadata_tables_list_them(
    sandbox: LakeSandbox, table: str
) -> None:
    spark = sandbox.session
    assert current_files(open_table(spark, table)) == []
    prepare_append(spark, table, rows(1, 2), "at")()
    prepare_append(spark, table, rows(3), "at")()
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    loaded = open_table(spark, table)
    expected = spark.sql(
        f"SELECT file_path, file_size_in_bytes, record_count, content = 0, referenced_data_file, "
        f"partition.at_day FROM {table}.files"
    ).collect()
    listed = [(*file[:5], file.partition["at_day"]) for file in current_files(loaded)]
    assert sorted(map(str, listed)) == sorted(str(tuple(row)) for row in expected)
    assert {file.is_data for file in current_files(loaded)} == {True, False}
    every = spark.sql(f"SELECT file_path, file_size_in_bytes FROM {table}.all_files").collect()
    assert all_sizes(loaded) == {row[0]: row[1] for row in every}
    assert len(all_sizes(loaded)) > len(listed)


def test_a_table_is_there_or_not_whatever_its_name_holds(sandbox: LakeSandbox, table: str) -> None:
    fresh = sandbox.session.newSession()
    for key, value in sandbox.catalogs().items():
        fresh.conf.set(key, value)
    assert table_exists(fresh, table)
    assert not table_exists(fresh, table.replace("dot", "dots"))
    assert not table_exists(fresh, quoted("lake", "no-such-namespace", "t"))
