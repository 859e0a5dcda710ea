"""What a run asks: on the first page, on its own, and answered there."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest

from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.approval import SHOWN, digests_of, kept
from ebbtide.orchestration.driver import CAUSE
from ebbtide.orchestration.pages.run import SETTLING
from tests.lake_sandbox import LakeSandbox
from tests.plugins.html import text_of

pytestmark = pytest.mark.usefixtures("known_dags")

SignedIn = Callable[[str, str], Any]
SUBJECT = "delete_records: remove 3 records from log.a?"


@pytest.fixture
def asking(signed_in: SignedIn, lake: LakeSandbox) -> str:
    """The path of a run that ann has started, and that asks."""
    lake.topic("log.a", config={"kafka.cleanup.policy": "delete"})
    sent = {"topic": "log.a", "offset.0": "40", "go": "ask"}
    answer = signed_in("ann", "USER").post("/ebbtide/forms/delete_records", data=sent)
    path: str = answer.headers["location"]
    run_id = run_of(path)
    made = {"run_id": run_id, "dag": "delete_records", "requested_by": "ann"}
    ask(run_id, digests_of([kept(lake.plan("log.a", "delete_records", **made))]))
    return path


def run_of(path: str) -> str:
    return unquote(path.rpartition("/")[2].partition("?")[0])


@contextmanager
def task_of(run_id: str, name: str = "approve") -> Iterator[Any]:
    """A task instance in a session, which is committed."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        yield session.query(TaskInstance).filter_by(run_id=run_id, task_id=name).one()


def detail_of(ti: Any) -> Any:
    """The question of a task."""
    from airflow.models.hitl import HITLDetail
    from sqlalchemy.orm import object_session

    session: Any = object_session(ti)
    return session.query(HITLDetail).filter_by(ti_id=ti.id).one()


def ask(run_id: str, digests: str) -> None:
    """Leave the task as the operator does that waits for an answer."""
    from airflow.models.hitl import HITLDetail
    from sqlalchemy.orm import object_session

    with task_of(run_id) as ti:
        ti.state = "awaiting_input"
        ti.start_date = datetime.now(UTC)
        options = {"options": ["Approve", "Reject"], "defaults": ["Reject"]}
        told = {"description": None, "schema": {}}
        fields = {"note": {"value": None, **told}, SHOWN: {"value": digests, **told}}
        session: Any = object_session(ti)
        session.add(HITLDetail(ti_id=ti.id, subject=SUBJECT, body="", params=fields, **options))


def test_a_question_comes_first_of_what_needs_somebody(viewer: Any, asking: str) -> None:
    html = viewer.get("/ebbtide/").text
    assert f"approval {SUBJECT} open the run" in text_of(html)
    assert f'<a href="{asking}">open the run</a>' in html


def test_a_viewer_reads_the_question_and_cannot_answer(viewer: Any, asking: str) -> None:
    html = viewer.get(asking).text
    text = text_of(html)
    act = "delete_records would remove 3 records from log.a."
    assert f"{SUBJECT} {act} Partition Records Entire files" in text
    assert "0 3 0 30 B delete records: 3 records" in text
    assert len(re.findall('name="answer" value="[^"]*" disabled', html)) == 2
    sent = viewer.post(answer_of(asking), data=answer("Approve"))
    assert sent.status_code == 403


def test_somebody_else_answers_with_a_note(signed_in: SignedIn, asking: str) -> None:
    bob = signed_in("bob", "USER")
    assert 'name="answer" value="Approve">' in bob.get(asking).text
    sent = bob.post(answer_of(asking), data=answer("Approve"))
    assert (sent.status_code, sent.headers["location"]) == (303, asking)
    assert f'<a href="{asking}">open the run</a>' not in bob.get("/ebbtide/").text
    assert 'name="answer"' not in bob.get(asking).text
    again = bob.post(answer_of(asking), data=answer("Reject"))
    assert again.status_code == 409


def test_a_plan_made_anew_is_not_what_is_asked_for(
    signed_in: SignedIn, asking: str, lake: LakeSandbox
) -> None:
    run_id = run_of(asking)
    asked = digests(run_id)
    lake.plan("log.a", "delete_records", records=40, run_id=run_id, dag="delete_records")
    bob = signed_in("bob", "USER")
    html = bob.get(asking).text
    question, _, plans = text_of(html).partition("Plans ")
    assert "delete records: 3 records" in question
    assert "40 records" not in question
    assert plans.count("the question is about another plan") == 1
    assert f'name="{SHOWN}" value="{asked}"' in html
    assert bob.post(answer_of(asking), data=answer("Approve", asked)).status_code == 303
    with task_of(run_id) as ti:
        assert detail_of(ti).params_input == {"note": "ticket 17", SHOWN: asked}


@pytest.mark.parametrize("state", ["up_for_retry", "failed"])
def test_a_task_that_failed_shows_its_cause_while_the_run_goes_on(
    viewer: Any, asking: str, state: str
) -> None:
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    run_id = run_of(asking)
    with task_of(run_id, "plan") as plan:
        plan.state, plan.start_date, plan.try_number = state, datetime.now(UTC), 1
        new = XComModel.__table__.insert()
        of_task = {"dag_id": "delete_records", "run_id": run_id, "task_id": "plan"}
        of_task |= {"map_index": -1, "dag_run_id": plan.dag_run.id, "key": CAUSE}
        session: Any = object_session(plan)
        session.execute(new.values(**of_task, value="log.a: UnavailableError: no answer"))
    text = text_of(viewer.get(asking).text)
    shown = {"up_for_retry": "failed, will be retried", "failed": "failed"}[state]
    assert f"{shown} plan log of plan log.a: UnavailableError: no answer" in text


@pytest.mark.parametrize(("state", "is_said"), [("failed", False), ("success", True)])
def test_a_failed_plan_is_not_followed_by_a_word_about_missing_rows(
    signed_in: SignedIn, lake: LakeSandbox, state: str, is_said: bool
) -> None:
    lake.topic("log.a", config={"kafka.cleanup.policy": "delete"})
    ann, sent = signed_in("ann", "USER"), {"topic": "log.a", "offset.0": "40", "go": "ask"}
    path = ann.post("/ebbtide/forms/delete_records", data=sent).headers["location"]
    with task_of(run_of(path), "plan") as plan:
        plan.state = plan.dag_run.state = state
    text = text_of(ann.get(path).text)
    assert state in text.lower()
    assert ("No results The run has started no job yet" in text) is is_said


def test_an_answer_while_the_plan_is_made_anew_is_refused(signed_in: SignedIn, asking: str) -> None:
    with task_of(run_of(asking)) as ti:
        ti.state = None  # as clearing leaves it
    sent = signed_in("bob", "USER").post(answer_of(asking), data=answer("Approve"))
    assert sent.status_code == 409
    assert "Your answer was not recorded: the task was cleared" in text_of(sent.text)
    with task_of(run_of(asking)) as ti:
        assert not detail_of(ti).response_received


def test_a_plan_that_is_asked_for_is_not_asked_for_again(
    signed_in: SignedIn, lake: LakeSandbox
) -> None:
    lake.topic("log.a")
    night = {"run_id": "night-1", "dag": "nightly_retention"}
    lake.run("log.a", "clean_log", **night)
    asked, other = (lake.plan("log.a", job, **night) for job in ("clean_log", "expire_segments"))
    bob = signed_in("bob", "USER")
    sent = bob.post("/ebbtide/forms/approve_plan", data={"plans": asked.plan_id, "go": "ask"})
    its_run = sent.headers["location"]
    html = bob.get(f"/ebbtide/plans/{asked.plan_id}").text
    assert f'<a href="{its_run}">run of approve_plan</a>' in html
    assert "Ask for approval" not in html
    assert "Ask for approval" in bob.get(f"/ebbtide/plans/{other.plan_id}").text
    night_page = text_of(bob.get("/ebbtide/runs/night-1?dag=nightly_retention").text)
    assert f"A run of approve_plan asks for the approval of {asked.plan_id}." in night_page
    assert f"asks for the approval of {other.plan_id}" not in night_page


def test_of_a_plan_that_a_run_made_anew_the_newer_alone_is_asked_for(
    signed_in: SignedIn, lake: LakeSandbox
) -> None:
    lake.topic("log.a")
    run = {"run_id": "anew-1", "dag": "delete_records"}
    older, newer = (lake.plan("log.a", "delete_records", records=n, **run) for n in (5, 7))
    bob = signed_in("bob", "USER")
    html = bob.get("/ebbtide/runs/anew-1?dag=delete_records").text
    assert f"replaced by {newer.plan_id}" in text_of(html)
    assert f"replaced by {older.plan_id}" not in text_of(html)
    form = text_of(bob.get("/ebbtide/forms/approve_plan").text)
    assert newer.plan_id in form
    assert older.plan_id not in form


def digests(run_id: str) -> str:
    """Of the plans of a run, as an answer sends them back."""
    with open_lake() as opened:
        return digests_of(map(kept, opened.plans(run_id=run_id)))


def test_with_four_eyes_who_asked_cannot_answer(
    signed_in: SignedIn, asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = signed_in("ann", "USER")
    assert 'name="answer" value="Approve">' in ann.get(asking).text
    monkeypatch.setenv("EBBTIDE_FOUR_EYES", "true")
    html = ann.get(asking).text
    assert "ann requested this plan, so a second user must approve it" in html
    assert 'name="answer" value="Approve" disabled>' in html


def test_a_question_takes_no_answer_before_the_scheduler_knows_that_its_task_waits(
    signed_in: SignedIn, asking: str
) -> None:
    bob = signed_in("bob", "USER")
    with scheduler_at(datetime.now(UTC)):
        html = bob.get(asking).text
        assert "Airflow is still registering the question" in html
        assert len(re.findall('name="answer" value="[^"]*" disabled', html)) == 2
        # The page draws itself again, and would lose what was written.
        assert re.search('name="note"[^>]* disabled', html)
        assert 'hx-trigger="every 4s"' in html
        early = bob.post(answer_of(asking), data=answer("Approve"))
        assert early.status_code == 409
        assert "You can answer it in a few seconds" in early.text
    with scheduler_at(datetime.now(UTC) + SETTLING):
        html = bob.get(asking).text
        assert 'name="answer" value="Approve">' in html
        assert 'hx-trigger="every 4s"' not in html
        assert bob.post(answer_of(asking), data=answer("Approve")).status_code == 303


@contextmanager
def scheduler_at(heartbeat: datetime) -> Iterator[None]:
    """Let a scheduler be at work whose newest heartbeat is this."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    with create_session() as session:
        job = Job(job_type="SchedulerJob", state="running", latest_heartbeat=heartbeat)
        session.add(job)
    yield
    with create_session() as session:
        session.delete(job)


def answer_of(path: str) -> str:
    run, _, query = path.partition("?")
    return f"{run}/answer?{query}"


def answer(option: str, plans: str = "") -> dict[str, str]:
    sent = {"task": "approve", "map_index": "-1", "answer": option, "note": "ticket 17"}
    return {**sent, SHOWN: plans}
