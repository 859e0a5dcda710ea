"""Live topics in Airflow: the form, where the connection goes, and who may wait for an ingest."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ebbtide.errors import OffsetGapError
from ebbtide.settings.upstream import CONNECTIONS
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import (
    asset_events,
    dag_bag,
    rendered,
    run_dag,
    run_failed_again,
    states,
    unpause,
    xcoms,
)
from tests.lake_sandbox import LakeSandbox

SECRET = "hushed-word-of-the-broker"
KAFKA = {
    "conn_type": "kafka",
    "extra": {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET},
}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    kind = getattr(request, "param", "kafka")
    monkeypatch.setenv("AIRFLOW_CONN_MAIN", json.dumps({**KAFKA, "conn_type": kind}))


@pytest.mark.long(but="kafka")
@pytest.mark.parametrize("connection", ["kafka", "generic"], indirect=True)
def test_the_form_is_passed_on_and_the_connection_by_the_environment_alone(
    spark_submit: FakeSpark,
    connection: None,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = run_dag(
        "ingest_topic",
        connection="main",
        cluster="eu",
        topics=["eu.a", "eu.b"],
        pattern="c.*",
        isolation="read_uncommitted",
        accept_gap=True,
    )
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    options = submitted.options
    assert (options.connection, options.cluster, options.topic) == ("main", "eu", ["eu.a", "eu.b"])
    assert (options.topics_pattern, options.isolation) == ("c.*", "read_uncommitted")
    assert options.accept_gap
    assert json.loads(submitted.connections or "") == {"main": KAFKA["extra"]}
    assert CONNECTIONS not in os.environ
    seen = [*submitted.command, capfd.readouterr(), caplog.text, xcoms(run), rendered(run)]
    assert SECRET not in str(seen)
    assert "kafka:9092" not in str(seen)
    assert "--connection" in submitted.command


def test_a_failed_job_that_runs_again_alone_is_published_and_judged(
    lake: LakeSandbox, spark_submit: FakeSpark, connection: None
) -> None:
    for name in ("log.a", "log.b"):
        lake.topic(name)
    spark_submit.failures["ingest_topic", "log.b"] = [OffsetGapError("2 offsets")]
    run = run_dag("ingest_topic", connection="main", topics=["log.a", "log.b"])
    assert states(run) == {
        "ingest_topic": "failed",
        "publish_low_watermarks": "success",
        "report_run": "failed",
    }
    assert published(run) == {"log.a": {"0": 5}}
    assert asset_events(run) == {
        "ebbtide://lake/log/a": {"low_watermarks": {"0": 5}},
        "ebbtide://ingested/": {},
    }
    run = run_failed_again(run)
    assert set(states(run).values()) == {"success"}
    assert asset_events(run) == {
        "ebbtide://lake/log/a": {"low_watermarks": {"0": 5}},
        "ebbtide://lake/log/b": {"low_watermarks": {"0": 5}},
        "ebbtide://ingested/": {},
    }


@pytest.mark.long
def test_what_refuses_all_topics_is_not_tried_again(
    spark_submit: FakeSpark, connection: None
) -> None:
    spark_submit.refuses.add("ingest_topic")
    run = run_dag("ingest_topic", connection="main", pattern="none")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1


@pytest.mark.long(but="True")
@pytest.mark.parametrize("is_asked", [True, False])
def test_configure_gets_the_connection_of_the_topics_source(
    lake: LakeSandbox, spark_submit: FakeSpark, connection: None, is_asked: bool
) -> None:
    lake.topic("log.a", config={"ebbtide.source": "kafka:main"})
    run_dag("configure_topic", topic="log.a", from_source=is_asked, plan_only=True)
    (submitted,) = spark_submit.submitted
    assert submitted.options.from_source is is_asked
    given = json.loads(submitted.connections) if submitted.connections else {}
    assert given == ({"main": KAFKA["extra"]} if is_asked else {})


@pytest.mark.long
def test_a_night_may_follow_each_ingest_and_not_itself(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    connection: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EBBTIDE_NIGHTLY_SCHEDULE", "ingested")
    lake.topic("log.a")
    unpause("nightly_retention")
    assert queued("nightly_retention") == []
    run_dag("ingest_topic", connection="main", topics=["log.a"])
    assert queued("nightly_retention") == ["ebbtide://ingested/"]


def test_the_schedule_of_the_night_is_a_cron_expression_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EBBTIDE_NIGHTLY_SCHEDULE", "0 4 * * *")
    assert dag_bag().dags["nightly_retention"].schedule.summary == "0 4 * * *"


def published(run: Any) -> Any:
    """The XCom of publish_low_watermarks."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(XComModel).filter(XComModel.run_id == run.run_id)
        (xcom,) = rows.filter(XComModel.task_id == "publish_low_watermarks")
        return XComModel.deserialize_value(xcom)


def queued(dag_id: str) -> list[Any]:
    """The assets whose events a run of the DAG waits to consume."""
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session

    with create_session() as session:
        queue = session.query(AssetDagRunQueue)
        return [q.asset.uri for q in queue.filter(AssetDagRunQueue.target_dag_id == dag_id)]
