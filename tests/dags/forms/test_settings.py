"""The forms of configure_topic and mark_tombstones: checked early, planned, and passed on."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import (
    ConfigurationError,
    RequestError,
)
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE
from tests.dags.answers import run_and_answer
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import note, run_dag, states
from tests.lake_sandbox import LakeSandbox, state_of


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
        "report_run": "success",
    }
    planned, executed = spark_submit.submitted
    assert planned.options.set == ["kafka.retention.ms=5", "ebbtide.enabled=true"]
    assert planned.options.unset == ["kafka.retention.bytes"]
    assert planned.topics == executed.topics == ["log.a"]
    assert (executed.options.set, len(executed.options.plan)) == ([], 1)


@pytest.mark.long
def test_settings_by_which_nothing_would_go_are_set_at_once(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a")
    spark_submit.planned_records = 0
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"], plan_only=False)
    assert states(run)["configure_topic"] == "success"
    assert [submitted.options.plan_only for submitted in spark_submit.submitted] == [True, False]


@pytest.mark.long
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
    with pytest.raises(ParamValidationError, match="NAME=VALUE, of kafka"):
        run_dag("configure_topic", topic="log.a", set=[f"{name}=1"])


def test_a_plan_changes_nothing_and_report_run_shows_it(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    lake.topic("log.a")
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"])
    assert run.state == "success"
    of_task, of_report = capfd.readouterr().out, caplog.text
    assert "configure_topic log.a: a plan" in of_task
    assert of_report.count("configure_topic log.a: a plan") == 1
    assert "nothing to do" not in of_task + of_report
    assert spark_submit.submitted[0].options.plan_only


def test_a_plan_that_cannot_be_made_says_why_in_one_line(
    lake: LakeSandbox, spark_submit: FakeSpark, caplog: pytest.LogCaptureFixture
) -> None:
    lake.topic("log.a")
    spark_submit.causes["configure_topic"] = [
        ("log.a", "ConfigurationError", "log.a is paused until T.\nEnd the pause")
    ]
    run = run_dag("configure_topic", topic="log.a", set=["kafka.retention.ms=5"])
    assert run.state == "failed"
    cause = "log.a: ConfigurationError: log.a is paused until T.; End the pause"
    assert note(run) == f"plan failed: {cause}"
    of_ours = ("ebbtide: FAILED ", "FAILED ")
    failed = [line for line in caplog.messages if line.startswith(of_ours)]
    assert failed == [f"ebbtide: FAILED {cause}", f"FAILED plan failed: {cause}"]
    assert len(spark_submit.submitted) == 1


@pytest.mark.long(but="topic")
@pytest.mark.parametrize(
    ("form", "cause"),
    [
        pytest.param(
            {"topic": "log.b", "set": ["kafka.retention.ms=5"]},
            "UnknownTopicError: expected a table for topic log.b, found none. The lake has log.a",
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


@pytest.mark.long
def test_marking_again_passes_its_form_on(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    """Also where the state shows that all is marked."""
    lake.topic("log.a", {0: state_of(first_dirty_offset=5)})
    form = {"topic": "log.a", "from_offset": ["0:7", "9"], "plan_only": False}
    answered = run_and_answer("mark_tombstones", **form)
    assert (
        answered.subject
        == "mark_tombstones: mark tombstones of log.a and move 3 records to quarantine?"
    )
    assert states(answered.run) == {
        "plan": "success",
        "approve": "success",
        "mark_tombstones": "success",
        "record_rejection": "skipped",
        "report_run": "success",
    }
    planned, marked = (submitted.options for submitted in spark_submit.submitted)
    assert (planned.topic, planned.from_offset) == (["log.a"], ["0:7", "9"])
    assert (planned.plan_only, marked.plan_only) == (True, False)
    assert (len(marked.plan), marked.from_offset) == (1, [])


@pytest.mark.long
def test_a_refused_offset_is_not_tried_again(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", {0: state_of(first_dirty_offset=0)})
    refusal = RequestError("expected an offset in [5, 9], found 3")
    spark_submit.failures["mark_tombstones", "log.a"] = [refusal]
    spark_submit.planned_records = 0
    run = run_dag("mark_tombstones", topic="log.a", from_offset=["3"], plan_only=False)
    assert run.state == "failed"
    assert len(spark_submit.submitted) == 2
