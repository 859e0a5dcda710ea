import json
import os
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import (
    ConfigurationError,
    CorruptSegmentError,
    ForeignLogError,
    OversizedBatchError,
    RequestError,
    UnavailableError,
    standing_for,
)
from ebbtide.log.requests.erase_request import KEYS
from ebbtide.log.settings.connections import CONNECTIONS
from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE
from tests.dags.answers import run_and_answer
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import note, rendered, run_dag, states, xcoms
from tests.lake_sandbox import LakeSandbox, state_of

DELETED = {"kafka.cleanup.policy": "delete"}


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


def test_the_causes_of_two_partitions_are_one_whole_line_and_the_note(
    spark_submit: FakeSpark, caplog: pytest.LogCaptureFixture
) -> None:
    first = f"/log/{'x' * 500}/0.log: expected magic 2, found 9; copy the file again"
    second = "/log/found-1/0.log: expected at most 5 MiB, found 9 MiB; raise the setting"
    error = standing_for([CorruptSegmentError(first), OversizedBatchError(second)])
    spark_submit.failures["ingest_segments", "log.found"] = [error]
    run = run_dag("ingest_segments")
    failure = (
        "log.found failed in ingest_segments: "
        f"CorruptSegmentError: {first}; OversizedBatchError: {second}"
    )
    assert [text for text in caplog.messages if text.startswith("FAILED ")] == [f"FAILED {failure}"]
    assert note(run) == failure


def test_an_ingest_that_dies_before_any_topic_fails_the_run(spark_submit: FakeSpark) -> None:
    spark_submit.dies_in["ingest_segments"] = 3
    run = run_dag("ingest_segments")
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 3


def test_configure_passes_its_lines_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    answered = run_and_answer(
        "configure_topic",
        topic="log.a",
        set=["kafka.retention.ms=5", "ebbtide.enabled=true"],
        unset=["kafka.retention.bytes"],
        plan_only=False,
    )
    assert states(answered.run) == {
        "plan": "success",
        "approve": "success",
        "configure_topic": "success",
        "record_rejection": "skipped",
        "verdict": "success",
    }
    planned, executed = spark_submit.submitted
    assert planned.options.set == ["kafka.retention.ms=5", "ebbtide.enabled=true"]
    assert planned.options.unset == ["kafka.retention.bytes"]
    assert planned.topics == executed.topics == ["log.a"]
    assert (executed.options.set, len(executed.options.plan)) == ([], 1)


def test_settings_by_which_nothing_would_go_are_set_at_once(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.planned_records = 0
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"], plan_only=False)
    assert states(run)["configure_topic"] == "success"
    assert [submitted.options.plan_only for submitted in spark_submit.submitted] == [True, False]


def test_configure_takes_icebergs_setting(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    for lines in ({"set": [f"{MAX_SNAPSHOT_AGE}=0"]}, {"unset": [MAX_SNAPSHOT_AGE]}):
        assert run_dag("configure_topic", topic="log.a", **lines).state == "success"
    set_, unset = spark_submit.submitted
    assert set_.options.set == [f"{MAX_SNAPSHOT_AGE}=0"]
    assert unset.options.unset == [MAX_SNAPSHOT_AGE]


@pytest.mark.parametrize("name", ["write.format.default", "history.expire.min-snapshots-to-keep"])
def test_configure_takes_no_other_setting_of_icebergs(lake: LakeSandbox, name: str) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    lake.topic("log.a")
    with pytest.raises(ParamValidationError, match="does not match"):
        run_dag("configure_topic", topic="log.a", set=[f"{name}=1"])


def test_a_plan_changes_nothing_and_verdict_shows_it(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lake.topic("log.a")
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"])
    assert run.state == "success"
    output = capfd.readouterr().out + caplog.text
    assert output.count("configure_topic log.a: a plan") == 2  # the task's log, and verdict's
    assert "nothing to do" not in output
    assert spark_submit.submitted[0].options.plan_only


def test_a_plan_that_cannot_be_made_fails(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    spark_submit.dies_in["configure_topic"] = 3
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"])
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1


@pytest.mark.parametrize(
    ("form", "cause"),
    [
        pytest.param(
            {"topic": "log.b", "set": ["kafka.retention.ms=5"]},
            "UnknownTopicError: expected a table for topic log.b, found none; the lake holds log.a",
            id="topic",
        ),
        pytest.param(
            {"topic": "log.a", "set": ["kafka.retention.ms=soon", "kafka.segment.ms=0"]},
            "expected an integer in [1, 9223372036854775807] for kafka.segment.ms, found '0'",
            id="settings",
        ),
    ],
)
def test_what_the_state_shows_to_be_wrong_starts_no_spark(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    caplog: pytest.LogCaptureFixture,
    form: dict[str, Any],
    cause: str,
) -> None:
    lake.topic("log.a")
    run = run_dag("configure_topic", **form)
    assert run.state == "failed"
    assert spark_submit.submitted == []
    of_ours = ("ebbtide: FAILED ", "FAILED ")
    failed = [message for message in caplog.messages if message.startswith(of_ours)]
    assert [cause in line for line in failed] == [True, True]
    assert failed[1].startswith("FAILED plan failed: ")


def test_a_refused_configuration_is_not_tried_again(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.failures["configure_topic", "log.a"] = [ConfigurationError("expected x, found y")]
    run = run_and_answer("configure_topic", topic="log.a", plan_only=False).run
    assert run.state == "failed"
    assert [submitted.options.plan_only for submitted in spark_submit.submitted] == [True, False]


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


SECRET = "hush-hush"
KAFKA = {
    "conn_type": "kafka",
    "extra": {"bootstrap.servers": "kafka:9092", "sasl.password": SECRET},
}


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


def test_export_passes_its_form_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", {partition: state_of() for partition in range(3)})
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


def test_marking_again_passes_its_form_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    """Also where the state shows that all is marked."""
    lake.topic("log.a", {0: state_of(first_dirty_offset=5)})
    run = run_dag("mark_tombstones", topic="log.a", from_offset=["0:7", "9"], plan_only=False)
    assert run.state == "success"
    assert states(run) == {"mark_tombstones": "success", "verdict": "success"}
    (submitted,) = spark_submit.submitted
    assert submitted.topics == ["log.a"]
    assert submitted.options.from_offset == ["0:7", "9"]
    assert not submitted.options.plan_only


def test_a_refused_offset_is_not_tried_again(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", {0: state_of(first_dirty_offset=0)})
    refusal = RequestError("expected an offset in [5, 9], found 3")
    spark_submit.failures["mark_tombstones", "log.a"] = [refusal]
    run = run_dag("mark_tombstones", topic="log.a", from_offset=["3"], plan_only=False)
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 1


ASKED = {"topic": "log.a", "requested_by": "privacy office", "reason": "request 17"}


def test_erase_keys_shows_no_key_but_to_its_driver(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor a secret of the upstream's connection, of the replica's or of the one in the form."""
    for name in ("asked", "writer", "other"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(KAFKA))
    config = {"kafka.cleanup.policy": "compact", "ebbtide.source": "kafka:writer"}
    lake.topic("log.a", config=config)
    keys = ["alice@example.org", "b o b"]
    form = {**ASKED, "keys": keys, "connection": "asked", "timeout_ms": 5}
    answered = run_and_answer("erase_keys", **form)
    run = answered.run
    assert run.state == "success"
    planned, executed = spark_submit.submitted
    assert planned.keys == executed.keys == "alice@example.org\nb o b"
    assert planned.topics == executed.topics == ["log.a"]
    options = planned.options
    assert (options.requested_by, options.reason) == ("privacy office", "request 17")
    assert (options.encoding, options.connection, options.timeout_ms) == ("utf-8", "asked", "5")
    assert (options.append, options.keys_file) == (False, None)
    for submitted in (planned, executed):
        assert json.loads(submitted.connections or "").keys() == {"asked", "writer"}
    assert KEYS not in os.environ
    assert CONNECTIONS not in os.environ
    shown = [*planned.command, *executed.command, answered.body, xcoms(run), rendered(run)]
    seen = str([*shown, capfd.readouterr(), caplog.text])
    assert "alice" not in seen
    assert SECRET not in seen


def test_erase_keys_of_a_file_of_a_closed_archive(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    run_and_answer("erase_keys", **ASKED, keys_file="s3://keys/17", encoding="hex", append=True)
    planned, executed = spark_submit.submitted
    assert (planned.options.keys_file, planned.options.encoding) == ("s3://keys/17", "hex")
    assert planned.options.append
    assert (executed.options.keys_file, len(executed.options.plan)) == ("s3://keys/17", 1)
    for submitted in (planned, executed):
        assert (submitted.keys, submitted.connections) == (None, None)


def test_more_keys_than_an_environment_holds_are_refused(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    run = run_dag("erase_keys", **ASKED, keys=["k" * 50_000, "l" * 50_000])
    assert run.state == "failed"
    assert spark_submit.submitted == []


def test_an_erasure_that_did_not_arrive_is_asked_for_again(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.failures["erase_keys", "log.a"] = [UnavailableError("not in time"), None]
    run = run_and_answer("erase_keys", **ASKED, keys=["k"]).run
    assert run.state == "success"
    assert [submitted.keys for submitted in spark_submit.submitted] == ["k", "k", "k"]
