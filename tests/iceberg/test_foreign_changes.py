"""What others do to the rows of a topic is noticed; what only moves them is not minded."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError, ForeignChangeError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import check_unchanged, count_own
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import REMOVING
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError
from tests.tables.logs import Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, clean, expire, ingest, mark
from tests.tables.other_tools import expire_all, rewrite_files, rewrite_manifests, tables_of

NIGHT_MS = 1_000 * DAY_MS
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
SEGMENTS = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    *([Message("a", str(n)), Message(f"k{n}", "1")] for n in range(4)),
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1"), Message("e", "1")],
]


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A small compacted topic, ingested, marked and counted."""
    write_log(tmp_path / "log", "t", SEGMENTS, COMPACT)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    name = TopicName(cluster, "t")
    assert_counted(sandbox.session, name)
    return name


def notice(spark: SparkSession, name: TopicName) -> str:
    """What a job says that must not touch the topic."""
    with pytest.raises(ForeignChangeError) as stopped:
        count_own(load(spark, name))
    with pytest.raises(ForeignChangeError):
        check_unchanged(load(spark, name))
    return str(stopped.value)


@pytest.mark.long
def test_each_job_leaves_the_rows_counted(sandbox: LakeSandbox, topic: TopicName) -> None:
    spark = sandbox.session
    clean(spark, str(topic), NIGHT_MS)
    assert_counted(spark, topic)
    execute_delete(plan_delete(load(spark, topic), {0: 2}, NIGHT_MS))
    assert_counted(spark, topic)
    execute_delete(plan_delete(load(spark, topic), {0: 6}, NIGHT_MS))
    assert_counted(spark, topic)
    merge_segments(load(spark, topic), at_least=2)
    assert_counted(spark, topic)
    rewrite_files(spark, tables_of(topic))
    assert_counted(spark, topic)
    assert REMOVING not in load(spark, topic).properties


def test_looking_again_changes_nothing(sandbox: LakeSandbox, topic: TopicName) -> None:
    before = load(sandbox.session, topic).properties
    assert count_own(load(sandbox.session, topic)).properties == before


@pytest.mark.long(but="records appended")
@pytest.mark.parametrize(
    ("number", "is_cut", "change"),
    [
        pytest.param(0, False, "append", id="records appended"),
        pytest.param(0, False, "delete", id="records deleted"),
        pytest.param(0, False, "update", id="records updated"),
        pytest.param(1, False, "append", id="batches appended"),
        pytest.param(1, False, "delete", id="batches deleted"),
        # Whoever expires the snapshot too can only be told by the number of rows.
        pytest.param(0, True, "delete", id="records deleted and expired"),
        pytest.param(1, True, "append", id="batches appended and expired"),
    ],
)
def test_rows_that_others_change_stop_the_topic(
    sandbox: LakeSandbox, topic: TopicName, number: int, is_cut: bool, change: str
) -> None:
    spark, table = sandbox.session, tables_of(topic)[number]
    if change == "append":
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE segment = 3")
    elif change == "delete":
        spark.sql(f"DELETE FROM {table} WHERE segment = 3")
    else:
        spark.sql(f"UPDATE {table} SET size_bytes = 1 WHERE segment = 3")
    if is_cut:
        rewrite_files(spark, tables_of(topic))
        expire_all(spark, tables_of(topic))
    message = notice(spark, topic)
    assert f"{'records' if number == 0 else 'batches'}: " in message
    assert "repair_state" in message
    rows = 2 if number == 0 else 1
    if is_cut:
        word = "more" if change == "append" else "fewer"
        assert f"{rows} rows {word} than recorded in partition 0, segment 3" in message
    else:
        operations = {"append": "append", "update": "overwrite"}
        assert f"{operations.get(change, '')} by spark" in message.replace("delete by", " by")


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "is_cut"), [(0, False), (1, True)], ids=["records", "batches, the oldest expired"]
)
def test_a_table_that_was_rolled_back_stops_the_topic(
    sandbox: LakeSandbox, topic: TopicName, number: int, is_cut: bool
) -> None:
    """Also where as many rows are there as before, with older headers."""
    spark, table = sandbox.session, tables_of(topic)[number]
    rewrite_files(spark, tables_of(topic))
    before = [int(java_table(spark, t).currentSnapshot().snapshotId()) for t in tables_of(topic)]
    clean(spark, str(topic), NIGHT_MS)
    assert_counted(spark, topic)
    if is_cut:
        now = f"TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}'"
        spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table}', older_than => {now}, "
            "retain_last => 2)"
        )
    roll_back(spark, table, before[number])
    assert "rolled back from snapshot" in notice(spark, topic)


def roll_back(spark: SparkSession, table: str, snapshot: int) -> None:
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {snapshot})")


@pytest.mark.long
def test_who_takes_his_change_back_lets_the_topic_go_on(
    sandbox: LakeSandbox, topic: TopicName
) -> None:
    spark, table = sandbox.session, topic.records_table
    before = int(java_table(spark, table).currentSnapshot().snapshotId())
    spark.sql(f"DELETE FROM {table} WHERE segment = 3")
    notice(spark, topic)
    roll_back(spark, table, before)
    clean(spark, str(topic), NIGHT_MS)
    assert_counted(spark, topic)


@pytest.mark.long
def test_what_only_moves_rows_is_not_minded(sandbox: LakeSandbox, topic: TopicName) -> None:
    clean(sandbox.session, str(topic), NIGHT_MS)
    for tool in (rewrite_files, rewrite_manifests, expire_all):
        tool(sandbox.session, tables_of(topic))
        count_own(load(sandbox.session, topic))
    assert_counted(sandbox.session, topic)


def test_a_count_that_was_killed_is_done_by_the_next(
    sandbox: LakeSandbox, topic: TopicName, kill_at: list[Step]
) -> None:
    rewrite_files(sandbox.session, tables_of(topic))
    kill_at.append(Step.ROWS_COUNTED)
    with pytest.raises(KilledError):
        count_own(load(sandbox.session, topic))
    assert_counted(sandbox.session, topic)


@pytest.mark.long(but="DROP COLUMN key")
@pytest.mark.parametrize("change", ["RENAME COLUMN key TO name", "DROP COLUMN key"])
def test_a_column_that_somebody_renamed_or_dropped_is_named(
    sandbox: LakeSandbox, topic: TopicName, change: str
) -> None:
    spark = sandbox.session
    spark.sql(f"ALTER TABLE {topic.records_table} ADD COLUMN extra INT")
    count_own(load(spark, topic))  # one more does no harm
    spark.sql(f"ALTER TABLE {topic.records_table} {change}")
    with pytest.raises(ConfigurationError, match=r"expected columns 'key' in .*, found .*'extra'"):
        count_own(load(spark, topic))


# What each step of a job leaves uncounted when it is killed there, and the way to that step.
KILLED = {
    Step.INGEST_BATCHES: "ingest",
    Step.INGEST_STATE: "ingest",
    Step.ROUND_RECORDS_DONE: "clean",
    Step.ROUND_BATCHES: "clean",
    Step.ROUND_STATE: "clean",
    Step.ROWS_REMOVING: "delete",
    Step.TRUNCATE_RECORDS: "delete",
    Step.TRUNCATE_BATCHES: "expire",
    Step.MERGE_BATCHES: "merge",
    Step.MERGE_STATE: "merge",
}


@pytest.mark.long(but="rows_removing")
@pytest.mark.parametrize("step", KILLED)
def test_a_killed_job_is_no_stranger_whatever_tools_did_since(
    sandbox: LakeSandbox, topic: TopicName, tmp_path: Path, kill_at: list[Step], step: Step
) -> None:
    spark = sandbox.session
    write_log(tmp_path / "more", "t", [*SEGMENTS, [Message("f", "1")]], COMPACT)
    jobs: dict[str, Callable[[], object]] = {
        "ingest": lambda: ingest(spark, str(topic), tmp_path / "more", NIGHT_MS),
        "clean": lambda: clean(spark, str(topic), NIGHT_MS),
        "delete": lambda: execute_delete(plan_delete(load(spark, topic), {0: 6}, NIGHT_MS)),
        "expire": lambda: expire(spark, str(topic), NIGHT_MS),
        "merge": lambda: merge_segments(load(spark, topic), at_least=2),
    }
    job = jobs[KILLED[step]]
    if KILLED[step] == "merge":  # only what a round has made one segment is merged
        clean(spark, str(topic), NIGHT_MS)
    if KILLED[step] == "expire":  # the segments below the log start offset
        jobs["delete"]()
    kill_at.append(step)
    with pytest.raises(KilledError):
        job()
    rewrite_files(spark, tables_of(topic))
    expire_all(spark, tables_of(topic))
    assert_counted(spark, topic)
    job()
    assert_counted(spark, topic)
    expire(spark, str(topic), NIGHT_MS + HOUR_MS)
    assert_counted(spark, topic)
