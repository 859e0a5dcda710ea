"""Rounds and merges in flight while other tools work on the same tables."""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, ForeignChangeError, StateError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.data_files import SegmentFiles
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.in_flight import open_merge
from ebbtide.jobs.clean_log import cleaner
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.unfinished import settle
from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.report import notes
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.spark import tasks
from ebbtide.state.topic_state import MERGE, ROUND
from tests.lake_sandbox import LakeSandbox
from tests.runner.on_topics import run_topics
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import View, view_of_table
from tests.tables.logs import Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at, clean, ingest, mark
from tests.tables.other_tools import expire_all, rewrite_files, rewrite_manifests, tables_of

NIGHT_MS = 1_000 * DAY_MS
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
SEGMENTS = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    *([Message("a", str(n)), Message(f"k{n}", "1")] for n in range(9)),
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1")],
]
Tool = Callable[[SparkSession, Sequence[str]], None]


def rewrite_then_expire(spark: SparkSession, tables: Sequence[str]) -> None:
    rewrite_files(spark, tables)
    expire_all(spark, tables)


TOOLS = [rewrite_files, rewrite_manifests, expire_all, rewrite_then_expire]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A small compacted topic, ingested and marked."""
    empty.log(SEGMENTS, COMPACT, NIGHT_MS)
    empty.mark()
    return empty


@pytest.fixture(scope="module")
def unbroken(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> View:
    """What the round leaves where nobody disturbs it."""
    folder = tmp_path_factory.mktemp("unbroken")
    write_log(folder / "log", "t", SEGMENTS, COMPACT)
    ingest(sandbox.session, "unbroken.t", folder / "log", NIGHT_MS)
    mark(sandbox.session, "unbroken.t")
    clean(sandbox.session, "unbroken.t", NIGHT_MS)
    return view_of_table(sandbox.session, TopicName("unbroken", "t"), 0)


def tags(spark: SparkSession, name: TopicName) -> set[str]:
    refs = (java_table(spark, table).refs() for table in tables_of(name))
    return {ref for names in refs for ref in names} - {"main"}


ROUND_STEPS = [s for s in Step if s.name.startswith("ROUND") and s is not Step.ROUND_STARTED]


@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("step", ROUND_STEPS)
def test_a_killed_round_ends_as_an_unbroken_one_whatever_tools_did_since(
    bench: Bench, unbroken: View, kill_at: list[Step], step: Step, tool: Tool
) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        bench.clean(NIGHT_MS)
    tool(bench.spark, tables_of(bench.name))
    bench.clean(NIGHT_MS + HOUR_MS)
    assert bench.view() == unbroken
    assert ROUND not in bench.load().properties
    assert tags(bench.spark, bench.name) == set()


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.ROUND_BATCHES, Step.ROUND_STATE])
def test_a_round_goes_on_while_tools_work(
    bench: Bench, unbroken: View, meanwhile: Meanwhile, step: Step
) -> None:
    meanwhile(step, lambda: rewrite_then_expire(bench.spark, tables_of(bench.name)))
    bench.clean(NIGHT_MS)
    assert bench.view() == unbroken


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.MERGE_RECORDS, Step.MERGE_BATCHES, Step.MERGE_STATE])
def test_a_killed_merge_is_finished_whatever_tools_did_since(
    bench: Bench, unbroken: View, kill_at: list[Step], step: Step
) -> None:
    bench.clean(NIGHT_MS)
    kill_at.append(step)
    with pytest.raises(KilledError):
        merge_segments(bench.load())
    rewrite_then_expire(bench.spark, tables_of(bench.name))
    ended = settle(bench.load(), "expire_segments")
    assert open_merge(ended) is None
    assert MERGE in ended.properties  # the trace of it
    assert bench.view() == unbroken
    assert tags(bench.spark, bench.name) == set()


def test_what_a_killed_job_held_is_let_go(bench: Bench, kill_at: list[Step]) -> None:
    kill_at.append(Step.TAGS_RELEASED)
    with pytest.raises(KilledError):
        bench.clean(NIGHT_MS)
    assert tags(bench.spark, bench.name) != set()
    bench.clean(NIGHT_MS + HOUR_MS)
    assert tags(bench.spark, bench.name) == set()


@pytest.mark.long(but="0")
@pytest.mark.parametrize("number", [0, 1])
def test_a_table_that_was_dropped_or_made_anew_stops_the_topic(bench: Bench, number: int) -> None:
    spark, table = bench.spark, tables_of(bench.name)[number]
    made = spark.sql(f"SHOW CREATE TABLE {table}").collect()[0][0]
    spark.sql(f"DROP TABLE {table}")
    with pytest.raises(ForeignChangeError, match="found none: it was dropped"):
        bench.ingest(bench.home / "log", NIGHT_MS)
    spark.sql(made)
    with pytest.raises(ForeignChangeError, match="a table was dropped and created again"):
        bench.clean(NIGHT_MS)


def test_a_table_that_is_left_alone_is_not_called_missing(bench: Bench) -> None:
    """Its topic begins anew once it is dropped too, as the error says."""
    spark = bench.spark
    for table in (bench.name.batches_table, bench.name.state_table):
        spark.sql(f"DROP TABLE {table}")
    for work in (lambda: bench.clean(NIGHT_MS), lambda: again(spark, bench.name, bench.home)):
        with pytest.raises(ForeignChangeError, match=r"both were dropped\. Register") as error:
            work()
        assert "since lake." in str(error.value)
    spark.sql(f"DROP TABLE {bench.name.records_table}")
    again(spark, bench.name, bench.home)
    assert bench.load().partitions[0].log_end_offset > 0


def again(spark: SparkSession, topic: TopicName, tmp_path: Path) -> JobOutcome:
    return ingest(spark, str(topic), tmp_path / "log", NIGHT_MS)


@pytest.mark.long
def test_a_topic_whose_tables_were_dropped_begins_anew(bench: Bench, unbroken: View) -> None:
    bench.clean(NIGHT_MS)
    for table in tables_of(bench.name):
        bench.spark.sql(f"DROP TABLE {table}")
    bench.ingest(bench.home / "log", NIGHT_MS)
    bench.mark()
    bench.clean(NIGHT_MS)
    assert bench.view() == unbroken


def test_a_state_that_was_edited_stops_the_topic(bench: Bench) -> None:
    bench.spark.sql(
        f"ALTER TABLE {bench.name.state_table} SET TBLPROPERTIES "
        "('ebbtide.state.0.log-end-offset'='9')"
    )
    with pytest.raises(
        StateError, match=r"found that ebbtide\.checksum does not match: another tool"
    ):
        bench.clean(NIGHT_MS)


@pytest.mark.long(but="before its batches")
@pytest.mark.parametrize(
    ("step", "again"),
    [
        pytest.param(
            Step.ROUND_BATCHES,
            [Step.HEADERS_REBUILT, Step.LOST_ROUND_STATE],
            id="before its batches",
        ),
        pytest.param(Step.ROUND_STATE, [Step.LOST_ROUND_STATE], id="before its state"),
    ],
)
def test_a_round_whose_held_snapshots_were_dropped_leaves_right_headers(
    bench: Bench, unbroken: View, kill_at: list[Step], step: Step, again: list[Step]
) -> None:
    """Headers come from the records that are left; the next round gives the tombstones' horizon."""
    spark = bench.spark
    kill_round(spark, bench.name, kill_at, step)
    lose_held_snapshots(spark, bench.name)
    for later in again:
        kill_round(spark, bench.name, kill_at, later)
    bench.clean(NIGHT_MS)
    assert ROUND not in bench.load().properties
    assert bench.view() == unbroken


def kill_round(spark: SparkSession, topic: TopicName, kill_at: list[Step], step: Step) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        clean(spark, str(topic), NIGHT_MS)


def lose_held_snapshots(spark: SparkSession, topic: TopicName) -> None:
    """Let all that a killed round holds expire."""
    for table in tables_of(topic):
        for tag in tags(spark, topic):
            spark.sql(f"ALTER TABLE {table} DROP TAG IF EXISTS `{tag}`")
    rewrite_then_expire(spark, tables_of(topic))


@pytest.mark.long
def test_a_run_that_rebuilds_headers_says_in_its_row_that_sizes_are_estimates(
    bench: Bench, kill_at: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its first attempt, which gave the round up, met another writer later."""
    spark, work = bench.spark, [CommitConflictError("another writer was faster"), None]
    kill_round(spark, bench.name, kill_at, Step.ROUND_BATCHES)
    count_own(bench.load())  # as every job does, also one that leaves the round alone
    lose_held_snapshots(spark, bench.name)
    monkeypatch.setattr(spark, "newSession", lambda: spark)

    def meet_a_writer_once(_: SparkSession, name: TopicName) -> JobOutcome:
        outcome = bench.clean(NIGHT_MS)
        if (conflict := work.pop(0)) is not None:
            raise conflict
        return outcome

    args = Namespace(plan_only=False, job="clean_log", run_id="lost", dag=None, task="clean_log")
    args.now = at(NIGHT_MS)
    assert run_topics(spark, args, [bench.name], meet_a_writer_once) == 0
    with open_lake(bench.sandbox.home / "conf" / "spark-defaults.conf") as lake:
        (note,) = notes(lake.runs(run_id="lost"))
    assert re.fullmatch(
        rf"{re.escape(str(bench.name))}: the round begun at 1972-09-27 00:00 UTC was given up, "
        r"since another tool expired the snapshots that it had pinned: [1-9]\d* batch headers were "
        r"rebuilt from the remaining records, and the sizes of compressed batches are estimates\.",
        note,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows_on_driver", "after", "cause"),
    [(1_000_000, 1, "expired"), (1_000_000, 2, "deleted"), (0, 2, "deleted")],
)
def test_files_that_go_while_they_are_read_are_planned_again(
    bench: Bench,
    unbroken: View,
    monkeypatch: pytest.MonkeyPatch,
    rows_on_driver: int,
    after: int,
    cause: str,
) -> None:
    """On the driver and in tasks; as run_topics tries a lost race again."""
    monkeypatch.setattr(tasks, "is_on_driver", lambda _, rows: rows < rows_on_driver)
    planned, plan = [], cleaner.plan_segments

    def then_lose_files(*arguments: Any) -> list[SegmentFiles]:
        the_plan = plan(*arguments)
        planned.append(the_plan)
        if len(planned) == after:
            rewrite_then_expire(bench.spark, tables_of(bench.name))
        return the_plan

    monkeypatch.setattr(cleaner, "plan_segments", then_lose_files)
    with pytest.raises(CommitConflictError, match=f"{cause} it meanwhile"):
        bench.clean(NIGHT_MS)
    bench.clean(NIGHT_MS)
    assert bench.view() == unbroken
