"""Changed batch rows: few are deleted where they lie, many have their segment written anew."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.rewritten_batches import RowChanges, changes_of
from ebbtide.errors import CommitConflictError, SafetyError
from ebbtide.iceberg.batch_rows import MAX_FILES, prepare_changes
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import in_segments
from ebbtide.iceberg.history import rows_changed
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.headers import read_headers

ROWS = 40


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """Forty batches of one record in one file."""
    sandbox.topic(f"{cluster}.t")
    sandbox.batches(f"{cluster}.t", [(0, offset, 0, offset) for offset in range(ROWS)])
    return TopicName.parse(f"{cluster}.t").batches_table


def headers(spark: SparkSession, table: str) -> BatchHeaders:
    return read_headers(spark, table, [0])[0]


def change(
    spark: SparkSession, table: str, removed: Sequence[int] = (), grown: Sequence[int] = ()
) -> None:
    """Remove batches, and give others a size of 7 bytes."""
    prepared = prepare_changes(spark, table, changes(spark, table, removed, grown), {})
    snapshot = prepared()
    assert rows_changed(open_table(spark, table), [snapshot]).get((0, 0), 0) == -len(removed)


def changes(
    spark: SparkSession, table: str, removed: Sequence[int], grown: Sequence[int]
) -> RowChanges:
    changed = [
        (batch, None if batch.base_offset in removed else batch._replace(size_bytes=7), -1)
        for batch in headers(spark, table).batches()
        if batch.base_offset in (*removed, *grown)
    ]
    return RowChanges.of(0, 0, changes_of(changed))


def files(spark: SparkSession, table: str) -> tuple[int, int]:
    """How many data files and deletion vectors there are."""
    counts = [
        spark.sql(f"SELECT * FROM {table}.{kind}").count()
        for kind in ("data_files", "delete_files")
    ]
    return counts[0], counts[1]


def left(spark: SparkSession, table: str) -> dict[int, int]:
    """Sizes by base offset, as Spark and as ebbtide read them."""
    rows = spark.sql(f"SELECT base_offset, size_bytes FROM {table} ORDER BY base_offset").collect()
    ours = {batch.base_offset: batch.size_bytes for batch in headers(spark, table).batches()}
    assert ours == {row["base_offset"]: row["size_bytes"] for row in rows}
    return ours


def test_a_few_batches_go_where_they_lie(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    change(spark, table, removed=[3, 8])
    change(spark, table, removed=[4])
    assert files(spark, table) == (1, 1)
    assert left(spark, table) == {o: 100 for o in range(ROWS) if o not in (3, 4, 8)}


@pytest.mark.long
def test_a_few_changed_batches_lie_beside_the_others(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    spark.sql(f"UPDATE {table} SET crc = 5")
    change(spark, table, removed=[3], grown=[20, 8])
    assert files(spark, table) == (2, 1)
    assert left(spark, table) == {
        offset: 7 if offset in (8, 20) else 100 for offset in range(ROWS) if offset != 3
    }
    without = spark.sql(f"SELECT base_offset FROM {table} WHERE crc IS NULL ORDER BY 1").collect()
    assert [row["base_offset"] for row in without] == [8, 20]
    # A row that was moved once is found where it lies now.
    change(spark, table, removed=[8])
    assert files(spark, table)[0] == 2
    assert 8 not in left(spark, table)


@pytest.mark.long(but="many removed")
@pytest.mark.parametrize(
    ("removed", "grown"),
    [
        pytest.param(range(0, 30, 2), (), id="many removed"),
        pytest.param((), range(15), id="many changed"),
        pytest.param((ROWS - 1,), (), id="the last one, by whose bound a log's end is told"),
    ],
)
def test_a_segment_is_written_anew(
    sandbox: LakeSandbox, table: str, removed: Sequence[int], grown: Sequence[int]
) -> None:
    spark = sandbox.session
    change(spark, table, removed=[31])
    change(spark, table, removed, grown)
    assert files(spark, table) == (1, 0)
    assert left(spark, table) == {
        offset: 7 if offset in grown else 100
        for offset in range(ROWS)
        if offset not in (31, *removed)
    }


@pytest.mark.long
def test_what_goes_bit_by_bit_is_written_anew_at_last(sandbox: LakeSandbox, table: str) -> None:
    """Rows that are deleted already count too, and so do the files of a segment."""
    spark = sandbox.session
    seen = []
    for offset in range(2 * MAX_FILES):
        change(spark, table, grown=[offset])
        seen.append(files(spark, table))
    assert max(seen) == (MAX_FILES, 1)
    assert (1, 0) in seen
    for offset in range(2 * MAX_FILES, ROWS - 1):
        change(spark, table, removed=[offset])
        seen.append(files(spark, table))
    assert seen.count((1, 0)) > 3


def test_a_segment_without_batches_has_no_file(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    change(spark, table, removed=[3])
    change(spark, table, removed=[offset for offset in range(ROWS) if offset != 3])
    assert files(spark, table) == (0, 0)


@pytest.mark.parametrize("removed", [[3], list(range(20))], ids=["in place", "anew"])
def test_batches_that_another_writer_deletes_meanwhile_are_a_conflict(
    sandbox: LakeSandbox, table: str, removed: list[int]
) -> None:
    spark = sandbox.session
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    prepared = prepare_changes(spark, table, changes(spark, table, removed, ()), {})
    spark.sql(f"DELETE FROM {table} WHERE base_offset = 30")
    with pytest.raises(CommitConflictError):
        commit(Step.ROUND_BATCHES, prepared)
    assert set(left(spark, table)) == set(range(ROWS)) - {30}


def test_a_batch_that_is_gone_is_named(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    planned = changes(spark, table, [3, 12], ())
    spark.sql(f"DELETE FROM {table} WHERE base_offset = 12")
    with pytest.raises(SafetyError, match="expected the batch at offset 12 of partition 0"):
        prepare_changes(spark, table, planned, {})


def test_only_the_rows_of_a_segment_are_sent_to_its_task() -> None:
    count = 10_000
    rows = pa.table({"partition": [0] * count, "segment": range(count), "offset": range(count)})
    cut_out = in_segments(rows, "offset")[0, 7]
    sent = pickle.dumps(cut_out)
    assert len(sent) < 2_000
    assert pickle.loads(sent).rows == cut_out.rows
    assert cut_out.rows["offset"].to_pylist() == [7]
