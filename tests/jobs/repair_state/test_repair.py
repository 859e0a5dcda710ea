"""The ways out for a topic that somebody else has changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ForeignChangeError, RequestError, StateError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.topics import Topic, load
from ebbtide.jobs import repair_state
from ebbtide.jobs.clean_log import lost_round
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.erase_keys.stage import erase_keys
from ebbtide.jobs.repair_state import RepairPlan, execute_repair, plan_repair
from ebbtide.jobs.unfinished import check_readable
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure
from ebbtide.state.rebuilding import RepairInput
from ebbtide.state.topic_state import (
    APPEND,
    CHECKSUM,
    COPIED,
    COPIED_SLICE,
    FILES_SLICE,
    MERGE,
    REPLICATION,
    ROUND,
    SLICE,
    UNDO,
)
from tests.iceberg.test_foreign_changes import NIGHT_MS, roll_back
from tests.iceberg.test_foreign_changes import topic as topic
from tests.lake_sandbox import LakeSandbox, as_ebbtide
from tests.tables.contents import contents
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import view_of_table
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark, set_properties
from tests.tables.other_tools import expire_all, rewrite_files, tables_of
from tests.tables.partition_log import batch, write_segments

NOBODY_KNOWS = RepairInput()


def repair(
    spark: SparkSession, name: TopicName, *, keeps: bool = False, asked: RepairInput = NOBODY_KNOWS
) -> RepairPlan:
    plan = plan_repair(spark, name, NIGHT_MS, asked, keeps=keeps)
    execute_repair(plan)
    assert_counted(spark, name)
    return plan


def snapshots(spark: SparkSession, name: TopicName) -> list[int]:
    tables = (java_table(spark, table) for table in tables_of(name))
    return [int(table.currentSnapshot().snapshotId()) for table in tables]


@pytest.mark.long
def test_a_topic_that_nobody_changed_is_left_alone(sandbox: LakeSandbox, topic: TopicName) -> None:
    before = contents(sandbox.session, topic)
    plan = repair(sandbox.session, topic)
    assert "there is nothing to repair" in plan.outcome().topic["note"]
    assert contents(sandbox.session, topic) == before


CHANGES = {
    "records removed": "DELETE FROM {records} WHERE segment = 3",
    "batches removed": "DELETE FROM {batches} WHERE segment = 3",
    "records added": "INSERT INTO {records} SELECT * FROM {records}",
    "records changed": "UPDATE {records} SET value = X'00' WHERE offset = 5",
}


@pytest.mark.long(but="records removed")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_taken_back(sandbox: LakeSandbox, topic: TopicName, change: str) -> None:
    spark = sandbox.session
    before = contents(spark, topic)
    names = {"records": topic.records_table, "batches": topic.batches_table}
    spark.sql(CHANGES[change].format(**names))
    rewrite_files(spark, tables_of(topic))
    planned = plan_repair(spark, topic, NIGHT_MS, NOBODY_KNOWS, keeps=False).outcome()
    assert "by spark" in planned.topic["foreign_changes"]
    assert planned.topic["method"] == "take back"
    with pytest.raises(ForeignChangeError):
        count_own(load(spark, topic))
    repair(spark, topic)
    assert contents(spark, topic) == before


@pytest.mark.long
def test_a_table_that_was_rolled_back_comes_back(sandbox: LakeSandbox, topic: TopicName) -> None:
    spark = sandbox.session
    old = snapshots(spark, topic)
    clean(spark, str(topic), NIGHT_MS)
    assert_counted(spark, topic)
    before = contents(spark, topic)
    roll_back(spark, topic.records_table, old[0])
    repair(spark, topic)
    assert contents(spark, topic) == before


@pytest.mark.parametrize("step", [Step.REPAIR_RECORDS, Step.REPAIR_BATCHES])
def test_a_killed_repair_is_done_by_the_next(
    sandbox: LakeSandbox, topic: TopicName, kill_at: list[Step], step: Step
) -> None:
    spark = sandbox.session
    before = contents(spark, topic)
    for table in tables_of(topic):
        spark.sql(f"DELETE FROM {table} WHERE segment = 3")
    kill_at.append(step)
    with pytest.raises(KilledError):
        repair(spark, topic)
    repair(spark, topic)
    assert contents(spark, topic) == before


@pytest.mark.long
def test_what_is_expired_cannot_be_taken_back(sandbox: LakeSandbox, topic: TopicName) -> None:
    spark = sandbox.session
    spark.sql(f"DELETE FROM {topic.records_table} WHERE segment = 3")
    expire_all(spark, tables_of(topic))
    with pytest.raises(
        RequestError,
        match=r"is expired\. Nothing was changed\. Repair the topic with keep_changes",
    ):
        repair(spark, topic)


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Step.REPAIR_BATCHES, Step.HEADERS_REBUILT], id="killed early"),
        pytest.param([Step.REPAIR_STATE], id="killed late"),
    ],
)
def test_rows_that_are_gone_for_good_are_told_of_no_more(
    sandbox: LakeSandbox, topic: TopicName, kill_at: list[Step], steps: list[Step]
) -> None:
    """Records 3 and 4 are gone, batch 5 is, and somebody has appended what was there already."""
    spark = sandbox.session
    records, batches = tables_of(topic)
    spark.sql(f"INSERT INTO {records} SELECT * FROM {records} WHERE offset = 9")
    spark.sql(f"INSERT INTO {batches} SELECT * FROM {batches} WHERE base_offset = 9")
    spark.sql(f"DELETE FROM {records} WHERE segment = 3")
    spark.sql(f"DELETE FROM {batches} WHERE segment = 5")
    expire_all(spark, tables_of(topic))
    for step in steps:
        kill_at.append(step)
        with pytest.raises(KilledError):
            repair(spark, topic, keeps=True)
    repair(spark, topic, keeps=True)
    after = contents(spark, topic)
    offsets = [row["offset"] for row in after.records]
    assert offsets == [0, 1, 2, *range(7, 15)]
    assert [row["base_offset"] for row in after.batches] == [0, 3, 7, 9, 11, 13]
    assert [row["record_count"] for row in after.batches] == [3, 0, 2, 2, 2, 2]
    state = after.states[0]
    assert (state.log_start_offset, state.log_end_offset, state.first_dirty_offset) == (0, 15, 0)
    mark(spark, str(topic))
    clean(spark, str(topic), NIGHT_MS + HOUR_MS)
    assert_counted(spark, topic)


@pytest.mark.long
def test_rows_that_jobs_of_ebbtide_doubled_are_there_once(
    sandbox: LakeSandbox, topic: TopicName
) -> None:
    """Two ingests at a time did that before each claimed its work."""
    spark = sandbox.session
    before = contents(spark, topic)
    with as_ebbtide(spark):
        for table in tables_of(topic):
            spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE segment > 3")
    count_own(load(spark, topic))
    assert repair(spark, topic).what == []
    doubled = len(contents(spark, topic).records) - len(before.records)
    plan = repair(spark, topic, keeps=True)
    assert plan.what[0] == f"records: {doubled} duplicate rows in partition 0"
    after = contents(spark, topic)
    assert (after.records, after.batches) == (before.records, before.batches)
    assert repair(spark, topic, keeps=True).what == []


@pytest.mark.long
def test_a_repair_tells_what_it_removes(sandbox: LakeSandbox, topic: TopicName) -> None:
    """A copy lies in a file of its own, which leaves as a whole."""
    spark = sandbox.session
    for table in tables_of(topic):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE segment = 9")
    files_before = [files(spark, table) for table in tables_of(topic)]
    plan = plan_repair(spark, topic, NIGHT_MS, NOBODY_KNOWS, keeps=True)
    outcome = execute_repair(plan)
    files_gone = [
        before - files(spark, table)
        for before, table in zip(files_before, tables_of(topic), strict=True)
    ]
    assert [len(gone) for gone in files_gone] == [1, 1]
    assert (outcome.rows_removed, outcome.files_removed) == (2, 2)
    assert outcome.snapshot_ids == snapshots(spark, topic)


def files(spark: SparkSession, table: str) -> set[str]:
    return {row["file_path"] for row in spark.table(f"{table}.data_files").collect()}


@pytest.mark.long
def test_superseded_records_that_came_back_are_cleaned_again(
    sandbox: LakeSandbox, topic: TopicName
) -> None:
    spark = sandbox.session
    old = snapshots(spark, topic)
    clean(spark, str(topic), NIGHT_MS)
    assert_counted(spark, topic)
    cleaned = [row["offset"] for row in contents(spark, topic).records]
    roll_back(spark, topic.records_table, old[0])
    repair(spark, topic, keeps=True)
    assert len(contents(spark, topic).records) > len(cleaned)
    mark(spark, str(topic))
    clean(spark, str(topic), NIGHT_MS + HOUR_MS)
    assert [row["offset"] for row in contents(spark, topic).records] == cleaned


@pytest.mark.long
def test_erased_records_that_came_back_go_at_once(sandbox: LakeSandbox, topic: TopicName) -> None:
    """Only the tombstone, which came back too, waits for the next round."""
    spark = sandbox.session
    old = snapshots(spark, topic)
    set_properties(spark, str(topic), {"ebbtide.source": None})
    for number in range(2):
        now_ms = NIGHT_MS + number * DAY_MS
        erasure = Erasure(
            run_id=f"run {number}",
            now_ms=now_ms,
            requested_by="somebody",
            reason="asked for",
            keys=(b"b",),
            appends=True,
        )
        erase_keys(spark, topic, erasure)
        clean(spark, str(topic), now_ms)
    for now_ms in (NIGHT_MS + 4 * DAY_MS, NIGHT_MS + 8 * DAY_MS):
        clean(spark, str(topic), now_ms)
    assert_counted(spark, topic)
    roll_back(spark, topic.records_table, old[0])
    plan = repair(spark, topic, keeps=True)
    assert plan.removals["records"].by_reason[0]["erased"] >= 1
    assert [r["value"] for r in contents(spark, topic).records if r["key"] == b"b"] == [None]
    mark(spark, str(topic))
    clean(spark, str(topic), NIGHT_MS + 9 * DAY_MS)
    assert b"b" not in [row["key"] for row in contents(spark, topic).records]


@pytest.mark.long
@pytest.mark.parametrize("how", ["edited", "dropped"])
def test_a_lost_state_is_rebuilt(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path, how: str
) -> None:
    spark = sandbox.session
    clean(spark, str(topic), NIGHT_MS)
    before = load(spark, topic)
    if how == "edited":
        spark.sql(
            f"ALTER TABLE {topic.state_table} SET TBLPROPERTIES "
            "('ebbtide.state.0.log-start-offset' = '9')"
        )
    else:
        spark.sql(f"DROP TABLE {topic.state_table}")
    with pytest.raises(StateError, match="repair_state"):
        load(spark, topic)
    asked = RepairInput(max_event_times_ms={0: 77})
    repair(spark, topic, keeps=how == "edited", asked=asked)
    after, told = load(spark, topic).partitions[0], before.partitions[0]
    assert (after.log_start_offset, after.log_end_offset) == (0, told.log_end_offset)
    assert {base for base, _ in after.segments} >= {base for base, _ in told.segments}
    assert after.max_event_time_ms == max(77, told.max_event_time_ms or -1)
    assert load(spark, topic).config == before.config
    assert ROUND not in load(spark, topic).properties
    assert CHECKSUM in dict(java_table(spark, topic.state_table).properties())
    seen = view_of_table(spark, topic, 0)
    clean(spark, str(topic), NIGHT_MS + HOUR_MS)
    assert view_of_table(spark, topic, 0) == seen
    ingest(spark, str(topic), tmp_path / "log", NIGHT_MS)


# Properties as another version of ebbtide may have sealed them; None where it had none.
UNREADABLE: dict[str, dict[str, str | None]] = {
    "a clock beyond 64 bits": {"ebbtide.state.0.next-expiry-ms": str(2**63)},
    "a clock that is missing": {"ebbtide.state.0.expiry-basis": None},
    "an end beyond 64 bits": {"ebbtide.state.0.log-end-offset": str(2**63)},
    "segments": {"ebbtide.state.0.segments": "[]"},
    "a partition": {"ebbtide.state.x.segments": "[[0,0]]"},
    "a round": {ROUND: "{}"},
    "counted rows": {"ebbtide.rows.records.0": "[[1]]"},
}
OFFSETS_ARE_LOST = {"an end beyond 64 bits", "segments"}


@pytest.mark.long(but="a clock beyond 64 bits")
@pytest.mark.parametrize("what", UNREADABLE)
def test_a_sealed_state_that_cannot_be_read_is_rebuilt(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path, what: str
) -> None:
    spark = sandbox.session
    execute_delete(plan_delete(load(spark, topic), {0: 4}, NIGHT_MS))
    before = load(spark, topic)
    told = before.partitions[0]
    # The batches table still has the first batch, whose records were deleted.
    start = 0 if what in OFFSETS_ARE_LOST else 4
    set_properties(spark, str(topic), UNREADABLE[what])
    with pytest.raises(StateError, match="repair_state rebuilds the state"):
        check_readable(load(spark, topic))
    plan = repair(spark, topic)
    assert (plan.way, len(plan.what)) == ("keep", 1)
    assert next(iter(UNREADABLE[what])) in plan.what[0]
    after = load(spark, topic)
    partition = after.partitions[0]
    assert (partition.log_start_offset, partition.log_end_offset) == (start, told.log_end_offset)
    assert (partition.cleaned_at_ms, partition.next_expiry_ms) == (-1, 0)
    assert after.config == before.config
    assert ROUND not in after.properties
    mark(spark, str(topic))
    clean(spark, str(topic), NIGHT_MS + HOUR_MS)
    ingest(spark, str(topic), tmp_path / "log", NIGHT_MS)
    assert repair(spark, topic).what == []


@pytest.mark.long
def test_changes_of_others_show_in_a_state_that_cannot_be_read(
    sandbox: LakeSandbox, topic: TopicName
) -> None:
    """Its repair accepts them, so whoever approves it must see them."""
    spark = sandbox.session
    spark.sql(f"DELETE FROM {topic.records_table} WHERE segment = 3")
    set_properties(spark, str(topic), UNREADABLE["a clock beyond 64 bits"])
    unread, changed = repair(spark, topic).what
    assert "ebbtide.state.0.next-expiry-ms" in unread
    assert changed.startswith("records: ")
    assert [row["record_count"] for row in contents(spark, topic).batches][1] == 0


JSON_PROPERTIES = {ROUND, MERGE, APPEND, UNDO, SLICE, REPLICATION, COPIED, COPIED_SLICE}
JSON_PROPERTIES |= {FILES_SLICE, "ebbtide.seen.records", "ebbtide.rows.batches.0"}


@pytest.mark.parametrize("name", sorted(JSON_PROPERTIES))
def test_a_repair_finds_each_property_that_cannot_be_read(name: str) -> None:
    topic: Any = Topic(TopicName("c", "t"), {name: '{"a":'}, None)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=f"{re.escape(name)}.*repair_state rebuilds the state"):
        check_readable(topic)


@pytest.fixture
def large(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """Three segments of forty records in batches of ten."""
    batches = {base: [batch(base + i, 10) for i in range(0, 40, 10)] for base in (0, 40, 80)}
    source = write_segments(tmp_path / "large", batches)
    ingest(sandbox.session, f"{cluster}_large.t", source, NIGHT_MS)
    return TopicName(f"{cluster}_large", "t")


@pytest.mark.long
def test_the_driver_gets_a_row_a_file_however_many_rows_go(
    sandbox: LakeSandbox, large: TopicName, driver_rows: list[int]
) -> None:
    spark = sandbox.session
    before = contents(spark, large).records
    for table in tables_of(large):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    driver_rows.clear()
    plan = plan_repair(spark, large, NIGHT_MS, NOBODY_KNOWS, keeps=True)
    execute_repair(plan)
    assert max(driver_rows) <= 2 * 3  # counts of rows by segment, and rows of new files
    assert plan.removals["records"].by_reason == {0: {"copies": 120}}
    assert contents(spark, large).records == before


@pytest.mark.long
def test_headers_are_rebuilt_a_few_segments_at_a_time(
    sandbox: LakeSandbox,
    large: TopicName,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = sandbox.session
    spark.sql(f"DELETE FROM {large.records_table} WHERE offset % 4 = 1")
    rebuilt: list[int] = []
    rebuild_headers = repair_state.rebuild_headers

    def rebuild(topic: Topic, changes: pa.Table) -> int:
        rebuilt.append(rebuild_headers(topic, changes))
        return rebuilt[-1]

    monkeypatch.setattr(repair_state, "rebuild_headers", rebuild)
    monkeypatch.setattr(lost_round, "MAX_HEADERS", 4)
    repair(spark, large, keeps=True)
    assert rebuilt == [4, 4, 4]
    counts = [row["record_count"] for row in contents(spark, large).batches]
    assert counts == [7, 8, 7, 8] * 3
