"""Deleting and replacing by file: what Spark then reads, and what another writer makes of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import OWN, Step, conflict_of
from ebbtide.iceberg.data_files import (
    DeletionVector,
    SegmentFiles,
    deletion_of,
    read_segment,
    write_rows,
)
from ebbtide.iceberg.file_changes import Deleted, delete_leaving, leaving_of
from ebbtide.iceberg.file_commits import Replacement, RowDelta, new_paths, prepare_row_delta
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.numbers import MAX_OFFSET
from tests.lake_sandbox import LakeSandbox

EVERYTHING = {0: MAX_OFFSET}


@pytest.fixture
def table(sandbox: LakeSandbox, cluster: str) -> str:
    """Twenty rows of one segment in two files, the later ones in the first."""
    name = f"lake.{cluster}.t"
    sandbox.session.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{cluster}")
    sandbox.session.sql(
        f"CREATE TABLE {name} (`partition` INT, segment BIGINT, offset BIGINT, text STRING) "
        "USING iceberg PARTITIONED BY (`partition`, segment) "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    for first in (10, 0):
        sandbox.session.sql(
            f"INSERT INTO {name} SELECT 0, 0L, id, concat('text ', id) "
            f"FROM range({first}, {first + 10}, 1, 1)"
        )
    return name


def offsets(spark: SparkSession, table: str) -> list[int]:
    return [row["offset"] for row in spark.sql(f"SELECT offset FROM {table} ORDER BY 1").collect()]


def planned(spark: SparkSession, table: str) -> SegmentFiles:
    snapshot = current_snapshot(spark, table)
    assert snapshot is not None
    (unit,) = plan_segments(spark, table, snapshot, EVERYTHING)
    return unit


def deletions(unit: SegmentFiles, gone: list[int]) -> list[DeletionVector]:
    """What deletes these offsets."""
    rows = read_segment(unit, ["offset"])
    is_gone = np.isin(rows.table["offset"].to_numpy(), gone)
    return [
        deletion_of(unit.store, file, rows.positions[is_gone & (rows.files == number)])
        for number, file in enumerate(unit.files)
        if np.any(is_gone & (rows.files == number))
    ]


def test_a_segment_is_read_in_offset_order_across_its_files(
    sandbox: LakeSandbox, table: str
) -> None:
    rows = read_segment(planned(sandbox.session, table), ["text", "offset"])
    assert rows.table["offset"].to_pylist() == list(range(20))
    assert rows.table["text"][3].as_py() == "text 3"


def test_deletions_add_up_to_one_vector_a_file(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    for gone in ([3, 12], [4, 13, 14], [0]):
        deleted = deletions(planned(spark, table), gone)
        prepare_row_delta(spark, table, EVERYTHING, RowDelta(deleted), {"said": "so"})()
    left = [o for o in range(20) if o not in (0, 3, 4, 12, 13, 14)]
    assert offsets(spark, table) == left
    assert read_segment(planned(spark, table), ["offset"]).table["offset"].to_pylist() == left
    files = spark.sql(f"SELECT record_count FROM {table}.delete_files ORDER BY 1").collect()
    assert [row["record_count"] for row in files] == [3, 3]
    summary = spark.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at").collect()
    assert summary[-1]["summary"]["said"] == "so"


def test_what_spark_deleted_stays_deleted(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    spark.sql(f"DELETE FROM {table} WHERE offset IN (2, 15)")
    deleted = deletions(planned(spark, table), [3, 16])
    prepare_row_delta(spark, table, EVERYTHING, RowDelta(deleted), {})()
    assert offsets(spark, table) == [o for o in range(20) if o not in (2, 3, 15, 16)]


def test_a_file_that_another_writer_deleted_from_is_a_conflict(
    sandbox: LakeSandbox, table: str
) -> None:
    spark = sandbox.session
    deleted = deletions(planned(spark, table), [3])
    spark.sql(f"DELETE FROM {table} WHERE offset = 4")
    with pytest.raises(
        CommitConflictError, match="another writer rewrote it or deleted rows from it"
    ):
        prepare_row_delta(spark, table, EVERYTHING, RowDelta(deleted), {})()
    assert 3 in offsets(spark, table)


def test_a_file_that_another_writer_rewrote_is_a_conflict(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    unit = planned(spark, table)
    deleted = deletions(unit, [3])
    snapshot = current_snapshot(spark, table)
    assert snapshot is not None
    _replace(spark, table, snapshot, unit)
    with pytest.raises(
        CommitConflictError, match="another writer rewrote it or deleted rows from it"
    ):
        prepare_row_delta(spark, table, EVERYTHING, RowDelta(deleted), {})()
    # Of two who replace the same file, the later one fails.
    with pytest.raises(
        CommitConflictError, match="another writer rewrote it or deleted rows from it"
    ):
        _replace(spark, table, snapshot, unit)


def test_a_replaced_file_is_read_like_the_old_one(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    snapshot = current_snapshot(spark, table)
    assert snapshot is not None
    before = spark.table(table).orderBy("offset").collect()
    _replace(spark, table, snapshot, planned(spark, table))
    assert spark.table(table).orderBy("offset").collect() == before
    (file,) = spark.sql(f"SELECT record_count, readable_metrics FROM {table}.files").collect()
    assert file["record_count"] == 20
    metrics = file["readable_metrics"]["offset"]
    assert (metrics["lower_bound"], metrics["upper_bound"]) == (0, 19)
    # Bounds and field ids are what pruning and projection go by.
    assert spark.sql(f"SELECT text FROM {table} WHERE offset = 7").collect()[0]["text"] == "text 7"


def test_a_file_of_ours_is_described_as_iceberg_describes_its_own(
    sandbox: LakeSandbox, cluster: str
) -> None:
    spark, table = sandbox.session, f"lake.{cluster}.described"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{cluster}")
    spark.sql(
        f"CREATE TABLE {table} (`partition` INT, segment BIGINT, offset BIGINT, number INT, "
        "at TIMESTAMP, text STRING, nothing BIGINT, tags ARRAY<STRUCT<name: STRING, size: INT>>) "
        "USING iceberg "
        "PARTITIONED BY (`partition`, segment) TBLPROPERTIES ('format-version' = '3')"
    )
    spark.sql(
        f"INSERT INTO {table} SELECT 0, 0L, id, CAST(IF(id = 3, NULL, id - 5) AS INT), "
        "timestamp_millis(-1000 * id), 'text', NULL, "
        "array(named_struct('name', 'a', 'size', 1), named_struct('name', NULL, 'size', 2)) "
        "FROM range(0, 10, 1, 1)"
    )
    spark_says = _described(spark, table)
    _replace(spark, table, current_snapshot(spark, table) or 0, planned(spark, table))
    we_say = _described(spark, table)
    assert we_say.keys() == spark_says.keys()
    for name, of_column in we_say.items():
        if name == "text":
            of_column |= {
                bound: spark_says[name][bound] for bound in ("lower_bound", "upper_bound")
            }
        assert of_column | {"column_size": 0} == spark_says[name] | {"column_size": 0}
        assert of_column["column_size"] > 0
    assert we_say["number"]["lower_bound"] == -5


def _described(spark: SparkSession, table: str) -> dict[str, dict[str, object]]:
    (file,) = spark.sql(f"SELECT readable_metrics FROM {table}.files").collect()
    return {name: metrics.asDict() for name, metrics in file["readable_metrics"].asDict().items()}


def delete_offsets(spark: SparkSession, table: str, gone: Iterable[int]) -> Deleted:
    unit = planned(spark, table)
    rows = read_segment(unit, ("offset",))
    leaves = np.isin(rows.table["offset"].to_numpy(), list(gone))
    return delete_leaving(spark, table, [leaving_of(unit, rows, leaves)], Step.TRUNCATE_RECORDS)


def test_a_segment_without_rows_left_has_no_file(sandbox: LakeSandbox, table: str) -> None:
    spark = sandbox.session
    snapshot = current_snapshot(spark, table)
    assert snapshot is not None
    unit = planned(spark, table)
    prepare_row_delta(spark, table, EVERYTHING, RowDelta(replaced=[Replacement(unit, None)]), {})()
    assert offsets(spark, table) == []


def test_a_file_is_not_dropped_when_rows_of_it_were_deleted_meanwhile(
    sandbox: LakeSandbox, table: str
) -> None:
    spark = sandbox.session
    unit = planned(spark, table)
    prepared = prepare_row_delta(spark, table, EVERYTHING, RowDelta(dropped=[unit]), {})
    delete_offsets(spark, table, [3])
    with pytest.raises(Py4JJavaError) as error:
        prepared()
    assert conflict_of(error.value)
    assert offsets(spark, table) == [n for n in range(20) if n != 3]


def _replace(spark: SparkSession, table: str, snapshot: int, unit: SegmentFiles) -> None:
    (path,) = new_paths(spark, table, [unit])
    write_rows(unit.store, path, read_segment(unit, None).table)
    prepare_row_delta(spark, table, EVERYTHING, RowDelta(replaced=[Replacement(unit, path)]), {})()


def test_a_file_of_which_all_rows_are_deleted_leaves_with_its_vector(
    sandbox: LakeSandbox, table: str
) -> None:
    spark = sandbox.session
    assert delete_offsets(spark, table, range(4)).files == []
    deleted = delete_offsets(spark, table, range(12))
    assert len(deleted.files) == 1
    assert offsets(spark, table) == list(range(12, 20))
    assert spark.table(f"{table}.data_files").count() == 1
    assert spark.table(f"{table}.delete_files").count() == 1
    summary = java_table(spark, table).snapshot(deleted.snapshot).summary()
    assert summary.get(OWN) == "true"


def test_rows_that_are_not_there_are_deleted_without_a_commit(
    sandbox: LakeSandbox, table: str
) -> None:
    before = current_snapshot(sandbox.session, table)
    assert delete_offsets(sandbox.session, table, []) == Deleted()
    assert current_snapshot(sandbox.session, table) == before


def test_more_files_take_no_more_calls_to_the_jvm(
    sandbox: LakeSandbox, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round on thousands of files would spend most of its time on such calls."""
    spark = sandbox.session
    spark.sql(
        f"INSERT INTO {table} SELECT CAST(id AS INT), 0L, id, 'text' FROM range(1, 40) "
        "UNION ALL SELECT CAST(id AS INT), 0L, id + 100, 'more' FROM range(1, 40)"
    )
    calls: list[str] = []
    client = spark.sparkContext._gateway._gateway_client
    send = type(client).send_command

    def sent(gateway_client: object, command: str, *more: object, **named: object) -> object:
        if not command.startswith("m\n"):  # an object that Python has no use for any more
            calls.append(command)
        return send(gateway_client, command, *more, **named)

    monkeypatch.setattr(type(client), "send_command", sent)

    def calls_for(partitions: range) -> int:
        ends = dict.fromkeys(partitions, MAX_OFFSET)
        calls.clear()
        units = plan_segments(spark, table, current_snapshot(spark, table) or 0, ends)
        assert len(units) == len(partitions)
        paths = new_paths(spark, table, units)
        half = len(units) // 2
        for unit, path in zip(units[:half], paths[:half], strict=True):
            write_rows(unit.store, path, read_segment(unit, None).table)
        replaced = [Replacement(*each) for each in zip(units[:half], paths[:half], strict=True)]
        one_row = [deletion_of(u.store, u.files[0], np.array([0])) for u in units[half:]]
        prepare_row_delta(spark, table, ends, RowDelta(one_row, replaced=replaced), {})()
        return len(calls)

    calls_for(range(37, 40))  # the first ones look for classes
    assert calls_for(range(1, 5)) == calls_for(range(5, 37))
