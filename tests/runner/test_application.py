"""What all jobs share: exit codes, the rows in `runs`, and a plan that changes nothing."""

import errno
import json
import re
from argparse import Namespace
from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest

from ebbtide.errors import (
    CAUSES_FILE,
    ConfigurationError,
    EbbtideError,
    ExitCode,
    PlanError,
    UnavailableError,
    exit_code,
)
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.topic_summary import parse_summary
from ebbtide.moments import to_ms
from ebbtide.runner import application
from ebbtide.runner.application import run, run_job
from ebbtide.runner.command_line import parse_job, parse_now
from ebbtide.runner.failures import refuse
from ebbtide.runner.job import Job
from ebbtide.runner.runs_table import EndedAttempt, JobOutcome, append_runs
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.ports import free_port
from tests.runner.on_topics import run_topics
from tests.runner.submit import submit
from tests.services.cells import CellSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark
from tests.waiting import PATIENCE_S, wait_until

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
RUNNER = Path(application.__file__).parent
MESSAGES = [[Message("a", "1")], [Message("a", "2")], [Message("b", "1")]]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        pytest.param([None, None], 0, id="all is well"),
        pytest.param([None, UnavailableError()], ExitCode.TRANSIENT, id="a retry can help"),
        pytest.param([ConfigurationError()], ExitCode.FAILED, id="none can help"),
        pytest.param(
            [ConfigurationError(), UnavailableError()], ExitCode.TRANSIENT, id="it can help one"
        ),
        pytest.param([ValueError()], ExitCode.FAILED, id="what nobody foresaw"),
    ],
)
def test_the_exit_code_says_whether_a_retry_can_help(
    errors: list[EbbtideError | None], code: int
) -> None:
    assert exit_code(errors) == code


def test_a_full_disk_is_tried_again_and_a_bug_is_not(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake.session, "newSession", lambda: lake.session)

    def work(_: Any, topic: TopicName) -> JobOutcome:
        raise {"full": OSError(errno.ENOSPC, "No space left on device")}.get(topic.topic, KeyError)

    topics = [TopicName("log", "full"), TopicName("log", "bug")]
    now = at(FIRST_MS)
    args = Namespace(plan_only=False, job="a_job", run_id="r", dag=None, task=None, now=now)
    assert run_topics(lake.session, args, topics[:1], work) == ExitCode.TRANSIENT
    assert run_topics(lake.session, args, topics[1:], work) == ExitCode.FAILED
    assert run_topics(lake.session, args, topics, work) == ExitCode.TRANSIENT
    rows = {row["topic"]: row for row in runs_of(lake).collect()}
    assert rows["log.full"]["is_transient"] is True
    assert rows["log.full"]["error_class"] == "UnavailableError"
    assert rows["log.bug"]["is_transient"] is False


def runs_of(lake: LakeSandbox) -> Any:
    return lake.session.table(RUNS.in_catalog())


ARGUMENTS = Namespace(
    plan_only=False, job="a_job", run_id="r", dag=None, task=None, now=at(FIRST_MS)
)
TOPICS = [TopicName("log", "a"), TopicName("log", "b")]


def test_a_row_that_cannot_be_written_stops_no_other_topic(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def append(spark: Any, ended: list[EndedAttempt]) -> None:
        if any(attempt.run.topic == "log.a" for attempt in ended):
            raise ValueError("no such row")
        append_runs(spark, ended)

    monkeypatch.setattr(application, "append_runs", append)
    monkeypatch.setattr(application, "ROWS_WAIT_S", PATIENCE_S)
    assert run_topics(lake.session, ARGUMENTS, TOPICS, lambda *_: JobOutcome()) == ExitCode.FAILED
    assert [row["topic"] for row in runs_of(lake).collect()] == ["log.b"]
    assert "ERROR a_job log.a: failed: ValueError: no such row" in capsys.readouterr().err


def test_rows_that_may_have_been_written_are_not_written_twice(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def append(spark: Any, ended: list[EndedAttempt]) -> None:
        append_runs(spark, ended)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(application, "append_runs", append)
    monkeypatch.setattr(application, "ROWS_WAIT_S", PATIENCE_S)
    code = run_topics(lake.session, ARGUMENTS, TOPICS, lambda *_: JobOutcome())
    assert code == ExitCode.TRANSIENT
    rows = runs_of(lake).collect()
    assert sorted(row["topic"] for row in rows) == ["log.a", "log.b"]
    output = capsys.readouterr().err
    for topic in TOPICS:
        assert f"ERROR a_job {topic}: failed: UnavailableError: expected an answer of the" in output


def test_rows_of_topics_that_end_together_are_one_commit(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "ROWS_WAIT_S", PATIENCE_S)
    assert run_topics(lake.session, ARGUMENTS, TOPICS, lambda *_: JobOutcome()) == ExitCode.DONE
    assert runs_of(lake).count() == 2
    assert lake.session.table(f"{RUNS.in_catalog()}.snapshots").count() == 1


def test_a_row_waits_for_no_topic_that_takes_long(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "ROWS_WAIT_S", 0.1)

    def work(_: Any, topic: TopicName) -> JobOutcome:
        if topic == TOPICS[1]:
            wait_until(lambda: runs_of(lake).count() == 1, "the row of the other")
        return JobOutcome()

    assert run_topics(lake.session, ARGUMENTS, TOPICS, work) == ExitCode.DONE
    assert runs_of(lake).count() == 2


def test_a_plan_is_four_calls_away_from_main(
    lake: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a reader finds the way: two calls, and two more in the thread of a topic."""
    frames: list[list[str]] = []

    def look(*_: Any) -> JobOutcome:
        stack = [frame for frame in extract_stack() if Path(frame.filename).is_relative_to(RUNNER)]
        frames.append([frame.name for frame in stack])
        return JobOutcome()

    monkeypatch.setattr(application, "check_catalog", look)
    monkeypatch.setattr(application, "start_spark", lambda _: lake.session)
    job: Job[JobOutcome] = Job("clean_log", look)
    now = at(FIRST_MS).isoformat()
    assert run(job, ["--topic", "log.a", "--now", now, "--run-id", "r"]) == ExitCode.DONE
    assert frames == [["run", "on_topics"], ["on_topic", "attempt"]]


def test_now_is_exact_to_the_millisecond() -> None:
    assert to_ms(parse_now("2026-11-22T01:00:00.123+01:00")) == 1_795_305_600_123


@pytest.mark.long
def test_a_failing_topic_does_not_stop_the_others(lake: LakeSandbox, tmp_path: Path) -> None:
    for topic, config in {"good": CONFIG, "bad": {**CONFIG, "retention.ms": "soon"}}.items():
        write_log(tmp_path / topic, topic, MESSAGES, CONFIG)
        ingest(lake.session, f"log.{topic}", tmp_path / topic, FIRST_MS)
        mark(lake.session, f"log.{topic}")
        for setting, value in config.items():
            lake.session.sql(
                f"ALTER TABLE {TopicName('log', topic).records_table} "
                f"SET TBLPROPERTIES ('kafka.{setting}' = '{value}')"
            )
    now = at(FIRST_MS + DAY_MS).isoformat()
    arguments = ["--topic", "log.bad", "--topic", "log.good", "--now", now]

    before = current_snapshot(lake.session, TopicName("log", "good").records_table)
    planned = submit(lake, "clean_log", *arguments, "--plan-only")
    assert "clean_log log.good: plan only, nothing was changed" in planned.stdout
    # Offsets, records and bytes before and after, superseded.
    assert re.search(r"^0 +0 +0 +3 +3 +2 +210 B +140 B +1 ", planned.stdout, re.MULTILINE)
    assert current_snapshot(lake.session, TopicName("log", "good").records_table) == before
    assert not lake.session.catalog.tableExists(RUNS.in_catalog())

    done = submit(lake, "clean_log", *arguments)
    assert done.returncode == ExitCode.FAILED
    message = (
        "expected an integer in [-1, 9223372036854775807] for kafka.retention.ms, found 'soon'"
    )
    # spark-submit hands on both outputs of the job in one.
    assert f" ERROR clean_log log.bad: failed: ConfigurationError: {message}" in done.stdout
    assert "Traceback" not in done.stdout
    rows = {row["topic"]: row for row in runs_of(lake).collect()}
    assert rows["log.good"]["status"] == "succeeded"
    assert json.loads(rows["log.good"]["result"])["partitions"]["0"]["superseded"] == 1
    summary = parse_summary(rows["log.good"]["summary"])
    assert summary is not None
    assert (summary.records, summary.dirty_records) == (2, 0)
    assert rows["log.bad"]["status"] == "failed"
    assert rows["log.bad"]["summary"] is None
    assert rows["log.bad"]["error"] == message
    assert rows["log.bad"]["is_transient"] is False


@pytest.mark.parametrize(
    ("error", "code", "has_traceback"),
    [
        pytest.param(OSError(28, "No space left on device"), 75, False, id="an outage"),
        pytest.param(UnavailableError("no answer"), 75, False, id="one of ours"),
        pytest.param(ConfigurationError("expected x"), 1, False, id="no outage"),
        pytest.param(KeyError("x"), 1, True, id="a bug"),
    ],
)
def test_what_fails_outside_of_any_topic_has_its_exit_code_too(
    error: Exception, code: int, has_traceback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise error

    assert run_job("clean_log", main) == code
    output = capsys.readouterr().err
    assert (
        f"clean_log: failed: {'UnavailableError' if code == 75 else type(error).__name__}" in output
    )
    assert ("Traceback" in output) is has_traceback


def test_airflow_gets_the_causes_that_no_row_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CAUSES_FILE, str(tmp_path / "causes.jsonl"))

    def main() -> int:
        raise UnavailableError("no answer")

    run_job("clean_log", main)
    refuse("clean_log", PlanError("expected an open plan"))
    with pytest.raises(SystemExit):
        parse_job("clean_log", ["--topic", "a", "--run-id", "r"])
    lines = (tmp_path / "causes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        [None, "UnavailableError", "no answer"],
        [None, "PlanError", "expected an open plan"],
        [None, None, "argument --topic: expected <cluster>.<topic>, found 'a'"],
    ]


@pytest.mark.parametrize("plan_only", [True, False])
def test_airflow_gets_the_cause_of_a_plan_and_a_row_has_that_of_a_job(
    lake: LakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_only: bool
) -> None:
    file = tmp_path / "causes.jsonl"
    monkeypatch.setenv(CAUSES_FILE, str(file))

    def work(_: Any, topic: TopicName) -> JobOutcome:
        raise ConfigurationError(f"expected {topic}")

    arguments = Namespace(**{**vars(ARGUMENTS), "plan_only": plan_only, "plan_file": None})
    assert run_topics(lake.session, arguments, TOPICS[:1], work) == ExitCode.FAILED
    assert file.exists() is plan_only
    if plan_only:
        assert json.loads(file.read_text()) == ["log.a", "ConfigurationError", "expected log.a"]


@pytest.mark.long
def test_a_job_whose_catalog_is_away_asks_for_a_retry_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = tmp_path / "causes.jsonl"
    monkeypatch.setenv(CAUSES_FILE, str(causes))
    lake = CellSandbox(
        tmp_path / "home",
        {
            "type": "jdbc",
            "uri": f"jdbc:postgresql://127.0.0.1:{free_port()}/lake",
            "warehouse": f"file://{tmp_path}/warehouse",
        },
    )
    done = submit(lake, "expire_snapshots", "--topic", "log.a", "--now", "2026-01-01T00:00:00Z")
    assert done.returncode == ExitCode.TRANSIENT
    assert "expire_snapshots: failed: UnavailableError" in done.stdout
    ((topic, error_class, message),) = map(json.loads, causes.read_text().splitlines())
    assert (topic, error_class) == (None, "UnavailableError")
    assert "expected an answer of the catalog and its storage, found" in message
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("job", sorted((ROOT / "jobs").glob("*.py")), ids=lambda job: job.stem)
def test_each_job_ends_by_this_rule(job: Path) -> None:
    assert job.read_text().endswith(f'    sys.exit(run_job("{job.stem}", main))\n')
