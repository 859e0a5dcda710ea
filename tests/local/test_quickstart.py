import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ForeignLogError
from ebbtide.local import quickstart
from ebbtide.local.progress import StepError, lines_of
from ebbtide.local.quickstart import (
    DagRuns,
    TaskLogs,
    Watch,
    failures_of,
    last_append_of,
    nights_after,
    running,
    topics_run,
)
from ebbtide.orchestration.driver_inputs import Paths
from tests.lake_sandbox import LakeSandbox


def test_the_demonstration_names_its_topics_and_touches_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "sample" / "log"
    source.mkdir(parents=True)
    manifest = {"last_append_ms": 4_000_000_000_000, "topics": {"flights": 0, "audit": 0}}
    (source / "ebbtide-manifest.json").write_text(json.dumps(manifest))
    commands: list[Sequence[str]] = []
    nights: list[Mapping[str, Any]] = []

    def lines_of(command: Sequence[str], *_: Any, **__: Any) -> list[str]:
        commands.append(command)
        return []

    def run(_: DagRuns, conf: Mapping[str, Any], *__: Any) -> list[str]:
        nights.append(conf)
        return []

    monkeypatch.setattr(quickstart, "lines_of", lines_of)
    monkeypatch.setattr(quickstart, "several_runs", lambda _: ["true"])
    monkeypatch.setattr(DagRuns, "run", run)
    monkeypatch.setattr(quickstart, "report_of", lambda run_id: run_id)
    quickstart.run_sample(Paths(root=tmp_path, home=tmp_path))
    (ingested,) = commands
    topics = ["demo.audit", "demo.flights"]
    given = pairwise(ingested)
    assert [value for option, value in given if option == "--topic"] == topics
    assert [night["topics"] for night in nights] == [topics, topics]
    output = capsys.readouterr().out
    assert "a demonstration on demo.audit and demo.flights only: its clock runs ahead" in output
    assert "two safeguards are off" in output


@pytest.mark.parametrize(
    ("last_append", "first"),
    [
        ("2026-11-21T11:50Z", "2026-11-22T01:00Z"),
        ("2026-11-21T01:00Z", "2026-11-21T01:00Z"),
        ("2026-11-21T00:59Z", "2026-11-21T01:00Z"),
        ("2026-12-31T01:00:00.000001Z", "2027-01-01T01:00Z"),
    ],
)
def test_the_first_night_is_the_next_one_o_clock(last_append: str, first: str) -> None:
    one, two = nights_after(datetime.fromisoformat(last_append))
    assert one == datetime.fromisoformat(first)
    assert (two - one).total_seconds() == 24 * 3600


def test_the_log_says_when_it_was_written(tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    with pytest.raises(StepError, match=r"^expected the sample's m.json, found none in /.*$"):
        last_append_of(manifest)
    manifest.write_text(json.dumps({"last_append_ms": 1_500}))
    assert last_append_of(manifest) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def dag_test(event: str, task: str, index: int = -1) -> str:
    """A line of `airflow dags test`."""
    return f"t [info ] [DAG TEST] {event} task_id={task} map_index={index} [airflow] loc=dag.py:1\n"


def test_airflows_output_becomes_a_line_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    topics = {"clean_log": ["log.a", "log.b"]}
    watch = Watch("night 1", lambda _, task: topics.get(task, []))
    for line in [
        "Created dag run. dagrun=<DagRun n @ x: manual__2026-01-02T00:00:00+00:00, state:running",
        dag_test("starting", "group_topics"),
        dag_test("end task", "group_topics"),
        dag_test("starting", "clean_log", 0),
        dag_test("end task", "clean_log", 0),
        dag_test("starting", "expire_segments", 0),
        dag_test("end task", "expire_segments", 0),
    ]:
        watch.see(line)
    watch.finish()
    assert watch.run_id == "manual__2026-01-02T00:00:00+00:00"
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "night 1 Airflow, start 0.0 s",
        "night 1 group_topics 0.0 s mostly Airflow's in-process API, only once",
        "night 1 clean_log 0.0 s Spark for log.a, log.b",
        "night 1 expire_segments 0.0 s nothing to do, without Spark",
        "night 1 Airflow, end 0.0 s",
    ]


def test_a_task_has_run_on_the_topics_of_its_rows(lake: LakeSandbox) -> None:
    for topic, task in (("log.b", "clean_log"), ("log.a", "clean_log"), ("log.c", "other")):
        lake.run(topic, "clean_log", run_id="ours", task=task)
    lake.run("log.d", "clean_log", run_id="another", task="clean_log")
    assert topics_run("ours", "clean_log") == ["log.a", "log.b"]
    assert topics_run("ours", "expire_segments") == []


def test_what_a_task_says_is_where_airflow_looks_for_its_log(tmp_path: Path) -> None:
    logs = TaskLogs("night", tmp_path)
    for line in [
        "before any task\n",
        dag_test("starting", "group_topics"),
        "ebbtide: 2 topics: demo.audit, demo.flights\n",
        dag_test("end task", "group_topics"),
        "between tasks\n",
        dag_test("starting", "clean_log", 0),
        "first try\n",
        dag_test("starting", "clean_log", 0),
        "second try\n",
    ]:
        logs.see(line, "manual__1")
    run = tmp_path / "dag_id=night" / "run_id=manual__1"
    grouped = (run / "task_id=group_topics" / "attempt=1.log").read_text()
    assert "ebbtide: 2 topics: demo.audit, demo.flights\n" in grouped
    assert "between" not in grouped
    cleaned = run / "task_id=clean_log" / "map_index=0"
    assert "first try\n" in (cleaned / "attempt=1.log").read_text()
    assert "first" not in (cleaned / "attempt=2.log").read_text()


def test_output_is_passed_on_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; print('one'); print('two', file=sys.stderr)"
    assert list(lines_of([sys.executable, "-u", "-c", code], log)) == ["one\n", "two\n"]
    assert log.read_text() == "one\ntwo\n"


def test_a_command_that_fails_shows_its_cause_or_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "print(*range(40), sep='\\n'); raise SystemExit(3)"
    message = rf"^clean_log log.a: X: why\n.* ended with exit code 3\. Full output: {log}$"
    with pytest.raises(StepError, match=message):
        list(lines_of([sys.executable, "-c", code], log, lambda: "clean_log log.a: X: why"))
    with pytest.raises(StepError, match=r"^15\n16\n"):
        list(lines_of([sys.executable, "-c", code], log, on_failure=str))


ECHO = """
import sys
for line in sys.stdin:
    print("does", line, end="")
    print("ebbtide: the run has ended:", "failed" if "bad" in line else "success", flush=True)
"""


def test_runs_share_a_process_and_each_has_its_output(tmp_path: Path) -> None:
    with running([sys.executable, "-c", ECHO]) as runs:
        for night in (1, 2):
            log = tmp_path / str(night)
            assert list(runs.run({"night": night}, log)) == [f'does {{"night": {night}}}\n']
            assert log.read_text() == f'does {{"night": {night}}}\n'
        with pytest.raises(StepError, match=rf"^why\nthe run ended: failed\. Full output: {log}$"):
            list(runs.run({"night": "bad"}, log, lambda: "why"))


def test_a_process_that_dies_fails_the_run_with_the_end_of_its_output(tmp_path: Path) -> None:
    code = "print('no such DAG'); raise SystemExit(1)"
    with (
        pytest.raises(StepError, match=r"^no such DAG\nthe run ended: with its process\. "),
        running([sys.executable, "-c", code]) as runs,
    ):
        list(runs.run({}, tmp_path / "log"))


def test_a_failed_ingest_names_topics_and_causes(lake: LakeSandbox) -> None:
    lake.run("log.a", "ingest_segments", run_id="ours")
    lake.run(
        "log.b", "ingest_segments", run_id="ours", error=ForeignLogError("expected x, found y")
    )
    lake.run("log.c", "ingest_segments", run_id="another", error=ForeignLogError("expected z"))
    assert failures_of("ours") == "ingest_segments log.b: ForeignLogError: expected x, found y"
