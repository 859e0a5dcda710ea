"""Settings are set by a plan only while the next run would remove no more than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.topics import load
from ebbtide.ledger.plans import Plan, PlanStep, offset_range
from ebbtide.settings.names import TopicName
from jobs import configure_topic
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", DAY_MS), Message("c", "1", DAY_MS)],
    [Message("d", "1", 2 * DAY_MS)],
]
RETENTION = ("--set", "kafka.cleanup.policy=compact,delete", "--set", "kafka.retention.ms=")


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    return name


def plan(jobs: Jobs, name: TopicName, retention_ms: float) -> Plan:
    *others, retention = RETENTION
    asked = (*others, f"{retention}{int(retention_ms)}", "--unset", "ebbtide.source")
    return jobs.plan(configure_topic, NIGHT_MS, "--topic", str(name), *asked)


def execute(jobs: Jobs, kept: Plan) -> int:
    return jobs.run(configure_topic, "--plan", kept.plan_id, "--approved-by", "bob")


def test_what_both_stages_would_remove_is_planned_and_the_settings_are_set(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    before = load(sandbox.session, name).properties
    kept = plan(jobs, name, 9.5 * DAY_MS)
    assert load(sandbox.session, name).properties == before
    # The round would supersede the first a; the first segment would expire with it.
    assert kept.removes == {0: offset_range(0, 2)}
    of_partition = kept.summary["partitions"]["0"]
    assert sorted(of_partition["rules"]) == ["superseded", "time"]
    changes = {
        "kafka.cleanup.policy": "compact,delete",
        "kafka.retention.ms": str(int(9.5 * DAY_MS)),
        "ebbtide.source": None,
    }
    assert kept.parameters == {"changes": changes}
    assert execute(jobs, kept) == ExitCode.DONE
    assert load(sandbox.session, name).config.retention_ms == int(9.5 * DAY_MS)
    assert sandbox.session.table(name.records_table).count() == 5
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXECUTED]


def test_a_plan_names_the_settings_by_which_a_later_night_removes_more(
    jobs: Jobs, name: TopicName
) -> None:
    kept = plan(jobs, name, 99 * DAY_MS)
    assert kept.removes == {0: offset_range(0, 1)}  # the cleaner's
    later = "a later nightly run may remove more because of"
    settings = "kafka.cleanup.policy, kafka.retention.ms"
    assert kept.text.splitlines()[-1] == f"{later} {settings}"


@pytest.mark.long
def test_a_topic_with_a_wrong_setting_is_repaired_by_a_plan(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    set_properties(sandbox.session, str(name), {"kafka.retention.ms": "soon"})
    kept = plan(jobs, name, 99 * DAY_MS)
    assert execute(jobs, kept) == ExitCode.DONE
    assert load(sandbox.session, name).config.retention_ms == 99 * DAY_MS


@pytest.mark.long
def test_later_records_are_not_the_plans(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, tmp_path: Path
) -> None:
    kept = plan(jobs, name, 9.5 * DAY_MS)
    active = tmp_path / "log" / "t-0" / f"{4:020}.log"
    active.write_bytes(active.read_bytes() + batch_of([Message("c", "2", 9 * DAY_MS)], 5))
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    assert execute(jobs, kept) == ExitCode.DONE


def test_settings_that_came_between_stop_the_plan(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    kept = plan(jobs, name, 9.5 * DAY_MS)
    stricter = {"kafka.retention.bytes": "0"}
    set_properties(sandbox.session, str(name), stricter)
    assert execute(jobs, kept) == ExitCode.DONE  # by the bounds of the plan it removes no more
    again = plan(jobs, name, 9.5 * DAY_MS)
    assert again.removes == {0: offset_range(0, 5)}


@pytest.mark.long
def test_four_eyes_hold_for_settings_that_would_remove(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    """A setting by which nothing goes, now or later, needs nobody else."""
    set_properties(sandbox.session, str(name), {"ebbtide.plan.four.eyes": "true"})
    now = ("--now", at(NIGHT_MS).isoformat(), "--requested-by", "ann")
    asked = ("--set", "kafka.cleanup.policy=compact", "--set", "ebbtide.plan.four.eyes=false")
    assert jobs.run(configure_topic, "--topic", str(name), *asked, *now) == ExitCode.FAILED
    assert jobs.last_run().error_class == "PlanError"
    assert load(sandbox.session, name).config.plans_need_four_eyes
    harmless = ("--set", "kafka.cleanup.policy=", "--set", "kafka.segment.ms=7")
    assert jobs.run(configure_topic, "--topic", str(name), *harmless, *now) == ExitCode.DONE
    later = ("--set", "kafka.cleanup.policy=delete", "--set", f"kafka.retention.ms={99 * DAY_MS}")
    assert jobs.run(configure_topic, "--topic", str(name), *later, *now) == ExitCode.FAILED
    assert load(sandbox.session, name).config.retention_ms is None
    for change in (
        ("--set", "ebbtide.plan.four.eyes=false"),
        ("--unset", "ebbtide.plan.four.eyes"),
    ):
        assert jobs.run(configure_topic, "--topic", str(name), *change, *now) == ExitCode.FAILED
        assert load(sandbox.session, name).config.plans_need_four_eyes
