import json
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, ForeignLogError, RequestError
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import run_dag, states
from tests.lake_sandbox import LakeSandbox


def test_ingest_passes_its_form_on(spark_submit: FakeSpark) -> None:
    run = run_dag("ingest_segments", source="/logs", cluster="eu", accept_gap=True)
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    assert (submitted.options.source, submitted.options.cluster) == ("/logs", "eu")
    assert submitted.options.accept_gap
    assert submitted.options.topic == []


def test_ingest_of_chosen_topics(spark_submit: FakeSpark) -> None:
    run_dag("ingest_segments", topics=["log.a", "log.b"])
    assert spark_submit.submitted[0].options.topic == ["log.a", "log.b"]


def test_an_ingest_that_fails_is_named(spark_submit: FakeSpark) -> None:
    spark_submit.failures["ingest_segments", "log.found"] = [ForeignLogError("another log")]
    run = run_dag("ingest_segments")
    assert states(run) == {
        "ingest_segments": "failed",
        "publish_low_watermarks": "success",
        "verdict": "failed",
    }


def test_an_ingest_that_dies_before_any_topic_fails_the_run(spark_submit: FakeSpark) -> None:
    spark_submit.dies_in["ingest_segments"] = 3
    run = run_dag("ingest_segments")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 3


def test_configure_passes_its_lines_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    run = run_dag(
        "configure_topic",
        topic="log.a",
        set=["kafka.retention.ms=5", "ebbtide.enabled=true"],
        unset=["kafka.retention.bytes"],
        plan_only=False,
    )
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    assert submitted.options.set == ["kafka.retention.ms=5", "ebbtide.enabled=true"]
    assert submitted.options.unset == ["kafka.retention.bytes"]
    assert submitted.topics == ["log.a"]
    assert not submitted.options.plan_only


def test_a_plan_changes_nothing_and_leaves_no_row(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"])
    assert run.state == "success"
    assert spark_submit.submitted[0].options.plan_only


def test_a_plan_that_cannot_be_made_fails(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    spark_submit.dies_in["configure_topic"] = 3
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=soon"])
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1


def test_a_refused_configuration_is_not_tried_again(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.failures["configure_topic", "log.a"] = [ConfigurationError("expected x, found y")]
    run = run_dag("configure_topic", topic="log.a", plan_only=False)
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1


@pytest.mark.parametrize(
    ("form", "partitions"),
    [
        pytest.param(
            {"topic": "log.a", "offsets": {"0": 7, "1": -1}},
            [{"partition": 0, "offset": 7}, {"partition": 1, "offset": -1}],
            id="one topic",
        ),
        pytest.param(
            {"topic": None, "offsets": {"log.a": {"0": 7}}},
            [{"partition": 0, "offset": 7}],
            id="by topic",
        ),
    ],
)
def test_delete_records_makes_a_request(
    lake: LakeSandbox, spark_submit: FakeSpark, form: dict[str, Any], partitions: list[Any]
) -> None:
    lake.topic("log.a")
    run = run_dag("delete_records", **form)
    assert run.state == "success"
    (submitted,) = spark_submit.submitted
    assert json.loads(submitted.options.request) == {
        "topics": [{"topic": "log.a", "partitions": partitions}],
        "timeout_ms": 30_000,
    }


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"topic": None, "offsets": {"0": 7}}, id="no topic"),
        pytest.param({"topic": "log.a", "offsets": {"0": -2}}, id="below -1"),
        pytest.param({"topic": "log.a", "offsets": {"first": 1}}, id="not a partition"),
    ],
)
def test_a_malformed_request_reaches_no_spark(
    spark_submit: FakeSpark, form: dict[str, Any]
) -> None:
    run = run_dag("delete_records", **form)
    assert run.state == "failed"
    assert spark_submit.submitted == []


def test_export_passes_its_form_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    run = run_dag("export_segments", topic="log.a", partitions=[0, 2], target="/restore/log")
    assert run.state == "success"
    assert states(run) == {"export_segments": "success", "verdict": "success"}
    (submitted,) = spark_submit.submitted
    assert submitted.topics == ["log.a"]
    assert submitted.options.partition == ["0", "2"]
    assert submitted.options.target == "/restore/log"


def test_a_refused_target_is_not_tried_again(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    refusal = RequestError("expected a target that is empty, found a log")
    spark_submit.failures["export_segments", "log.a"] = [refusal]
    run = run_dag("export_segments", topic="log.a", target="/logs")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1
