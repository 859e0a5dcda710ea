"""Holds on a topic whose table others write: what ebbtide removes from it is copied before."""

from __future__ import annotations

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.lake.reader import open_lake
from ebbtide.layouts.layout import Choices
from ebbtide.ledger.holds import Kind
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.settings.names import TopicName
from ebbtide.specs.hold_request import HOLD_KEYS
from jobs import abandon_table, clean_log, expire_snapshots, hold_records
from tests.jobs.hold_records.builders import WHY, HeldTopic
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import COMPACTED, Record, adopt, append, clean, live, spark_table
from tests.tables.fixtures import KilledError
from tests.tables.nights import at
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long

NOW_MS = 10_000


@pytest.fixture
def topic(sandbox: LakeSandbox, jobs: Jobs, cluster: str) -> HeldTopic:
    name = TopicName(cluster[-30:], "t")
    spark_table(sandbox.session, str(name))
    append(sandbox.session, str(name), [Record(n, key) for n, key in enumerate("abac")])
    adopt(sandbox.session, str(name), {**COMPACTED, "kafka.cleanup.policy": "compact,delete"})
    return HeldTopic(sandbox, jobs, name, NOW_MS)


def test_what_jobs_remove_is_kept_with_all_of_its_columns(
    topic: HeldTopic, kill_at: list[Step]
) -> None:
    """By a round, by DeleteRecords and by retention; columns that come later are kept too."""
    hold = topic.hold()
    topic.hold("h-2", first_offset=1, end_offset=2)
    plan = topic.jobs.plan(clean_log, NOW_MS, *topic.arguments)
    assert plan.summary["copied_for_holds"] == {f"{hold}": 1}
    for step in (Step.HELD_TABLE, Step.HELD_ROWS, Step.ROUND_RECORDS):
        kill_at.append(step)
        with pytest.raises(KilledError):
            clean(topic.spark, str(topic.name), 10_000)
        assert live(topic.spark, str(topic.name)) == [0, 1, 2, 3]
    clean(topic.spark, str(topic.name), 10_000)
    assert live(topic.spark, str(topic.name)) == [1, 2, 3]
    assert topic.kept() == {"h-1": [0]}
    topic.spark.sql(
        f"ALTER TABLE {topic.name.records_table} ADD COLUMN more struct<a: int, b: string>"
    )
    topic.spark.sql(
        f"INSERT INTO {topic.name.records_table} VALUES ({_row(4, 'd')}, "
        "named_struct('a', 7, 'b', 'x'))"
    )
    assert topic.delete(p0=2) == ExitCode.DONE
    assert topic.jobs.last_run().topic_result["copied_for_holds"] == {
        "hold h-1 (case 7)": 1,
        "hold h-2 (case 7)": 1,
    }
    topic.set({"kafka.retention.ms": "1", "ebbtide.max.delete.ratio": "1"})
    execute_expire(plan_expire(topic.topic(), 100_000))
    assert live(topic.spark, str(topic.name)) == []
    assert topic.kept() == {"h-1": [0, 1, 2, 3, 4], "h-2": [1]}
    rows = topic.spark.sql(
        f"SELECT offset, key, row.key AS own, row.value, row.more.a FROM {topic.name.held_table} "
        "WHERE hold_id = 'h-1' ORDER BY offset"
    ).collect()
    assert [(bytes(r["key"]), bytes(r["own"]), bytes(r["value"])) for r in rows] == [
        (key.encode(), key.encode(), b"v") for key in "abacd"
    ]
    assert [r["a"] for r in rows] == [None, None, None, None, 7]


def _row(offset: int, key: str) -> str:
    return (
        f"cast('{key}' as binary), cast('v' as binary), 't', 0, {offset}L, "
        "timestamp_millis(2000), 0"
    )


def test_a_hold_takes_what_ebbtide_has_removed_from_snapshots(
    topic: HeldTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a column has another name by now; what others have deleted is out of its reach."""
    topic.spark.sql(f"DELETE FROM {topic.name.records_table} WHERE offset = 1")
    clean(topic.spark, str(topic.name), 10_000)
    assert live(topic.spark, str(topic.name)) == [2, 3]
    topic.spark.sql(f"ALTER TABLE {topic.name.records_table} RENAME COLUMN offset TO place")
    monkeypatch.setenv(HOLD_KEYS, "a\nb")
    row = topic.make()
    (hold_id,) = topic.kept()
    assert topic.kept() == {hold_id: [0]}
    refused = topic.fail(abandon_table).error
    assert "Nothing was abandoned. End the hold with hold_records first" in refused
    assert row.partitions[0]["covered"] == 1
    assert "not records that other tools delete from the table" in row.topic_result["note"]
    with open_lake() as lake:
        assert nothing_to_do("expire_snapshots", lake.topic(str(topic.name)), 0, lake) is None
    monkeypatch.delenv(HOLD_KEYS)
    topic.fail(hold_records, "--action", "end", "--hold", hold_id)
    topic.end(hold_id)
    assert topic.run(expire_snapshots).topic_result["held_rows_deleted"] == 1
    assert topic.kept() == {}


def test_keys_that_are_no_bytes_are_held_by_their_text_or_not_at_all(
    sandbox: LakeSandbox, jobs: Jobs, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = sandbox.session
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.`{cluster}`")
    monkeypatch.setenv(HOLD_KEYS, "12")
    columns = "`partition` int, offset bigint, timestamp timestamp, value string"
    choices = Choices("partition", "offset", "timestamp", "k", "value")
    for kind, key in (("bigint", "12L"), ("struct<id: int>", "named_struct('id', 12)")):
        name = TopicName(cluster, kind[:6])
        spark.sql(
            f"CREATE TABLE {name.records_table} (k {kind}, {columns}) USING iceberg "
            "TBLPROPERTIES ('format-version'='3')"
        )
        row = f"{key}, 0, 0L, timestamp_millis(1), ''"
        spark.sql(f"INSERT INTO {name.records_table} VALUES ({row})")
        adopt(spark, str(name), choices=choices)
        topic = HeldTopic(sandbox, jobs, name, NOW_MS)
        if kind == "bigint":
            assert topic.make().partitions[0]["covered"] == 1
    refused = topic.fail(hold_records, "--action", "make", *WHY)
    assert "expected keys of bytes, text or whole numbers" in refused.error


def test_a_time_that_no_column_holds_may_be_any(
    sandbox: LakeSandbox, jobs: Jobs, cluster: str
) -> None:
    """So a hold by event time covers its record, as it covers one without a time."""
    spark, name = sandbox.session, TopicName(cluster, "t")
    columns = "`partition` int, offset bigint, at bigint, k string, value string"
    spark_table(spark, str(name), columns=columns)
    times = [7, 2**63 - 1, 2**53 * 1000, -5, 2_000]
    rows = ", ".join(f"(0, {offset}, {ms}, 'a', 'v')" for offset, ms in enumerate(times))
    spark.sql(f"INSERT INTO {name.records_table} VALUES {rows}")
    adopt(spark, str(name), choices=Choices("partition", "offset", "at", "k", "value"))
    topic = HeldTopic(sandbox, jobs, name, NOW_MS)
    topic.hold(event_time_until=at(1_000))
    plan = topic.jobs.plan(clean_log, NOW_MS, *topic.arguments)
    assert list(plan.summary["copied_for_holds"].values()) == [4]
    clean(spark, str(name), NOW_MS)
    assert live(spark, str(name)) == [4]
    assert topic.kept() == {"h-1": [0, 1, 2, 3]}


def test_a_pause_lets_no_job_remove_anything(topic: HeldTopic) -> None:
    topic.hold("p-1", kind=Kind.PAUSE, partition=0)
    reason = clean(topic.spark, str(topic.name), 10_000).partitions[0]["reason"]
    assert reason == "hold p-1 (case 7) blocks removals until it is ended"
    topic.set({"kafka.retention.ms": "1", "ebbtide.max.delete.ratio": "1"})
    expired = execute_expire(plan_expire(topic.topic(), 100_000))
    assert expired.partitions[0]["note"] == reason
    assert topic.delete(p0=2) != ExitCode.DONE
    assert topic.jobs.last_run().partitions[0]["error_name"] == "POLICY_VIOLATION"
    assert live(topic.spark, str(topic.name)) == [0, 1, 2, 3]
