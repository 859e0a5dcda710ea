"""Files that are written anew: Iceberg and its readers find in them what they found before."""

from typing import Any

import pytest
from pyspark.sql import Row

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table, open_table
from ebbtide.iceberg.manifests import current_files
from ebbtide.jobs import expire_snapshots
from ebbtide.jobs.expire_snapshots import (
    Deletions,
    execute_expire_snapshots,
    find_deletions,
    rewrite_files,
)
from ebbtide.spark.jvm import iceberg_class
from tests.log.log_files import data_batch
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS
from tests.tables.other_tools import rewrite_files as rewrite_by_iceberg
from tests.tables.partition_log import T0, write_segments

KEYS = [Message(f"k{i}", "1") for i in range(40)]
LOG = [KEYS, KEYS[:30], [Message("k1", None), *KEYS[:12]], KEYS[:3]]
ANY = {"ebbtide.rewrite.deleted.ratio": "0"}
LINEAGE = "_row_id, _last_updated_sequence_number"


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A topic whose closed segments have deleted rows."""
    write_log(empty.home, "t", LOG, {"cleanup.policy": "compact"})
    empty.ingest(empty.home, FIRST_MS)
    empty.mark()
    empty.clean(FIRST_MS + DAY_MS)
    empty.set(ANY)
    return empty


def rows_of(bench: Bench) -> list[Row]:
    columns = f"SELECT *, {LINEAGE} FROM {bench.name.records_table} ORDER BY offset"
    return bench.spark.sql(columns).collect()


def rewrite(bench: Bench) -> int:
    topic = bench.load()
    return rewrite_files(topic, find_deletions(topic))


def delete(bench: Bench, where: str) -> None:
    """As another tool does, in deletion vectors."""
    by_rows = "bit_count(segment) >= 0"  # or Spark would drop whole files
    bench.spark.sql(f"DELETE FROM {bench.name.records_table} WHERE {where} AND {by_rows}")


def vectors(bench: Bench, table: str) -> int:
    """How many deletion vectors a table's current snapshot has."""
    return bench.spark.table(f"{table}.delete_files").count()


def test_rows_stay_with_their_ids_and_no_deletion_is_left(bench: Bench) -> None:
    before = rows_of(bench)
    assert find_deletions(bench.load()).rows > 0
    assert rewrite(bench) > 1
    assert rows_of(bench) == before
    assert find_deletions(bench.load()) == Deletions(0, 0, 0, [], [])


@pytest.mark.long
def test_ids_stay_where_a_file_says_them_itself(bench: Bench) -> None:
    before = rows_of(bench)
    rewrite_by_iceberg(bench.spark, [bench.name.records_table])
    assert rows_of(bench) == before
    delete(bench, "offset % 7 = 3")
    before = rows_of(bench)
    assert rewrite(bench) > 0
    assert rows_of(bench) == before


@pytest.mark.long
def test_columns_of_others_stay(bench: Bench) -> None:
    spark, table = bench.spark, bench.name.records_table
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note map<string, decimal(9, 2)>")
    before = rows_of(bench)
    assert rewrite(bench) > 1
    assert rows_of(bench) == before


def test_a_file_without_a_live_row_leaves(bench: Bench) -> None:
    spark, table = bench.spark, bench.name.records_table
    delete(bench, "segment = 40")
    before = rows_of(bench)
    rewrite(bench)
    assert rows_of(bench) == before
    files = current_files(open_table(spark, table))
    assert 40 not in {file.partition["segment"] for file in files}


@pytest.mark.long
def test_the_active_segment_is_left_alone(bench: Bench) -> None:
    active = bench.load().partitions[0].active_segment
    rewrite(bench)
    bench.set({"ebbtide.rewrite.deleted.ratio": "0.01"})
    delete(bench, f"offset = {active}")
    assert find_deletions(bench.load()) == Deletions(0, 1, 0, [], [])


@pytest.mark.long
def test_no_table_keeps_a_vector_where_none_may_stay(
    empty: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For engines that fail on one: of the batches too, and in active segments."""
    spark = empty.spark
    of_ten = [data_batch(offset, (f"k{offset}", "1"), at_ms=T0) for offset in range(10)]
    newer = [data_batch(10, ("k3", "2"), at_ms=T0)]
    active = [data_batch(11, ("a", "1"), ("b", "1"), at_ms=T0)]
    write_segments(empty.home, {0: of_ten, 10: newer, 11: active})
    empty.ingest(empty.home, T0 + DAY_MS)
    compacts = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0"}
    empty.set(compacts | ANY)
    empty.mark()
    empty.clean(T0 + DAY_MS)
    delete(empty, "offset = 11")
    assert tuple(vectors(empty, table) for table in empty.tables) == (2, 1)
    records, headers = rows_of(empty), spark.table(empty.name.batches_table).collect()
    monkeypatch.setattr(expire_snapshots, "FILES_A_RUN", 1)
    execute_expire_snapshots(empty.load())
    assert tuple(vectors(empty, table) for table in empty.tables) == (0, 0)
    assert rows_of(empty) == records
    assert sorted(spark.table(empty.name.batches_table).collect()) == sorted(headers)


@pytest.mark.long
def test_what_another_deletes_meanwhile_is_not_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = expire_snapshots.prepare_rewrite

    def prepared_before_a_delete(*args: Any, **named: Any) -> Any:
        commit = prepare(*args, **named)
        delete(bench, "offset = 39")
        return commit

    monkeypatch.setattr(expire_snapshots, "prepare_rewrite", prepared_before_a_delete)
    with pytest.raises(CommitConflictError):
        rewrite(bench)
    assert 39 not in {row["offset"] for row in rows_of(bench)}


@pytest.mark.long
def test_only_so_many_files_a_run_the_worst_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_count = (
        f"SELECT referenced_data_file FROM {bench.name.records_table}.delete_files "
        "ORDER BY record_count DESC"
    )
    bench.set({"ebbtide.rewrite.deleted.ratio": "0.01"})
    due = find_deletions(bench.load()).due
    assert [file.path for file in due] == [
        row["referenced_data_file"] for row in bench.spark.sql(by_count).collect()
    ]
    monkeypatch.setattr(expire_snapshots, "FILES_A_RUN", 1)
    assert rewrite(bench) == 1
    deletions = find_deletions(bench.load())
    assert deletions.due == due[1:]
    assert deletions.rows == deletions.rows_due > 0


@pytest.mark.long
def test_a_deletion_vector_for_a_file_that_is_gone_is_put_away(bench: Bench) -> None:
    rewrite(bench)
    _add_vector_for(bench, "gone.parquet")
    before = rows_of(bench)
    deletions = find_deletions(bench.load())
    assert (deletions.dangling, deletions.rows) == (["gone.parquet"], 0)
    rewrite(bench)
    assert find_deletions(bench.load()) == Deletions(0, 0, 0, [], [])
    assert rows_of(bench) == before


def _add_vector_for(bench: Bench, path: str) -> None:
    """As an engine leaves it that replaces a data file and does not look for its vector."""
    spark = bench.spark
    table = java_table(spark, bench.name.records_table)
    task = table.newScan().planFiles().iterator().next()
    builder = iceberg_class(spark, "FileMetadata").deleteFileBuilder(task.spec())
    vector = (
        builder.ofPositionDeletes()
        .withFormat("puffin")
        .withPath(f"{table.location()}/data/vectors.puffin")
        .withPartition(task.file().partition())
        .withFileSizeInBytes(50)
        .withRecordCount(1)
        .withReferencedDataFile(path)
        .withContentOffset(4)
        .withContentSizeInBytes(40)
        .build()
    )
    table.newRowDelta().addDeletes(vector).commit()
