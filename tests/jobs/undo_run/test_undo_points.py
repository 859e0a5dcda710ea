"""What a removing run notes before it removes, and that its snapshots stay as long as an undo may
need them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.names import TopicName
from jobs import clean_log, delete_records, expire_segments, expire_snapshots
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": str(4 * DAY_MS),
}
SEGMENTS = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", 5 * DAY_MS), Message("c", None, 5 * DAY_MS)],
    [Message("d", "1", 6 * DAY_MS)],
]
NOW = ("--now", at(NIGHT_MS).isoformat())


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    name = TopicName(cluster, "t")
    write_log(tmp_path / "log", "t", SEGMENTS, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    return name


def of(name: TopicName) -> tuple[str, str]:
    return "--topic", str(name)


def delete_up_to(name: TopicName, offset: int) -> tuple[str, str]:
    asked = {"topic": str(name), "partitions": [{"partition": 0, "offset": offset}]}
    return "--request", json.dumps({"topics": [asked]})


def points(sandbox: LakeSandbox, name: TopicName) -> list[UndoPoint]:
    return sorted(read_points(sandbox.session, name), key=lambda point: point.at)


def test_each_removing_job_notes_the_topic_as_it_was(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    spark, noted = sandbox.session, []
    for job, asked in (
        (clean_log, of(topic)),
        (expire_segments, of(topic)),
        (delete_records, delete_up_to(topic, 5)),
    ):
        before = load(spark, topic).partitions
        tables = [current_snapshot(spark, t) for t in (topic.records_table, topic.batches_table)]
        assert jobs.run(job, *asked, *NOW) == 0
        (point,) = [point for point in points(sandbox, topic) if point.run_id == jobs.run_id]
        assert [point.records_snapshot, point.batches_snapshot] == tables
        assert point.states == before
        noted.append(point.job)
    assert noted == ["clean_log", "expire_segments", "delete_records"]


@pytest.mark.long
def test_a_job_that_removes_nothing_notes_nothing(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    assert jobs.run(delete_records, *delete_up_to(topic, 0), *NOW) == 0
    jobs.plan(clean_log, NIGHT_MS, *of(topic))
    assert points(sandbox, topic) == []
    set_properties(sandbox.session, str(topic), {"ebbtide.undo.retention.ms": "0"})
    assert jobs.run(clean_log, *of(topic), *NOW) == 0
    assert points(sandbox, topic) == []


@pytest.mark.long
def test_snapshots_stay_until_both_the_age_and_the_time_of_undo_have_passed(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    spark = sandbox.session
    assert jobs.run(clean_log, *of(topic), *NOW) == 0
    (point,) = points(sandbox, topic)
    set_properties(spark, str(topic), {"history.expire.max-snapshot-age-ms": "0"})
    assert is_held(sandbox, topic, point) == (True, True)

    assert jobs.run(expire_snapshots, *of(topic), *NOW) == 0
    assert is_held(sandbox, topic, point) == (True, True)
    assert spark.table(topic.records_table).count() == 4
    before = f"{topic.records_table} VERSION AS OF {point.records_snapshot}"
    assert spark.sql(f"SELECT offset FROM {before}").count() == 5

    set_properties(spark, str(topic), {"ebbtide.undo.retention.ms": "1"})
    assert jobs.run(expire_snapshots, *of(topic), *NOW) == 0
    assert is_held(sandbox, topic, point) == (False, False)


def is_held(sandbox: LakeSandbox, name: TopicName, point: UndoPoint) -> tuple[bool, bool]:
    """Whether the snapshots of both tables are there."""
    tables = (
        (name.records_table, point.records_snapshot),
        (name.batches_table, point.batches_snapshot),
    )
    records, batches = (
        java_table(sandbox.session, table).snapshot(s) is not None for table, s in tables
    )
    return records, batches


def test_a_job_killed_before_it_notes_the_point_has_removed_nothing(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName, kill_at: list[Step]
) -> None:
    kill_at.append(Step.UNDO_POINT)
    assert jobs.run(clean_log, *of(topic), *NOW) != 0
    assert sandbox.session.table(topic.records_table).count() == 5
    assert "ebbtide.round" not in load(sandbox.session, topic).properties
    assert jobs.run(clean_log, *of(topic), *NOW) == 0
    assert len(points(sandbox, topic)) == 1
