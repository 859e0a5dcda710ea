"""Answering an approval while `dag.test` waits for it: by the API's own code, in another thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from ebbtide.orchestration.approval import SHOWN
from tests.dags.runs import BETWEEN_LOOKS, run_dag
from tests.waiting import PATIENCE_S, wait_until

APPROVE, REJECT = "Approve", "Reject"


@dataclass
class Answered:
    """A finished run, and what its approval had asked; empty where it asked nobody."""

    run: Any
    subject: str = ""
    body: str = ""
    assignees: list[str] = field(default_factory=list)


def run_and_answer(
    dag_id: str,
    chosen: str = APPROVE,
    *,
    by: str = "ben",
    note: str = "",
    shown: str = "",
    before: Callable[[], None] = lambda: None,
    **conf: Any,
) -> Answered:
    """Run a DAG whose approval `by` answers; `before` is called when it asks.

    `shown` are the digests that the answer is for, else those that are asked for.
    """

    def answer(asked: Any) -> None:
        before()
        respond(asked, chosen, by, note, shown)

    return _run(dag_id, answer, conf)


def run_and_wait(dag_id: str, **conf: Any) -> Answered:
    """Run a DAG whose approval nobody answers, with the scheduler's look for timeouts."""

    def look(_: Any) -> None:
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

        def is_over() -> bool:
            SchedulerJobRunner(job=Job()).check_awaiting_input_timeouts()
            return waiting(dag_id) is None

        wait_until(is_over, f"the question of {dag_id} to be over")

    return _run(dag_id, look, conf)


def _run(dag_id: str, react: Callable[[Any], None], conf: dict[str, Any]) -> Answered:
    has_ended, waits = Event(), Waits()
    logger = logging.getLogger("airflow.sdk.definitions.dag")
    logger.addHandler(waits)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_react_when_asked, dag_id, react, waits, has_ended)
        try:
            run = run_dag(dag_id, **conf)
        finally:
            has_ended.set()
            logger.removeHandler(waits)
        detail = asked.result()
    if detail is None:
        return Answered(run)
    assignees = [user["id"] for user in detail.assignees or ()]
    return Answered(run, detail.subject, detail.body, assignees)


class Waits(logging.Handler):
    """Knows when `dag.test` waits for an answer.

    Between two looks it sets states from what it has read: an answer given then is lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Waiting for Human-in-the-loop input"):
            self.has_begun.set()


def _react_when_asked(
    dag_id: str, react: Callable[[Any], None], waits: Waits, has_ended: Event
) -> Any:
    """The question, once there is one and it was reacted to."""
    while not has_ended.wait(0.1):
        if asked := waiting(dag_id):
            waits.has_begun.wait(PATIENCE_S)
            with BETWEEN_LOOKS:
                try:
                    react(asked)
                except BaseException:
                    respond(asked, REJECT, "tests")  # else the run would wait for ever
                    raise
            return asked.hitl_detail
    return None


def waiting(dag_id: str) -> Any:
    """The task instance that waits for an answer, with its question."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.orm import joinedload

    is_asking = (TaskInstance.dag_id == dag_id) & (TaskInstance.state == "awaiting_input")
    query = select(TaskInstance).where(is_asking).options(joinedload(TaskInstance.hitl_detail))
    with create_session() as session:
        return session.scalars(query).first()


def respond(asked: Any, chosen: str, by: str, note: str = "", shown: str = "") -> None:
    """What PATCH .../hitlDetails does for a login, with the plans that it has seen."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
    from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
    from airflow.utils.session import create_session

    create_auth_manager()
    fields = {"note": note, SHOWN: shown or asked.hitl_detail.params[SHOWN]["value"]}
    payload = UpdateHITLDetailPayload(chosen_options=[chosen], params_input=fields)
    with create_session() as session:
        update_hitl_detail(
            dag_id=asked.dag_id,
            dag_run_id=asked.run_id,
            task_id=asked.task_id,
            update_hitl_detail_payload=payload,
            user=SimpleAuthManagerUser(username=by, role="op"),
            session=session,
        )
