"""A commit that the catalog made and then refused, as behind a gateway that repeats requests.

Here a trigger of the catalog's SQLite makes the change and then lets the statement change no row,
which Iceberg takes for a lost race.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.file_changes import delete_segments
from ebbtide.iceberg.file_commits import RowDelta, prepare_row_delta
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.settings.names import TopicName
from tests.iceberg.test_file_commits import EVERYTHING, deletions, offsets, planned
from tests.iceberg.test_file_commits import table as table
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import ingest


def answer_falsely_once(sandbox: LakeSandbox, table: str) -> None:
    """Make the next commit to the table, and answer that another writer was faster."""
    _, namespace, name = table.split(".")
    key = f"table_namespace = '{namespace}' AND table_name = '{name}'"
    with closing(sqlite3.connect(sandbox.home / "lake" / "catalog.db")) as catalog:
        catalog.execute("CREATE TABLE IF NOT EXISTS falsely (left INT)")
        catalog.execute("DELETE FROM falsely")
        catalog.execute("INSERT INTO falsely VALUES (1)")
        catalog.execute("DROP TRIGGER IF EXISTS answers_falsely")
        catalog.execute(
            "CREATE TRIGGER answers_falsely BEFORE UPDATE ON iceberg_tables "
            f"WHEN OLD.table_namespace = '{namespace}' AND OLD.table_name = '{name}' "
            "AND (SELECT count(*) FROM falsely) > 0 BEGIN "
            "DELETE FROM falsely; "
            "UPDATE iceberg_tables SET metadata_location = NEW.metadata_location, "
            f"previous_metadata_location = NEW.previous_metadata_location WHERE {key}; "
            "SELECT RAISE(IGNORE); END"
        )
        catalog.commit()


def files_read(spark: SparkSession, table: str) -> int:
    """Read each manifest of the newest snapshot, so that none may be missing."""
    return int(spark.table(f"{table}.all_entries").count())


def test_a_deletion_that_was_made_counts_as_made(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    commit = prepare_row_delta(
        spark, table, EVERYTHING, RowDelta(deletions(planned(spark, table), [3, 12])), {}
    )
    answer_falsely_once(sandbox, table)
    assert commit() == current_snapshot(spark, table)
    java_table(spark, table).refresh()
    assert offsets(spark, table) == [o for o in range(20) if o not in (3, 12)]
    assert files_read(spark, table)


def test_whole_segments_that_were_dropped_count_as_dropped(
    sandbox: LakeSandbox, table: str
) -> None:
    spark, snapshot = sandbox.session, current_snapshot(sandbox.session, table)
    assert snapshot is not None
    answer_falsely_once(sandbox, table)
    dropped = delete_segments(spark, table, snapshot, {0: [0]}, Step.TRUNCATE_RECORDS, {})
    assert dropped == current_snapshot(spark, table)
    assert offsets(spark, table) == []
    assert files_read(spark, table)


def test_rows_that_were_appended_are_there_once(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    """The next ingest finds nothing to do."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    write_log(tmp_path / "log", "t", [[Message("a", "1")]], {})
    ingest(spark, str(name), tmp_path / "log", FIRST_MS)
    active = tmp_path / "log" / "t-0" / f"{0:020}.log"
    for end, table_name in enumerate((name.records_table, name.batches_table), 1):
        active.write_bytes(active.read_bytes() + batch_of([Message("b", "1", end)], end))
        answer_falsely_once(sandbox, table_name.replace("`", ""))
        ingest(spark, str(name), tmp_path / "log", FIRST_MS)
        assert spark.table(name.records_table).count() == end + 1
        assert files_read(spark, table_name)
        ingest(spark, str(name), tmp_path / "log", FIRST_MS)
        assert spark.table(name.records_table).count() == end + 1
