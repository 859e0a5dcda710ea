"""The note of a run, written by a listener in a session that only Airflow commits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.orchestration.driver import CAUSE
from ebbtide.orchestration.run_note import (
    DECISION,
    FAILURES,
    NoteListener,
    as_written,
    note_of,
)
from tests import airflow_env  # noqa: F401  before anything of Airflow

DAG, RUN = "some_dag", "run-1"


@pytest.fixture
def session() -> Iterator[Any]:
    """A session that may not commit, as the scheduler's."""
    from airflow.models.dagrun import DagRun
    from airflow.utils import db
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from airflow.utils.types import DagRunType

    db.initdb()
    with create_session() as before:
        before.query(DagRun).filter(DagRun.dag_id == DAG).delete()
        before.add(
            DagRun(
                dag_id=DAG,
                run_id=RUN,
                run_type=DagRunType.MANUAL,
                run_after=datetime(2026, 1, 2, tzinfo=UTC),
            )
        )
    with create_session() as session, prohibit_commit(session) as guard:
        session.info["guard"] = guard
        yield session
        session.rollback()


@pytest.fixture
def run(session: Any) -> Any:
    from airflow.models.dagrun import DagRun

    return session.query(DagRun).filter(DagRun.dag_id == DAG).one()


def hand_on(session: Any, run: Any, key: str, value: Any, *, task: str = "report_run") -> None:
    """An XCom of a task as the task API stores it."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    of_task = {"dag_id": DAG, "run_id": RUN, "task_id": task, "map_index": -1}
    new = TaskInstance.__table__.insert()
    session.execute(new.values(**of_task, pool="default_pool", pool_slots=1, try_number=1))
    xcom = XComModel.__table__.insert()
    session.execute(xcom.values(**of_task, dag_run_id=run.id, key=key, value=value))


def clear_xcoms(session: Any) -> None:
    """As a task that starts anew does."""
    from airflow.models.xcom import XComModel

    session.execute(XComModel.__table__.delete())


def fail(run: Any) -> None:
    """What Airflow calls, by every listener that our plugin brings."""
    from airflow.listeners.listener import get_listener_manager

    get_listener_manager().hook.on_dag_run_failed(dag_run=run, msg="task_failure")


def test_a_failed_run_has_its_failures_in_its_note(session: Any, run: Any) -> None:
    hand_on(session, run, FAILURES, ["log.a failed in clean_log: X: why", "log.b failed too"])
    hand_on(session, run, CAUSE, "clean_log: log.a: X: why", task="clean_log")
    fail(run)
    session.info["guard"].commit()
    session.expire_all()
    assert run.note == "log.a failed in clean_log: X: why\nlog.b failed too"


def test_a_run_that_fails_again_has_its_new_note_until_it_succeeds(session: Any, run: Any) -> None:
    hand_on(session, run, CAUSE, "UnavailableError: gone", task="group_topics")
    fail(run)
    assert run.note == "group_topics failed: UnavailableError: gone"
    clear_xcoms(session)
    hand_on(session, run, CAUSE, "new", task="b")
    fail(run)
    session.flush()
    assert run.note == "b failed: new"
    NoteListener().on_dag_run_success(run, "success")
    session.flush()
    session.expire_all()
    assert run.note is None


def test_a_note_of_somebody_else_stays(session: Any, run: Any) -> None:
    run.note = ("a rehearsal", "ann")
    hand_on(session, run, FAILURES, ["log.a failed"])
    fail(run)
    NoteListener().on_dag_run_success(run, "success")
    session.flush()
    assert run.note == "a rehearsal"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        pytest.param("return_value", ["anything"], "", id="a run of another DAG"),
        pytest.param(FAILURES, 5, "the note of run run-1 was not written", id="a broken value"),
    ],
)
def test_what_is_no_failure_leaves_no_note_and_fails_nothing(
    session: Any, run: Any, caplog: pytest.LogCaptureFixture, key: str, value: Any, said: str
) -> None:
    hand_on(session, run, key, value)
    fail(run)
    session.flush()
    assert run.note is None
    assert said in caplog.text


PICTURE = "Approved by ben (![x](https://evil.example/p.png) <img src=x> `c` a\\b)."


def test_a_note_shows_no_link_and_no_picture_of_whoever_answered(session: Any, run: Any) -> None:
    hand_on(session, run, DECISION, [PICTURE])
    NoteListener().on_dag_run_success(run, "success")
    session.flush()
    assert run.note == (
        r"Approved by ben (!\[x\](https://evil.example/p.png) \<img src=x> \`c\` a\\b)."
    )
    assert as_written(run.note) == PICTURE


@pytest.mark.parametrize(
    ("failures", "note"),
    [
        (["a" * 1000], "a" * 1000),
        (["a" * 1001], "a" * 999 + "…"),
        (["a" * 499, "b" * 500], "a" * 499 + "\n" + "b" * 500),
        (["a" * 499, "b" * 501], "a" * 499 + "\n(1 more in the log of report_run)"),
        (["a", "b" * 957, "c" * 99], "a\n" + "b" * 957 + "\n(1 more in the log of report_run)"),
        (["a" * 1200, "b"], "a" * 965 + "…\n(1 more in the log of report_run)"),
    ],
)
def test_a_note_has_whole_lines_as_far_as_they_fit(failures: list[str], note: str) -> None:
    assert note_of(failures) == note
    assert len(note) <= 1000
