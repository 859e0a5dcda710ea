"""A repair is planned, kept, and done as its plan says or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.ledger.plans import PlanStep
from ebbtide.settings.names import TopicName
from jobs import repair_state
from tests.iceberg.test_foreign_changes import NIGHT_MS
from tests.iceberg.test_foreign_changes import topic as topic
from tests.jobs.hold_records.builders import kept, make_hold
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import contents
from tests.tables.counted import assert_counted
from tests.tables.nights import at, set_properties
from tests.tables.other_tools import expire_all, tables_of
from tests.tables.planned import Jobs

NOW = ("--now", at(NIGHT_MS).isoformat())


def copy_segment(sandbox: LakeSandbox, name: TopicName, segment: int) -> None:
    """Somebody appends once more what a segment holds, in both tables."""
    for table in tables_of(name):
        sandbox.session.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE segment = {segment}")


def refused(jobs: Jobs, plan_id: str) -> str:
    """The plan is not executed; the error."""
    assert jobs.run(repair_state, "--plan", plan_id) == ExitCode.FAILED
    row: Any = jobs.last_run()
    assert row.error_class == "PlanExceededError"
    return str(row.error)


@pytest.mark.long
def test_copies_leave_as_planned_also_if_the_repair_was_killed(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName, kill_at: list[Step]
) -> None:
    before = contents(sandbox.session, topic)
    copy_segment(sandbox, topic, 9)
    kept = jobs.plan(repair_state, NIGHT_MS, "--topic", str(topic), "--keep-changes")
    assert kept.removes == {0: BitMap64([9, 10])}
    of_partition = kept.summary["partitions"]["0"]
    assert (of_partition["records"], of_partition["rules"]) == (2, {"copies": {"records": 2}})
    assert len(of_partition["example_keys"]) == 2
    assert of_partition["oldest_event_ms"] is not None
    assert "first-unmarked-offset 0 instead of 15" in of_partition["sets"]
    assert [line.split(":")[0] for line in kept.parameters["found"]] == ["records", "batches"]
    assert "method: keep" in kept.text

    kill_at.append(Step.REPAIR_BATCHES)
    approved = ("--plan", kept.plan_id, "--approved-by", "bob")
    assert jobs.run(repair_state, *approved) != ExitCode.DONE
    assert jobs.run(repair_state, *approved) == ExitCode.DONE
    after = contents(sandbox.session, topic)
    assert (after.records, after.batches) == (before.records, before.batches)
    assert load(sandbox.session, topic).partitions[0].first_unmarked_offset == 0
    assert_counted(sandbox.session, topic)
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXECUTED]


@pytest.mark.long
def test_a_plan_ends_with_the_next_change_of_others(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    """Whether the change is to be kept or taken back."""
    before = contents(sandbox.session, topic)
    asked = ("--topic", str(topic))
    records = topic.records_table
    columns = ", ".join(
        "offset + 100 AS offset" if name == "offset" else f"`{name}`"
        for name in sandbox.session.table(records).columns
    )
    sandbox.session.sql(f"INSERT INTO {records} SELECT {columns} FROM {records} WHERE segment = 3")
    back = jobs.plan(repair_state, NIGHT_MS, *asked)
    assert back.removes == {0: BitMap64([103, 104])}
    assert back.summary["partitions"]["0"]["rules"] == {"take back": {"records": 2}}
    assert list(back.parameters["back_to"]) == ["records"]
    keeping = jobs.plan(repair_state, NIGHT_MS, *asked, "--keep-changes")
    assert keeping.removes == {0: BitMap64([103, 104])}

    sandbox.session.sql(f"DELETE FROM {topic.batches_table} WHERE segment = 13")
    changed = contents(sandbox.session, topic)
    error = refused(jobs, keeping.plan_id)
    assert "another foreign change, batches: " in error
    assert "log-end-offset 13 instead of 15 in partition 0" in error
    assert "a rollback of the batches table to snapshot " in refused(jobs, back.plan_id)
    assert contents(sandbox.session, topic) == changed
    assert jobs.kinds(back) == jobs.kinds(keeping) == [PlanStep.EXCEEDED]

    again = jobs.plan(repair_state, NIGHT_MS, *asked)
    assert jobs.run(repair_state, "--plan", again.plan_id) == ExitCode.DONE
    assert contents(sandbox.session, topic) == before
    assert jobs.kinds(again) == [PlanStep.EXECUTED]
    nothing = jobs.plan(repair_state, NIGHT_MS, *asked)
    assert (nothing.removes, nothing.parameters["found"]) == ({}, [])


def test_a_lost_state_is_rebuilt_by_a_plan_that_another_person_approves(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName, kill_at: list[Step]
) -> None:
    set_properties(sandbox.session, str(topic), {"ebbtide.plan.four.eyes": "true"})
    told = load(sandbox.session, topic).partitions[0]
    sandbox.session.sql(f"DROP TABLE {topic.state_table}")
    asked = ("--topic", str(topic))
    assert jobs.run(repair_state, *asked, *NOW) == ExitCode.FAILED
    assert jobs.last_run().error_class == "PlanError"
    by_ann = ("--requested-by", "ann", "--max-event-time-ms", "0=77")
    kept = jobs.plan(repair_state, NIGHT_MS, *asked, *by_ann)
    assert kept.removes == {}
    sets = kept.summary["partitions"]["0"]["sets"]
    assert {"log-start-offset 0", "log-end-offset 15"} <= set(sets)
    approved = ("--plan", kept.plan_id, "--approved-by")
    assert jobs.run(repair_state, *approved, "ann") == ExitCode.FAILED
    kill_at.append(Step.REPAIR_STATE)
    assert jobs.run(repair_state, *approved, "bob") == ExitCode.FAILED
    assert jobs.run(repair_state, *approved, "bob") == ExitCode.DONE
    after = load(sandbox.session, topic).partitions[0]
    assert (after.log_start_offset, after.log_end_offset) == (0, told.log_end_offset)
    assert after.max_event_time_ms == max(77, told.max_event_time_ms or -1)


@pytest.mark.long
def test_what_cannot_be_taken_back_keeps_no_plan(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    sandbox.session.sql(f"DELETE FROM {topic.records_table} WHERE segment = 3")
    expire_all(sandbox.session, tables_of(topic))
    asked = ("--topic", str(topic), *NOW, "--plan-only")
    assert jobs.run(repair_state, *asked) == ExitCode.FAILED
    assert jobs.plans(run_id=jobs.run_id) == []


@pytest.mark.long
def test_a_plan_counts_for_holds_only_what_the_log_loses(
    sandbox: LakeSandbox, jobs: Jobs, topic: TopicName
) -> None:
    """The log keeps the first row of each copy, and no row at or above its end."""
    make_hold(sandbox.session, topic)
    copy_segment(sandbox, topic, 9)
    records = topic.records_table
    columns = ", ".join(
        "offset + 100 AS offset" if name == "offset" else f"`{name}`"
        for name in sandbox.session.table(records).columns
    )
    sandbox.session.sql(f"INSERT INTO {records} SELECT {columns} FROM {records} WHERE offset = 3")
    kept_plan = jobs.plan(repair_state, NIGHT_MS, "--topic", str(topic), "--keep-changes")
    assert kept_plan.removes == {0: BitMap64([9, 10, 103])}
    assert kept_plan.summary["copied_for_holds"] == {"hold h-1 (case 7)": 1}
    assert jobs.run(repair_state, "--plan", kept_plan.plan_id) == ExitCode.DONE
    assert jobs.last_run().topic_result["copied_for_holds"] == {"hold h-1 (case 7)": 1}
    assert kept(sandbox.session, topic) == {"h-1": [103]}
