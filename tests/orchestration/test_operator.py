"""The operator up to spark-submit: arguments, golden commands, the connection, the clock."""

import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.orchestration.approval import ApprovalAnswer, Decision, StoredPlan
from ebbtide.orchestration.driver import check_spark_connection, run_now
from ebbtide.orchestration.driver_inputs import (
    DriverFiles,
    check_arguments,
    driver_files,
    options_of_params,
)
from ebbtide.orchestration.job_chains import ExecutionOperator
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.specs.params import TEXT
from tests.dags.runs import dag_bag

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 1, 2, 2, tzinfo=UTC)
PARAMS = {
    "nightly_retention": {"now": None},
    "ingest_segments": {
        "source": "s3://logs/broker-1",
        "cluster": "log",
        "topics": ["log.flights"],
        "accept_gap": True,
    },
    "ingest_topic": {
        "connection": "main",
        "cluster": "log",
        "topics": ["log.flights"],
        "pattern": "weather.*",
        "isolation": "read_committed",
        "accept_gap": True,
    },
    "ingest_table": {
        "topics": ["log.flights"],
        "source": "raw.flights",
        "source_topic": "flights",
        "key_column": "id",
        "plan_only": True,
    },
    "configure_topic": {
        "topic": "log.flights",
        "set": ["kafka.cleanup.policy=compact,delete", "kafka.retention.ms=-1"],
        "unset": ["kafka.retention.bytes"],
        "plan_only": True,
    },
    "delete_records": {},
    "replicate_log": {},
    "approve_plan": {"plans": ["clean_log-20260102-0123abcd"]},
    "apply_retention": {"topics": ["log.flights"], "stages": ["clean_log"], "now": None},
    "mark_tombstones": {
        "topic": "log.flights",
        "from_offset": ["0:7", "9"],
        "plan_only": False,
    },
    "erase_keys": {
        "requested_by": "privacy office",
        "reason": "request 17",
        "keys": ["alice@example.org", "bob"],
        "encoding": "utf-8",
        "append": True,
        "timeout_ms": 600_000,
    },
    "certify_erasure": {
        "topic": "log.flights",
        "keys": ["alice@example.org"],
        "encoding": "utf-8",
        "erasure": "scheduled__2026-01-02T02:00:00+00:00",
        "partition": 0,
        "first_offset": 5,
        "end_offset": 9,
    },
    "hold_records": {
        "action": "make",
        "topic": "log.flights",
        "partition": 0,
        "first_offset": 100,
        "event_time_until": "2026-01-02T00:00:00+00:00",
        "keys": ["alice@example.org"],
        "encoding": "utf-8",
        "case_id": "4711",
        "reason": "asked for by a court",
        "owner": "legal",
        "review_date": "2026-06-30",
    },
    "repair_state": {
        "topic": "log.flights",
        "keep_changes": True,
        "log_start_offset": ["0=7"],
        "max_event_time_ms": ["0=1767225600000", "1=5"],
        "plan_only": True,
    },
    "undo_run": {"topic": "log.flights", "run": "scheduled__2026-01-02T02:00:00+00:00"},
    "adopt_table": {
        "topic": "log.flights",
        "key_column": "id",
        "set": ["kafka.cleanup.policy=compact"],
        "plan_only": True,
    },
    "abandon_table": {"topic": "log.flights", "plan_only": False},
    "export_segments": {
        "topic": "log.flights",
        "partitions": [0, 2],
        "target": "/restore/flights",
    },
}
REQUEST = {
    "topics": [{"topic": "log.flights", "partitions": [{"partition": 0, "offset": -1}]}],
    "timeout_ms": 30_000,
}
HANDED_ON = [
    {"topic": "log.flights", "partition": 0, "log_start_offset": 7, "low_watermark": 7},
    {"topic": "log.flights", "partition": 1, "log_start_offset": 9, "low_watermark": 9},
    {"topic": "eu.a.b", "partition": 0, "log_start_offset": 1, "low_watermark": 1},
    {"topic": "log.other", "partition": 0, "log_start_offset": 1, "low_watermark": 1},
]
SUBMITTING = sorted(path.stem for path in GOLDEN.glob("*.txt"))


@pytest.fixture(autouse=True)
def installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EBBTIDE_ROOT", "/opt/ebbtide")
    monkeypatch.setenv("EBBTIDE_HOME", "/opt/ebbtide/.ebbtide")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    catalog = f"spark.sql.catalog.lake.uri jdbc:sqlite:{tmp_path}/none.db"
    (tmp_path / "spark-defaults.conf").write_text(catalog)


class FakeTaskInstance:
    """As much of a task instance as the operator asks for."""

    def __init__(self, task: Any, try_number: int = 1, max_tries: int = 2) -> None:
        self.task = task
        self.dag_id = task.dag_id
        self.task_id = task.task_id
        self.map_index = 0
        self.try_number = try_number
        self.max_tries = max_tries

    def xcom_pull(self, **_: Any) -> list[dict[str, Any]]:
        return HANDED_ON


def operator_of(dag_id: str, task_id: str) -> EbbtideJobOperator:
    """The task's operator, unmapped, with its templates filled in."""
    task = dag_bag().dags[dag_id].get_task(task_id)
    if hasattr(task, "partial_kwargs"):
        is_by_job = dag_id in ("approve_plan", "apply_retention")
        topics = ["log.flights", "eu.a.b"]
        task = task.unmap({"job": "clean_log"} if is_by_job else {"topics": topics})
    one_topic = ("configure_topic", "erase_keys", "export_segments", "mark_tombstones")
    one_topic += ("abandon_table", "adopt_table")
    if dag_id in (*one_topic, "hold_records", "repair_state", "apply_retention", "undo_run"):
        task.topics = ["log.flights"]
    if task_id == "plan" and dag_id == "delete_records":
        task.request = REQUEST
    if isinstance(task, ExecutionOperator):
        task.topics = ["log.flights"]
        task.answer = answer_for(task.job)
    return task


def answer_for(job: str) -> ApprovalAnswer:
    plan_id = f"{job}-20260102-0123abcd"
    plan = StoredPlan(plan_id=plan_id, job=job, topic="log.flights", digest="0" * 64)
    return ApprovalAnswer(Decision.APPROVED, [plan], "ben", "-- ticket 7")


def context_of(task: Any, **params: Any) -> Any:
    run = SimpleNamespace(
        run_id="scheduled__2026-01-02T02:00:00+00:00", run_after=NOW, triggering_user_name="ann"
    )
    return {"ti": FakeTaskInstance(task), "dag_run": run, "params": params}


def command_of(dag_id: str, task_id: str) -> str:
    """The command line that the task would run, one option a line."""
    from ebbtide.orchestration.driver import attempt_of

    task = operator_of(dag_id, task_id)
    context = context_of(task, **PARAMS[dag_id])
    topics = None if task.topics is None else [*task.topics]
    request = task._request(context, topics or ())
    folder = Path("/tmp/ebbtide-x")
    files = DriverFiles(folder, None if request is None else folder / "request.json")
    task._prepare(context, attempt_of(context), topics, request, files)
    command = task._get_hook()._build_spark_submit_command(task.application)
    return " \\\n  ".join(lines_of(command)) + "\n"


def lines_of(command: list[str]) -> list[str]:
    """An option and its value on one line."""
    lines: list[list[str]] = []
    for word in command:
        is_value = lines and len(lines[-1]) == 1 and lines[-1][0].startswith("--")
        if is_value and not word.startswith("--"):
            lines[-1].append(word)
        else:
            lines.append([word])
    return [shlex.join(line) for line in lines]


@pytest.mark.parametrize("name", SUBMITTING)
def test_golden_command(name: str) -> None:
    """REBUILD_GOLDEN=1 writes the files again; the difference is what a change does."""
    golden = GOLDEN / f"{name}.txt"
    command = command_of(*name.split("."))
    if os.environ.get("REBUILD_GOLDEN"):
        golden.write_text(command)
    assert command == golden.read_text()


def test_every_submitting_task_has_a_golden_command() -> None:
    tasks = [
        f"{dag_id}.{task.task_id}"
        for dag_id, dag in dag_bag().dags.items()
        for task in dag.tasks
        if issubclass(getattr(task, "operator_class", type(task)), EbbtideJobOperator)
    ]
    assert sorted(tasks) == SUBMITTING


@pytest.mark.parametrize(
    ("topics", "label"),
    [
        (None, ""),
        (["log.a"], "log.a"),
        (["log.a", "log.b", "log.c"], "log.a, log.b, log.c"),
        (["log.a", "log.b", "log.c", "log.d", "log.e"], "log.a, log.b, log.c and 2 more"),
    ],
)
def test_a_mapped_task_is_named_after_its_topics(topics: list[str] | None, label: str) -> None:
    assert EbbtideJobOperator(task_id="t", job="clean_log", topics=topics).label == label


@pytest.mark.parametrize(
    "connection",
    [
        pytest.param("spark://local[2]", id="a URI that cannot be parsed"),
        pytest.param('{"conn_type":"spark"}', id="no host"),
        pytest.param('{"conn_type":"http","host":"x"}', id="another type"),
        pytest.param(None, id="none at all"),
    ],
)
def test_a_connection_that_would_become_yarn_is_refused(
    connection: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection is None:
        monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    message = "^expected connection spark_default of type spark with a host, found .*local.2"
    with pytest.raises(ConfigurationError, match=message):
        check_spark_connection()


def test_the_connection_as_it_should_be_is_taken() -> None:
    assert check_spark_connection() == "local[2]"


@pytest.mark.parametrize(
    ("params", "now"),
    [
        pytest.param({}, NOW, id="when the run was due"),
        pytest.param({"now": None}, NOW, id="an empty form"),
        pytest.param(
            {"now": "2026-01-01T03:00:00+02:00"}, datetime(2026, 1, 1, 1, tzinfo=UTC), id="given"
        ),
        pytest.param(
            {"now": "2027-01-01T00:00:00Z", "allow_future_now": True},
            datetime(2027, 1, 1, tzinfo=UTC),
            id="a rehearsal",
        ),
    ],
)
def test_now(params: dict[str, Any], now: datetime) -> None:
    assert run_now(params, NOW, wall_clock=NOW) == now


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (
            "2026-01-02T02:00:01+00:00",
            "^expected `now` at or before the machine clock, 2026-01-02T02:00:00Z, found "
            r"2026-01-02T02:00:01.00:00\. Leave `now` empty or choose an earlier time$",
        ),
        ("2026-01-02T02:00:00", "^expected `now` with a time zone, found '2026-01-02T02:00:00'$"),
        ("soon", "^expected `now` as ISO 8601, found 'soon'$"),
    ],
)
def test_a_now_that_is_refused(now: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        run_now({"now": now}, NOW, wall_clock=NOW)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (None, []),
        (False, []),
        (True, ["--x"]),
        ("a b", ["--x", "a b"]),
        (0, ["--x", "0"]),
        (["a", "b"], ["--x", "a", "--x", "b"]),
        ([], []),
    ],
)
def test_a_param_as_an_option(value: Any, arguments: list[str]) -> None:
    assert options_of_params({"x": value}, [TEXT("x", "X", "")]) == arguments


def test_a_request_is_a_file_of_this_user_alone_until_the_job_has_ended() -> None:
    with driver_files(REQUEST) as files:
        file = files.request
        assert file is not None
        assert json.loads(file.read_text()) == REQUEST
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not file.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "a" * 100_001],
            "^expected at most 100,000 bytes in --set, found 100,001. Make the value shorter$",
        ),
        (
            ["--topic", "a" * 99_992] * 11,
            r"^expected at most 1,000,000 bytes of arguments, found 1,100,011 in 22\. "
            "Name fewer topics per run$",
        ),
    ],
)
def test_arguments_that_no_command_line_holds_are_refused(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        check_arguments(arguments)


def test_only_a_later_try_is_a_retry() -> None:
    """After a task was cleared, Airflow counts tries on and raises their maximum."""
    from ebbtide.orchestration.driver import attempt_of

    task = operator_of("nightly_retention", "clean_log")
    context = context_of(task)
    for try_number, max_tries, is_retry in [(1, 2, False), (2, 2, True), (4, 5, False)]:
        context["ti"] = FakeTaskInstance(task, try_number, max_tries)
        assert attempt_of(context).is_retry == is_retry
