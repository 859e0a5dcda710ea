"""The form of delete_records, and the connections that its job gets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ebbtide.settings.upstream import CONNECTIONS
from tests.dags.answers import run_and_answer
from tests.dags.fake_spark import FakeSpark
from tests.dags.forms.connections import KAFKA, SECRET
from tests.dags.runs import rendered, run_dag, xcoms
from tests.lake_sandbox import LakeSandbox

DELETED = {"kafka.cleanup.policy": "delete"}


@pytest.mark.long(but="one topic")
@pytest.mark.parametrize(
    ("form", "asked"),
    [
        pytest.param(
            {"topic": "log.a", "offsets": {"0": 7, "1": -1}},
            {"partitions": [{"partition": 0, "offset": 7}, {"partition": 1, "offset": -1}]},
            id="one topic",
        ),
        pytest.param(
            {"topic": None, "offsets": {"log.a": {"0": 7}}},
            {"partitions": [{"partition": 0, "offset": 7}]},
            id="by topic",
        ),
        pytest.param({"topic": "log.a", "age": "P30D"}, {"age": "P30D"}, id="by age"),
    ],
)
def test_delete_records_makes_a_request(
    lake: LakeSandbox, spark_submit: FakeSpark, form: dict[str, Any], asked: dict[str, Any]
) -> None:
    lake.topic("log.a", config=DELETED)
    run = run_dag("delete_records", **form, plan_only=True)
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    assert json.loads(submitted.options.request) == {
        "topics": [{"topic": "log.a", **asked}],
        "timeout_ms": 30_000,
    }


@pytest.mark.long
def test_a_request_of_many_partitions_is_no_argument(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    """Linux refuses an argument of more than 128 KiB: Argument list too long."""
    lake.topic("log.a", config=DELETED)
    offsets = {str(partition): 7 for partition in range(3_500)}
    run = run_dag("delete_records", topic="log.a", offsets=offsets, plan_only=True)
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    assert len(json.loads(submitted.options.request)["topics"][0]["partitions"]) == 3_500
    assert max(map(len, submitted.command)) < 1_000
    file = submitted.command[submitted.command.index("--request-file") + 1]
    assert not Path(file).exists()


@pytest.mark.long(but="two things")
@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"topic": None, "offsets": {"0": 7}}, id="no topic"),
        pytest.param({"topic": "log.a"}, id="nothing to go by"),
        pytest.param({"topic": "log.a", "offsets": {"0": 1}, "groups": ["g"]}, id="two things"),
    ],
)
def test_a_malformed_request_reaches_no_spark_and_is_blamed(
    spark_submit: FakeSpark, caplog: pytest.LogCaptureFixture, form: dict[str, Any]
) -> None:
    run = run_dag("delete_records", **form)
    assert run.state == "failed"
    assert spark_submit.submitted == []
    output = caplog.text
    assert "FAILED build_request failed: RequestError: expected " in output
    assert "delete_records failed" not in output


def test_a_connections_secret_reaches_the_driver_and_nothing_else(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By request and by replica; as YARN would show it, whose command line names env_vars."""
    for name in ("asked", "replica", "other"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(KAFKA))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type":"spark","host":"yarn"}')
    lake.topic("log.a", config={"ebbtide.replicas": "copy.log,kafka:replica"})
    form = {"topic": "log.a", "groups": ["g"], "connection": "asked"}
    run = run_and_answer("delete_records", **form).run
    planned, executed = spark_submit.submitted
    for submitted in (planned, executed):
        assert submitted.command[submitted.command.index("--master") + 1] == "yarn"
        connections = json.loads(submitted.connections or "")
        assert connections == dict.fromkeys(["asked", "replica"], KAFKA["extra"])
    assert CONNECTIONS not in os.environ
    commands = [*planned.command, *executed.command]
    seen = [*commands, capfd.readouterr(), caplog.text, xcoms(run), rendered(run)]
    assert "kafka:9092" not in str(seen)
    assert SECRET not in str(seen)
    assert "--request-file" in planned.command
    assert "log.a" in xcoms(run)
    assert "groups" in rendered(run)


@pytest.mark.long
@pytest.mark.parametrize("connection", [None, {**KAFKA, "conn_type": "http"}])
def test_a_connection_that_airflow_does_not_have_is_left_to_the_job(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    monkeypatch: pytest.MonkeyPatch,
    connection: dict[str, Any] | None,
) -> None:
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_ASKED", json.dumps(connection))
    lake.topic("log.a", config=DELETED)
    form = {"topic": "log.a", "groups": ["g"], "connection": "asked"}
    run_dag("delete_records", **form, plan_only=True)
    (submitted,) = spark_submit.submitted
    assert submitted.connections is None
