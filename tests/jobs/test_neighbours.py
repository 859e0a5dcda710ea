"""One topic's fault stays its own: each job still does its work on the topic beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from ebbtide.commands.__main__ import main as ebbtide
from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.holds import HOLDS
from ebbtide.runner.holds import ACCEPTED
from ebbtide.settings.names import TopicName
from jobs import (
    clean_log,
    configure_topic,
    delete_records,
    expire_segments,
    expire_snapshots,
    hold_records,
    mark_tombstones,
)
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest
from tests.tables.planned import Jobs

pytestmark = pytest.mark.long

NOW_MS = FIRST_MS + 10 * DAY_MS
NOW = ("--now", at(NOW_MS).isoformat())
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": str(8 * DAY_MS),
    "segment.ms": "1",
}
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]
HOLD = {
    "hold_id": "'h-1'",
    "event": "'nonsense'",
    "at": "current_timestamp()",
    "by": "'x'",
    "run_id": "'r'",
    "kind": "'hold'",
}


def wrong_setting(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES ('kafka.retention.ms' = 'abc')")


def edited_state(spark: SparkSession, name: TopicName) -> None:
    spark.sql(
        f"ALTER TABLE {name.state_table} SET TBLPROPERTIES ('ebbtide.state.0.log-end-offset' = '3')"
    )


def dropped_state(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DROP TABLE {name.state_table}")


def dropped_records(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DROP TABLE {name.records_table}")


def removed_rows(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DELETE FROM {name.records_table} WHERE offset = 5")


def lost_metadata(spark: SparkSession, name: TopicName) -> None:
    for table in (name.records_table, name.batches_table, name.state_table):
        where = str(java_table(spark, table).operations().current().metadataFileLocation())
        Path(where.removeprefix("file:")).write_bytes(b"{")


def unreadable_hold(spark: SparkSession, name: TopicName) -> None:
    columns = {**HOLD, "topic": f"'{name}'"}
    spark.sql(
        f"INSERT INTO {HOLDS.in_catalog()} ({', '.join(f'`{column}`' for column in columns)}) "
        f"SELECT {', '.join(columns.values())}"
    )


FAULTS: tuple[Callable[[SparkSession, TopicName], None], ...] = (
    *(wrong_setting, edited_state, dropped_state, dropped_records),
    *(removed_rows, lost_metadata, unreadable_hold),
)


@pytest.fixture
def topics(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, jobs: Jobs
) -> Iterator[list[TopicName]]:
    """One that something happens to, and its neighbours before and after it."""
    names = [TopicName(cluster[5:35] + cluster[-20:], topic) for topic in ("a", "b", "c")]
    for name in names:
        write_log(tmp_path / "log", name.topic, MESSAGES, SETTINGS)
        ingest(sandbox.session, str(name), tmp_path / "log", NOW_MS)
    # The table of holds is there, and keeps nothing.
    why = ("--case-id", "7", "--reason", "asked", "--owner", "ann", "--requested-by", "ann")
    held = ("--action", "make", "--partition", "0", "--first-offset", "1000000")
    assert jobs.run(hold_records, "--topic", str(names[0]), *NOW, *held, *why) == ExitCode.DONE
    table = HOLDS.in_catalog()
    snapshot = current_snapshot(sandbox.session, table)
    yield names
    if current_snapshot(sandbox.session, table) != snapshot:
        # Each job that removes would stop at rows that nobody accepted to be gone.
        sandbox.session.sql(f"DELETE FROM {table} WHERE event = 'nonsense'")
        gone = current_snapshot(sandbox.session, table)
        sandbox.session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{ACCEPTED}' = '{gone}')")


def arguments(job: ModuleType, names: list[TopicName]) -> tuple[str, ...]:
    if job is delete_records:
        partitions = [{"partition": 0, "offset": 5}]
        asked = [{"topic": str(name), "partitions": partitions} for name in names]
        return ("--request", json.dumps({"topics": asked}), *NOW)
    more: dict[ModuleType, tuple[str, ...]] = {
        configure_topic: ("--set", "ebbtide.max.delete.ratio=1"),
    }
    of_topics = [word for name in names for word in ("--topic", str(name))]
    return (*of_topics, *NOW, *more.get(job, ()))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_job_goes_on_with_the_topics_beside_it(
    sandbox: LakeSandbox,
    jobs: Jobs,
    topics: list[TopicName],
    fault: Callable[[SparkSession, TopicName], None],
) -> None:
    spark = sandbox.session
    before, faulty, after = topics
    fault(spark, faulty)
    order = (
        *(configure_topic, mark_tombstones, clean_log, expire_segments),
        *(delete_records, expire_snapshots),
    )
    for job in order:
        jobs.run(job, *arguments(job, topics))
        with open_lake() as lake:
            rows = {row.topic: row for row in lake.runs(run_id=jobs.run_id)}
        for name in (before, after):
            assert rows[str(name)].error is None, (job.__name__, rows[str(name)].error)
    for name in (before, after):
        assert_counted(spark, name)
        assert offsets(view_of_table(spark, name, 0)) == [5, 6, 7]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_read_of_the_lake_has_the_topics_beside_it(
    sandbox: LakeSandbox,
    topics: list[TopicName],
    capsys: pytest.CaptureFixture[str],
    fault: Callable[[SparkSession, TopicName], None],
) -> None:
    before, faulty, after = topics
    fault(sandbox.session, faulty)
    capsys.readouterr()
    assert ebbtide(["topics", f"{before.cluster}.*", "--json"]) == ExitCode.DONE
    told = {topic["topic"]: topic for topic in json.loads(capsys.readouterr().out)["topics"]}
    for name in (before, after):
        assert told[str(name)]["records"] == len(MESSAGES) * 2
