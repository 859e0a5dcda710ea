"""Plan, approval, execution: who is asked, for what, and what follows each answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import ConfigurationError, SafetyError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.undo_points import UndoPoint
from ebbtide.orchestration import approval
from ebbtide.orchestration.approval import PLANS, SHOWN
from ebbtide.runner.undo_points import append_point
from tests.dags.answers import REJECT, respond, run_and_answer, run_and_wait, waiting
from tests.dags.fake_spark import FakeSpark
from tests.dags.runs import asset_events, dag_bag, note, run_dag, states
from tests.lake_sandbox import LakeSandbox, state_of

DELETED = {"kafka.cleanup.policy": "delete"}
FORM: dict[str, Any] = {"topic": "log.a", "offsets": {"0": 5}}


@pytest.fixture(autouse=True)
def topic(lake: LakeSandbox) -> None:
    lake.topic("log.a", config=DELETED)


def plan_ids(spark_submit: FakeSpark) -> list[str]:
    """The plans that jobs were told to execute or to reject."""
    return [plan_id for s in spark_submit.submitted for plan_id in s.options.plan]


def skipped(run: Any) -> list[str]:
    """The tasks that were skipped, of a run whose other tasks have succeeded."""
    by_task = states(run)
    assert set(by_task.values()) <= {"success", "skipped"}
    return sorted(task for task, state in by_task.items() if state == "skipped")


def test_an_approved_plan_is_executed_and_the_note_says_who_approved(
    spark_submit: FakeSpark,
) -> None:
    answered = run_and_answer("delete_records", by="ben", note="ticket 7", **FORM)
    assert answered.run.state == "success"
    assert skipped(answered.run) == ["record_rejection"]
    planned, executed = (submitted.options for submitted in spark_submit.submitted)
    assert (planned.plan_only, planned.triggered_by, planned.plan) == (True, "dag_test", [])
    (plan_id,) = executed.plan
    assert (executed.approved_by, executed.approval_note) == ("ben", "ticket 7")
    assert (executed.plan_only, executed.request, executed.now) == (False, None, None)
    assert note(answered.run) == f"Approved by ben (ticket 7).\n{plan_id} of log.a"
    assert asset_events(answered.run) == {"ebbtide://lake/log/a": {"low_watermarks": {"0": 5}}}


def test_the_question_shows_the_plan(spark_submit: FakeSpark) -> None:
    answered = run_and_answer("delete_records", **FORM)
    (plan_id,) = plan_ids(spark_submit)
    assert answered.subject == "delete_records: remove 3 records from log.a?"
    row = "| 0 | 3 | 0 | 30 B | delete records: 3 records | - | - |"
    assert row in answered.body.splitlines()
    assert "Requested by **dag\\_test**" in answered.body
    assert f"](/ebbtide/plans/{plan_id})" in answered.body
    assert answered.assignees == []


@pytest.mark.long
def test_an_undo_asks_what_is_to_return_and_publishes_whose_records_did(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    point = UndoPoint(
        point_id="p", run_id="night-1", job="clean_log", topic="log.a", at=datetime.now(UTC)
    )
    append_point(lake.session, point, Step.UNDO_POINT)
    spark_submit.parameters["undo_run"] = {"run": "night-1"}
    spark_submit.totals["undo_run"] = {"topic": {"undone_run": "night-1"}}
    answered = run_and_answer("undo_run", topic="log.a", run="night-1")
    assert answered.run.state == "success"
    assert answered.subject == "undo_run: undo run night-1 on log.a and restore 3 records?"
    assert "**undo\\_run** would undo run night-1 on log.a and restore 3 records" in answered.body
    planned, executed = (submitted.options for submitted in spark_submit.submitted)
    assert (planned.run, executed.run, len(executed.plan)) == ("night-1", None, 1)
    extra = {"low_watermarks": {"0": 5}, "undone_run": "night-1"}
    assert asset_events(answered.run) == {"ebbtide://lake/log/a": extra}


@pytest.mark.long
def test_a_repair_asks_also_where_no_record_would_leave(spark_submit: FakeSpark) -> None:
    """What others removed comes back then, or the state is set anew."""
    found = {"found": ["records: delete by spark"], "back_to": {"records": "7"}}
    spark_submit.planned_records, spark_submit.parameters["repair_state"] = 0, found
    form = {"topic": "log.a", "keep_changes": True, "log_start_offset": ["0=7"]}
    answered = run_and_answer("repair_state", by="ben", plan_only=False, **form)
    assert answered.run.state == "success"
    assert answered.subject == "repair_state: repair log.a and remove 0 records?"
    assert "Foreign change: records: delete by spark." in answered.body
    assert "The records table is rolled back to snapshot 7." in answered.body
    planned, executed = (submitted.options for submitted in spark_submit.submitted)
    assert (planned.keep_changes, planned.log_start_offset) == (True, ["0=7"])
    assert (executed.keep_changes, len(executed.plan), executed.approved_by) == (False, 1, "ben")


def test_a_run_that_removed_nothing_is_refused_before_spark_starts(
    spark_submit: FakeSpark,
) -> None:
    run = run_dag("undo_run", topic="log.a", run="night-1")
    assert run.state == "failed"
    assert "found night-1. Runs that can: none" in (note(run) or "")
    assert spark_submit.submitted == []


def test_a_rejected_plan_is_recorded_and_its_run_is_green_up_to_the_question(
    spark_submit: FakeSpark,
) -> None:
    answered = run_and_answer("delete_records", REJECT, by="ben", note="too early", **FORM)
    assert answered.run.state == "success"
    assert skipped(answered.run) == ["delete_records", "report_run"]
    _, rejected = (submitted.options for submitted in spark_submit.submitted)
    assert (rejected.rejected_by, rejected.approval_note) == ("ben", "too early")
    assert rejected.approved_by is None
    (plan_id,) = rejected.plan
    words = "Rejected by ben (too early). Nothing was changed."
    assert note(answered.run) == f"{words}\n{plan_id} of log.a"
    assert asset_events(answered.run) == {}


@pytest.mark.long
def test_no_answer_in_time_is_recorded_and_changes_nothing(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_APPROVAL_TIMEOUT", "PT1S")
    run = run_and_wait("delete_records", **FORM).run
    assert run.state == "success"
    assert states(run)["delete_records"] == states(run)["report_run"] == "skipped"
    assert states(run)["record_rejection"] == "success"
    assert (note(run) or "").startswith("Rejected, because no answer came in time. Nothing")
    planned, rejected = (submitted.options for submitted in spark_submit.submitted)
    assert (planned.plan_only, rejected.plan_only) == (True, False)
    assert (len(rejected.plan), rejected.unanswered) == (1, True)
    assert (rejected.approved_by, rejected.rejected_by) == (None, None)


@pytest.mark.long
def test_a_run_that_only_plans_asks_nobody(spark_submit: FakeSpark) -> None:
    run = run_dag("delete_records", **FORM, plan_only=True)
    assert run.state == "success"
    assert states(run)["approve"] == states(run)["delete_records"] == "skipped"
    assert states(run)["report_run"] == "success"
    assert (note(run) or "").startswith("Only planned. Nothing was changed.\ndelete_records-")


@pytest.mark.long
def test_nobody_is_asked_for_a_plan_that_removes_nothing(spark_submit: FakeSpark) -> None:
    spark_submit.planned_records = 0
    run = run_dag("delete_records", **FORM)
    assert states(run)["delete_records"] == "success"
    _, executed = (submitted.options for submitted in spark_submit.submitted)
    assert executed.approved_by is None
    assert len(executed.plan) == 1
    assert (note(run) or "").startswith("No approval was needed: nothing would be removed.")


@pytest.mark.long
def test_a_plan_that_cannot_be_made_is_not_asked_for(spark_submit: FakeSpark) -> None:
    spark_submit.dies_in["delete_records"] = 1
    run = run_dag("delete_records", **FORM)
    assert run.state == "failed"
    assert states(run)["approve"] == states(run)["delete_records"] == "upstream_failed"


@pytest.mark.long
def test_an_approval_that_is_marked_as_successful_approves_nothing(
    spark_submit: FakeSpark,
) -> None:
    dag = dag_bag().dags["delete_records"]
    run = dag.test(run_conf=FORM, mark_success_pattern="approve")
    assert run.state == "failed"
    assert plan_ids(spark_submit) == []
    assert "delete_records failed: expected an answer from approve, found none" in (note(run) or "")


@pytest.mark.long
def test_what_is_planned_after_the_question_is_not_executed(spark_submit: FakeSpark) -> None:
    """As where somebody clears `plan` while `approve` waits."""

    def plan_again() -> None:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        other = [{"plan_id": "other", "job": "delete_records", "topic": "log.a", "digest": ""}]
        with create_session() as session:
            handed_on = session.query(XComModel).filter(
                XComModel.key == PLANS, XComModel.task_id == "plan"
            )
            handed_on.update({"value": other})

    run_and_answer("delete_records", before=plan_again, **FORM)
    (plan_id,) = plan_ids(spark_submit)
    assert plan_id.startswith("delete_records-")


def test_an_approval_of_a_plan_made_before_executes_nothing(spark_submit: FakeSpark) -> None:
    """As where a page stands open since before somebody cleared `plan`."""
    answered = run_and_answer("delete_records", shown="0123456789ab", **FORM)
    assert answered.run.state == "failed"
    assert plan_ids(spark_submit) == []
    assert "found one for 0123456789ab" in (note(answered.run) or "")


def test_no_question_is_asked_that_airflow_would_show_as_another(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody clears `plan` with what follows once `approve` has asked."""
    read = approval.plans_of

    def asked_before(context: Any, task: str) -> Any:
        if task == "plan":
            leave_question(context["ti"].id, "0123456789ab")
        return read(context, task)

    monkeypatch.setattr(approval, "plans_of", asked_before)
    run = run_and_answer("delete_records", **FORM).run
    assert run.state == "failed"
    assert plan_ids(spark_submit) == []
    assert "found one about 0123456789ab: the plans were made again" in (note(run) or "")
    assert "Start approve_plan for the new plans" in (note(run) or "")


def leave_question(ti_id: Any, digests: str) -> None:
    """The question of an earlier try of the task."""
    from airflow.models.hitl import HITLDetail
    from airflow.utils.session import create_session

    fields = {SHOWN: {"value": digests, "description": None, "schema": {}}}
    with create_session() as session:
        asked = HITLDetail(
            ti_id=ti_id, options=["Approve", "Reject"], subject="?", body="", params=fields
        )
        session.add(asked)


@pytest.mark.long
def test_only_the_approvers_may_answer(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi import HTTPException

    monkeypatch.setenv("EBBTIDE_APPROVERS", "ann, eve")

    def answer_as_another() -> None:
        with pytest.raises(HTTPException, match=r"ben.* is not a respondent"):
            respond(waiting("delete_records"), "Approve", "ben")

    answered = run_and_answer("delete_records", by="ann", before=answer_as_another, **FORM)
    assert answered.assignees == ["ann", "eve"]
    assert spark_submit.submitted[-1].options.approved_by == "ann"


@pytest.mark.long
def test_a_plan_is_not_asked_for_twice_where_its_execution_is_tried_again(
    spark_submit: FakeSpark,
) -> None:
    spark_submit.failures["delete_records", "log.a"] = [UnavailableError("a replica"), None]
    answered = run_and_answer("delete_records", **FORM)
    assert answered.run.state == "success"
    assert len(set(plan_ids(spark_submit))) == 1
    assert len(plan_ids(spark_submit)) == 2


@pytest.mark.long
def test_approve_plan_executes_plans_of_several_jobs(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.b")
    plans = [lake.plan("log.a", "expire_segments"), lake.plan("log.b", "clean_log")]
    answered = run_and_answer("approve_plan", plans=[plan.plan_id for plan in plans])
    assert answered.subject == "expire_segments, clean_log: remove 6 records from 2 topics?"
    assert skipped(answered.run) == ["record_rejection"]
    assert {"load_plans", "approve", "execute_plans[0]", "execute_plans[1]"} <= states(
        answered.run
    ).keys()
    executed = {(s.job, *s.options.plan) for s in spark_submit.submitted}
    assert executed == {(plan.job, plan.plan_id) for plan in plans}


@pytest.mark.long
def test_apply_retention_plans_each_stage_and_executes_them_in_order(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    work = {0: state_of(first_unmarked_offset=0)}
    lake.topic("log.b", work, {**DELETED, "ebbtide.replicas": "lake.copy"})
    stages = ["expire_segments", "clean_log"]
    answered = run_and_answer("apply_retention", topics=["log.b"], stages=stages)
    assert answered.subject == "clean_log, expire_segments: remove 6 records from log.b?"
    assert skipped(answered.run) == ["expire_snapshots", "record_rejection"]
    assert {"plan[0]", "plan[1]", "delete_records"} <= states(answered.run).keys()
    marked, *planned = [submitted.job for submitted in spark_submit.submitted[:3]]
    assert (marked, sorted(planned)) == ("mark_tombstones", ["clean_log", "expire_segments"])
    assert [(s.job, len(s.options.plan)) for s in spark_submit.submitted[3:]] == [
        ("clean_log", 1),
        ("expire_segments", 1),
        ("delete_records", 0),
    ]
    assert asset_events(answered.run) == {"ebbtide://lake/log/b": {"low_watermarks": {"0": 5}}}


@pytest.mark.long
def test_what_is_rejected_executes_no_stage(lake: LakeSandbox, spark_submit: FakeSpark) -> None:
    run = run_and_answer(
        "apply_retention", REJECT, topics=["log.a"], stages=["expire_segments"]
    ).run
    stages = ("clean_log", "expire_segments", "delete_records", "expire_snapshots", "report_run")
    assert {states(run)[stage] for stage in stages} == {"skipped"}
    assert states(run)["record_rejection[0]"] == "success"
    assert [s.options.rejected_by for s in spark_submit.submitted] == [None, "ben"]
    plan = lake.plan("log.a", "expire_segments")
    run = run_and_answer("approve_plan", REJECT, plans=[plan.plan_id]).run
    assert states(run)["execute_plans"] == states(run)["report_run"] == "skipped"
    submitted = spark_submit.submitted[-1]
    assert (submitted.job, submitted.options.rejected_by) == ("expire_segments", "ben")


@pytest.mark.long
def test_a_stage_that_fails_is_named_and_the_next_one_goes_on(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    spark_submit.failures["clean_log", "log.a"] = [ConfigurationError("expected x, found y")]
    stages = ["clean_log", "expire_segments"]
    run = run_and_answer("apply_retention", topics=["log.a"], stages=stages).run
    assert run.state == "failed"
    assert states(run)["expire_segments"] == "success"
    cause = "log.a failed in clean_log: ConfigurationError: expected x, found y"
    assert note(run) == cause


UNKNOWN = "clean_log-20260101-0123abcd"


@pytest.mark.long(but="expired")
@pytest.mark.parametrize(
    ("job", "cause"),
    [
        pytest.param("clean_log", " (expired). Make new plans", id="expired"),
        pytest.param(None, f"found {UNKNOWN} (unknown). Make new plans", id="unknown"),
        pytest.param("erase_keys", "Trigger erase_keys with the keys; it plans", id="keyless"),
    ],
)
def test_approve_plan_refuses_what_cannot_be_executed(
    lake: LakeSandbox, spark_submit: FakeSpark, job: str | None, cause: str
) -> None:
    made_at = datetime.now(UTC) - timedelta(days=2 if job == "clean_log" else 0)
    plan_id = UNKNOWN if job is None else lake.plan("log.a", job, made_at=made_at).plan_id
    run = run_dag("approve_plan", plans=[plan_id])
    assert run.state == "failed"
    assert plan_id in (note(run) or "")
    assert cause in (note(run) or "")
    assert spark_submit.submitted == []


@pytest.mark.long
def test_with_four_eyes_another_person_is_asked_whatever_would_go(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    """Else nobody but who asks would see that four eyes are switched off."""
    lake.topic("log.b", config={"ebbtide.plan.four.eyes": "true"})
    spark_submit.planned_records = 0
    off = ["ebbtide.plan.four.eyes"]
    spark_submit.parameters["configure_topic"] = {"changes": {off[0]: None}}
    answered = run_and_answer("configure_topic", topic="log.b", unset=off, plan_only=False)
    assert answered.subject == (
        "configure_topic: unset ebbtide.plan.four.eyes on log.b (the next nightly run would "
        "remove nothing, but a later one may)?"
    )
    assert spark_submit.submitted[-1].options.approved_by == "ben"


def test_with_four_eyes_the_question_refuses_who_asked_for_the_plan(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    lake.topic("log.b", config={"ebbtide.plan.four.eyes": "true"})
    form = {"topic": "log.b", "offsets": {"0": 5}}
    answered = run_and_answer("delete_records", by="dag_test", **form)  # who triggers test runs
    assert states(answered.run)["approve"] == "failed"
    assert "found one by dag_test, who asked for the plan" in (note(answered.run) or "")
    assert [submitted.options.plan_only for submitted in spark_submit.submitted] == [True]


def test_a_night_asks_for_what_a_guard_has_stopped_and_does_not_wait(
    lake: LakeSandbox, spark_submit: FakeSpark
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    work = {0: state_of(first_unmarked_offset=0, cleaned_end_offset=0)}
    lake.topic("log.b", work, {"kafka.cleanup.policy": "delete", "kafka.retention.ms": "1"})
    spark_submit.failures["expire_segments", "log.b"] = [SafetyError("more than half")]
    run = run_dag("nightly_retention", topics=["log.b"])
    assert run.state == "failed"
    with create_session() as session:
        asked = session.query(DagRun).filter(DagRun.dag_id == "approve_plan").all()
        runs = [
            (dag_run.run_id, dag_run.conf, str(dag_run.state))
            for dag_run in asked
            if dag_run.run_type != "manual"
        ]
    with open_lake() as opened:
        (plan,) = opened.plans(run_id=run.run_id)
    assert runs[-1] == (f"plan__{plan.plan_id}", {"plans": [plan.plan_id]}, "queued")
