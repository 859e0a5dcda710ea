"""Files that are written anew: Iceberg and its readers find in them what they found before."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table, open_table
from ebbtide.iceberg.files.manifests import current_files
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.spark.jvm import iceberg_class
from ebbtide.stages.expire_snapshots import rewriting
from ebbtide.stages.expire_snapshots.rewriting import find_deletions, rewrite_files
from ebbtide.stages.expire_snapshots.stage import execute_expire_snapshots
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import data_batch
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties
from tests.tables.other_tools import rewrite_files as rewrite_by_iceberg
from tests.tables.partition_log import T0, write_segments

KEYS = [Message(f"k{i}", "1") for i in range(40)]
LOG = [KEYS, KEYS[:30], [Message("k1", None), *KEYS[:12]], KEYS[:3]]
ANY = {"ebbtide.rewrite.deleted.share": "0"}
LINEAGE = "_row_id, _last_updated_sequence_number"


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A topic whose closed segments have deleted rows."""
    write_log(tmp_path, "t", LOG, {"cleanup.policy": "compact"})
    topic = f"{cluster}.t"
    ingest(sandbox.session, topic, tmp_path, FIRST_MS)
    mark(sandbox.session, topic)
    clean(sandbox.session, topic, FIRST_MS + DAY_MS)
    set_properties(sandbox.session, topic, ANY)
    return TopicName(cluster, "t")


def rows_of(sandbox: LakeSandbox, name: TopicName) -> list[Row]:
    columns = f"SELECT *, {LINEAGE} FROM {name.records_table} ORDER BY offset"
    return sandbox.session.sql(columns).collect()


def rewrite(sandbox: LakeSandbox, name: TopicName) -> int:
    topic = load(sandbox.session, name)
    return rewrite_files(topic, find_deletions(topic))


def delete(sandbox: LakeSandbox, name: TopicName, where: str) -> None:
    """As another tool does, in deletion vectors."""
    by_rows = "bit_count(segment) >= 0"  # or Spark would drop whole files
    sandbox.session.sql(f"DELETE FROM {name.records_table} WHERE {where} AND {by_rows}")


def vectors(sandbox: LakeSandbox, table: str) -> int:
    """How many deletion vectors a table's current snapshot has."""
    return sandbox.session.table(f"{table}.delete_files").count()


def test_rows_stay_with_their_ids_and_no_deletion_is_left(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    before = rows_of(sandbox, name)
    assert find_deletions(load(sandbox.session, name)).rows > 0
    assert rewrite(sandbox, name) > 1
    assert rows_of(sandbox, name) == before
    assert find_deletions(load(sandbox.session, name)) == (0, 0, 0, [], [])


@pytest.mark.long
def test_ids_stay_where_a_file_says_them_itself(sandbox: LakeSandbox, name: TopicName) -> None:
    before = rows_of(sandbox, name)
    rewrite_by_iceberg(sandbox.session, [name.records_table])
    assert rows_of(sandbox, name) == before
    delete(sandbox, name, "offset % 7 = 3")
    before = rows_of(sandbox, name)
    assert rewrite(sandbox, name) > 0
    assert rows_of(sandbox, name) == before


@pytest.mark.long
def test_columns_of_others_stay(sandbox: LakeSandbox, name: TopicName) -> None:
    spark, table = sandbox.session, name.records_table
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note map<string, decimal(9, 2)>")
    before = rows_of(sandbox, name)
    assert rewrite(sandbox, name) > 1
    assert rows_of(sandbox, name) == before


def test_a_file_without_a_live_row_leaves(sandbox: LakeSandbox, name: TopicName) -> None:
    spark, table = sandbox.session, name.records_table
    delete(sandbox, name, "segment = 40")
    before = rows_of(sandbox, name)
    rewrite(sandbox, name)
    assert rows_of(sandbox, name) == before
    files = current_files(open_table(spark, table))
    assert 40 not in {file.partition["segment"] for file in files}


@pytest.mark.long
def test_the_active_segment_is_left_alone(sandbox: LakeSandbox, name: TopicName) -> None:
    active = load(sandbox.session, name).partitions[0].active_segment
    rewrite(sandbox, name)
    set_properties(sandbox.session, str(name), {"ebbtide.rewrite.deleted.share": "0.01"})
    delete(sandbox, name, f"offset = {active}")
    assert find_deletions(load(sandbox.session, name)) == (0, 1, 0, [], [])


@pytest.mark.long
def test_no_table_keeps_a_vector_where_none_may_stay(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For engines that fail on one: of the batches too, and in active segments."""
    name, spark = TopicName(cluster, "t"), sandbox.session
    of_ten = [data_batch(offset, (f"k{offset}", "1"), at_ms=T0) for offset in range(10)]
    newer = [data_batch(10, ("k3", "2"), at_ms=T0)]
    active = [data_batch(11, ("a", "1"), ("b", "1"), at_ms=T0)]
    write_segments(tmp_path, {0: of_ten, 10: newer, 11: active})
    ingest(spark, str(name), tmp_path, T0 + DAY_MS)
    compacts = {"kafka.cleanup.policy": "compact", "kafka.min.cleanable.dirty.ratio": "0"}
    set_properties(spark, str(name), compacts | ANY)
    mark(spark, str(name))
    clean(spark, str(name), T0 + DAY_MS)
    delete(sandbox, name, "offset = 11")
    assert (vectors(sandbox, name.records_table), vectors(sandbox, name.batches_table)) == (2, 1)
    records, headers = rows_of(sandbox, name), spark.table(name.batches_table).collect()
    monkeypatch.setattr(rewriting, "FILES_A_RUN", 1)
    execute_expire_snapshots(load(spark, name))
    assert (vectors(sandbox, name.records_table), vectors(sandbox, name.batches_table)) == (0, 0)
    assert rows_of(sandbox, name) == records
    assert sorted(spark.table(name.batches_table).collect()) == sorted(headers)


@pytest.mark.long
def test_what_another_deletes_meanwhile_is_not_undone(
    sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = rewriting.prepare_rewrite

    def prepared_before_a_delete(*args: Any, **named: Any) -> Any:
        commit = prepare(*args, **named)
        delete(sandbox, name, "offset = 39")
        return commit

    monkeypatch.setattr(rewriting, "prepare_rewrite", prepared_before_a_delete)
    with pytest.raises(CommitConflictError):
        rewrite(sandbox, name)
    assert 39 not in {row["offset"] for row in rows_of(sandbox, name)}


@pytest.mark.long
def test_only_so_many_files_a_run_the_worst_first(
    sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_count = (
        f"SELECT referenced_data_file FROM {name.records_table}.delete_files "
        "ORDER BY record_count DESC"
    )
    set_properties(sandbox.session, str(name), {"ebbtide.rewrite.deleted.share": "0.01"})
    due = find_deletions(load(sandbox.session, name)).due
    assert [file.path for file in due] == [
        row["referenced_data_file"] for row in sandbox.session.sql(by_count).collect()
    ]
    monkeypatch.setattr(rewriting, "FILES_A_RUN", 1)
    assert rewrite(sandbox, name) == 1
    deletions = find_deletions(load(sandbox.session, name))
    assert deletions.due == due[1:]
    assert deletions.rows == deletions.rows_due > 0


@pytest.mark.long
def test_a_deletion_vector_for_a_file_that_is_gone_is_put_away(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    rewrite(sandbox, name)
    _add_vector_for(sandbox, name, "gone.parquet")
    before = rows_of(sandbox, name)
    deletions = find_deletions(load(spark, name))
    assert (deletions.dangling, deletions.rows) == (["gone.parquet"], 0)
    rewrite(sandbox, name)
    assert find_deletions(load(spark, name)) == (0, 0, 0, [], [])
    assert rows_of(sandbox, name) == before


def _add_vector_for(sandbox: LakeSandbox, name: TopicName, path: str) -> None:
    """As an engine leaves it that replaces a data file and does not look for its vector."""
    spark = sandbox.session
    table = java_table(spark, name.records_table)
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
