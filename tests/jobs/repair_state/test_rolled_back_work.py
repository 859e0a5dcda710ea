"""Commits of a job that others roll back before the topic's state tells of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ForeignChangeError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.unfinished import settle
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import seen_of
from tests.iceberg.test_foreign_changes import COMPACT, NIGHT_MS, SEGMENTS, roll_back
from tests.jobs.repair_state.test_repair import repair
from tests.lake_sandbox import LakeSandbox
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import View, view_of_table
from tests.tables.logs import Message, write_log
from tests.tables.nights import clean, ingest, mark
from tests.tables.other_tools import expire_all, tables_of

pytestmark = pytest.mark.long

JOBS = ("ingest", "clean", "merge", "delete")
RECORDS, BATCHES = 0, 1
# A step that a job is killed before, and the table whose commit was made by then.
ROLLED_BACK = [
    ("ingest", Step.INGEST_STATE, RECORDS),
    ("ingest", Step.INGEST_STATE, BATCHES),
    ("clean", Step.ROUND_STATE, RECORDS),
    ("clean", Step.ROUND_STATE, BATCHES),
    ("merge", Step.MERGE_STATE, RECORDS),
    ("merge", Step.MERGE_STATE, BATCHES),
    ("delete", Step.ROWS_COUNTED, RECORDS),
]
# Steps between the commit of records and the state's, which counts them.
BETWEEN = {"ingest": Step.INGEST_BATCHES, "clean": Step.ROUND_BATCHES, "merge": Step.MERGE_BATCHES}


def prepared(spark: SparkSession, name: TopicName, folder: Path, job: str) -> Callable[[], object]:
    """A small compacted topic that is counted and ready for the job; the job."""
    write_log(folder / "log", "t", SEGMENTS, COMPACT)
    write_log(folder / "more", "t", [*SEGMENTS, [Message("f", "1")]], COMPACT)
    ingest(spark, str(name), folder / "log", NIGHT_MS)
    mark(spark, str(name))
    if job == "merge":  # only what a round has made one segment is merged
        clean(spark, str(name), NIGHT_MS)
    assert_counted(spark, name)

    def delete() -> None:
        execute_delete(plan_delete(load(spark, name), {0: 6}, NIGHT_MS))
        count_own(load(spark, name))

    jobs: dict[str, Callable[[], object]] = {
        "ingest": lambda: ingest(spark, str(name), folder / "more", NIGHT_MS),
        "clean": lambda: clean(spark, str(name), NIGHT_MS),
        "merge": lambda: merge_segments(settle(load(spark, name), "expire_snapshots"), at_least=2),
        "delete": delete,
    }
    return jobs[job]


@pytest.fixture(scope="module")
def undisturbed(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, View]:
    """The log as each job leaves it where nobody rolls anything back."""
    views = {}
    for job in JOBS:
        name = TopicName(f"undisturbed_{job}", "t")
        folder = tmp_path_factory.mktemp(job)
        prepared(sandbox.session, name, folder, job)()
        views[job] = view_of_table(sandbox.session, name, 0)
    return views


def roll_back_to_seen(spark: SparkSession, name: TopicName, number: int) -> None:
    """Roll a table back to the snapshot that the state tells."""
    seen = seen_of(load(spark, name).properties, ("records", "batches")[number])
    assert seen is not None
    assert seen.snapshot is not None
    table = tables_of(name)[number]
    assert java_table(spark, table).currentSnapshot().snapshotId() != seen.snapshot
    roll_back(spark, table, seen.snapshot)


@pytest.mark.parametrize(("job", "step", "number"), ROLLED_BACK)
def test_what_a_killed_job_had_committed_is_missed(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    undisturbed: dict[str, View],
    kill_at: list[Step],
    job: str,
    step: Step,
    number: int,
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    run = prepared(spark, name, tmp_path, job)
    kill_at.append(step)
    with pytest.raises(KilledError):
        run()
    roll_back_to_seen(spark, name, number)
    with pytest.raises(ForeignChangeError, match=r"rolled back to before ebbtide's commit"):
        count_own(load(spark, name))
    repair(spark, name)
    run()
    assert_counted(spark, name)
    assert view_of_table(spark, name, 0) == undisturbed[job]


@pytest.mark.parametrize("job", BETWEEN)
def test_a_state_never_tells_of_commits_that_were_rolled_back_meanwhile(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    undisturbed: dict[str, View],
    meanwhile: Meanwhile,
    job: str,
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    run = prepared(spark, name, tmp_path, job)
    before = load(spark, name).partitions
    meanwhile(BETWEEN[job], lambda: roll_back_to_seen(spark, name, RECORDS))
    with pytest.raises(ForeignChangeError, match=r"rolled back to before ebbtide's commit"):
        run()
    assert load(spark, name).partitions == before
    repair(spark, name)
    run()
    assert_counted(spark, name)
    assert view_of_table(spark, name, 0) == undisturbed[job]


def test_an_append_that_was_rolled_back_and_expired_is_made_again(
    sandbox: LakeSandbox,
    cluster: str,
    tmp_path: Path,
    undisturbed: dict[str, View],
    kill_at: list[Step],
) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    run = prepared(spark, name, tmp_path, "ingest")
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        run()
    roll_back_to_seen(spark, name, RECORDS)
    expire_all(spark, tables_of(name))
    run()
    assert_counted(spark, name)
    assert view_of_table(spark, name, 0) == undisturbed["ingest"]
