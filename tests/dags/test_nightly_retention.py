from typing import Any

import pytest

from ebbtide.errors import CommitConflictError, ConfigurationError, SafetyError
from ebbtide.orchestration.night import NIGHT
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import asset_events, asset_extra, retention_told, run_dag, states
from tests.lake_sandbox import LakeSandbox, state_of

WORK = {0: state_of(first_unmarked_offset=0, cleaned_end_offset=0)}
LIMITED = {"kafka.cleanup.policy": "compact,delete", "kafka.retention.ms": "1"}


@pytest.mark.long
def test_no_topic_is_a_run_that_says_so(spark_submit: FakeSpark) -> None:
    run = run_dag("nightly_retention")
    assert run.state == "success"
    assert {states(run)[stage] for stage in NIGHT} == {"skipped"}
    assert spark_submit.submitted == []


def test_one_topic(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", WORK, LIMITED)
    run = run_dag("nightly_retention")
    assert run.state == "success"
    assert [(s.job, s.topics) for s in spark_submit.submitted] == [
        ("mark_tombstones", ["log.a"]),
        ("clean_log", ["log.a"]),
        ("expire_segments", ["log.a"]),
        ("expire_snapshots", ["log.a"]),
    ]
    (now,) = {submitted.options.now for submitted in spark_submit.submitted}
    assert now == run.run_after.isoformat(timespec="milliseconds")


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "groups"), [(250, [["log.a", "log.b"]]), (1, [["log.a"], ["log.b"]])]
)
def test_topics_share_an_application_up_to_its_size(
    lake: LakeSandbox, spark_submit: FakeSpark, size: int, groups: list[list[str]]
) -> None:
    lake.topic("log.a", WORK)
    lake.topic("log.b", WORK)
    run = run_dag("nightly_retention", topics_per_application=size)
    assert sorted(s.topics for s in spark_submit.submitted if s.job == "clean_log") == groups
    labels = {ti.rendered_map_index for ti in run.get_task_instances() if ti.task_id == "clean_log"}
    assert labels == {", ".join(group) for group in groups}


def test_a_topic_that_fails_stays_behind(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", WORK)
    lake.topic("log.b", WORK)
    spark_submit.failures["mark_tombstones", "log.a"] = [ConfigurationError("expected x, found y")]
    run = run_dag("nightly_retention")
    assert run.state == "failed"
    assert [s.topics for s in spark_submit.submitted] == [["log.a", "log.b"], ["log.b"], ["log.b"]]
    assert states(run) == {
        "group_topics": "success",
        "mark_tombstones[0]": "failed",
        "clean_log[0]": "success",
        "expire_segments[0]": "success",
        "delete_records[0]": "success",
        "expire_snapshots[0]": "success",
        "publish_low_watermarks": "success",
        "find_open_plans": "success",
        "request_approval": "skipped",
        "report_run": "failed",
    }


@pytest.mark.long
def test_a_retry_takes_only_what_a_retry_can_help(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    for name in ("log.done", "log.terminal", "log.transient"):
        lake.topic(name, WORK)
    spark_submit.failures["clean_log", "log.terminal"] = [ConfigurationError("expected x, found y")]
    spark_submit.failures["clean_log", "log.transient"] = [CommitConflictError("again")]
    run = run_dag("nightly_retention")
    assert run.state == "failed"
    assert [s.topics for s in spark_submit.submitted if s.job == "clean_log"] == [
        ["log.done", "log.terminal", "log.transient"],
        ["log.transient"],
    ]
    assert [s.topics for s in spark_submit.submitted if s.job == "expire_snapshots"] == [
        ["log.done", "log.transient"]
    ]


@pytest.mark.long
def test_a_spark_that_dies_without_a_word_is_tried_again(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a", WORK)
    spark_submit.dies_in["clean_log"] = 1
    run = run_dag("nightly_retention")
    assert run.state == "success"
    assert [s.job for s in spark_submit.submitted].count("clean_log") == 2


def test_a_stage_without_work_starts_no_spark(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a")
    run = run_dag("nightly_retention")
    assert run.state == "success"
    assert [submitted.job for submitted in spark_submit.submitted] == ["expire_snapshots"]


@pytest.mark.long
def test_replicas_are_asked_for_the_new_log_starts(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a", WORK, {**LIMITED, "ebbtide.replicas": "lake.copy"})
    lake.topic("log.b", WORK, {"kafka.cleanup.policy": "compact"})
    run_dag("nightly_retention")
    (asked,) = [s for s in spark_submit.submitted if s.job == "delete_records"]
    assert asked.options.request == (
        '{"topics": [{"topic": "log.a", "partitions": [{"partition": 0, "offset": 5}]}], '
        '"timeout_ms": 30000}'
    )


def test_healthy_topics_tell_their_assets_the_low_watermarks(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a", {0: state_of(log_start_offset=5)})
    lake.topic("log.b", WORK)
    spark_submit.failures["clean_log", "log.b"] = [ConfigurationError("expected x, found y")]
    run = run_dag("nightly_retention")
    assert asset_events(run) == {"ebbtide://lake/log/a": {"low_watermarks": {"0": 5}}}
    expected = {"cluster": "log", "topic": "a", "page": "/ebbtide/topics/log.a"}
    assert asset_extra("ebbtide://lake/log/a") == expected


@pytest.mark.long
def test_the_low_watermark_is_what_the_replicas_answered(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a", WORK, {**LIMITED, "ebbtide.replicas": "lake.copy"})
    spark_submit.low_watermarks = {"expire_segments": -1, "delete_records": 3}
    run = run_dag("nightly_retention")
    assert asset_events(run) == {"ebbtide://lake/log/a": {"low_watermarks": {"0": 3}}}
    (retention,) = retention_told(run).values()
    assert retention == {
        "cleanup_policy": ["compact", "delete"],
        "next_horizon": None,
        "next_expiry": None,
    }


@pytest.mark.long
def test_only_the_topics_asked_for(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", WORK)
    lake.topic("log.b", WORK)
    lake.topic("log.off", WORK, {"ebbtide.enabled": "false"})
    run_dag("nightly_retention", topics=["log.b", "log.off"])
    assert {tuple(submitted.topics) for submitted in spark_submit.submitted} == {("log.b",)}


@pytest.mark.long(but="in the future")
@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({"now": "2999-01-01T00:00:00+00:00"}, id="in the future"),
        pytest.param({"now": "tomorrow"}, id="not a time"),
        pytest.param({"now": "2026-01-01T00:00:00"}, id="without a zone"),
        pytest.param({"topics": ["log.nope"]}, id="an unknown topic"),
    ],
)
def test_what_cannot_be_fails_the_run_before_any_stage(
    lake: LakeSandbox, spark_submit: FakeSpark, conf: dict[str, Any]
) -> None:
    lake.topic("log.a", WORK)
    run = run_dag("nightly_retention", **conf)
    assert run.state == "failed"
    assert states(run)["group_topics"] == "failed"
    assert spark_submit.submitted == []


@pytest.mark.long
def test_a_rehearsal_may_be_in_the_future(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    lake.topic("log.a", WORK)
    run = run_dag("nightly_retention", now="2999-01-01T00:00:00Z", allow_future_now=True)
    assert run.state == "success"
    assert {s.options.now for s in spark_submit.submitted} == {"2999-01-01T00:00:00.000+00:00"}


@pytest.mark.long
def test_a_plan_that_removes_too_much_is_not_tried_again_and_skips_its_group(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.a", WORK, LIMITED)
    lake.topic("log.b", WORK, LIMITED)
    spark_submit.failures["expire_segments", "log.a"] = [SafetyError("expected less")]
    run = run_dag("nightly_retention", topics_per_application=1)
    assert run.state == "failed"
    expired = [s.topics for s in spark_submit.submitted if s.job == "expire_segments"]
    assert sorted(expired) == [["log.a"], ["log.b"]]
    freed = [s.topics for s in spark_submit.submitted if s.job == "expire_snapshots"]
    assert freed == [["log.b"]]
    assert states(run)["delete_records[0]"] == states(run)["expire_snapshots[0]"] == "skipped"
