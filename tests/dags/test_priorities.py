"""Which task gets the only Spark slot: decided by Airflow's scheduler itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ebbtide.orchestration.pool import make_pool
from tests.dags.runs import know_dags

RUN = "waits-"
# The oldest run first, which is what the scheduler goes by where priorities are equal.
WAITING = [
    ("delete_records", "plan"),
    ("nightly_retention", "expire_snapshots"),
    ("nightly_retention", "mark_tombstones"),
    ("apply_retention", "plan"),
    ("undo_run", "undo_run"),
    ("approve_plan", "execute_plans"),
    ("hold_records", "plan"),
    ("hold_records", "hold_records"),
]


def test_the_scheduler_gives_the_only_slot_in_this_order() -> None:
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    make_pool()
    with create_session() as session:
        tasks = scheduled(session)
        scheduler = SchedulerJobRunner(Job())
        order = []
        while tasks:
            (queued,) = scheduler._executable_task_instances_to_queued(max_tis=32, session=session)
            order.append((queued.dag_id, queued.task_id))
            tasks.remove(order[-1])
            session.query(TaskInstance).filter_by(id=queued.id).update({"state": "success"})
        session.rollback()
    assert order == [
        ("hold_records", "plan"),
        ("hold_records", "hold_records"),
        ("undo_run", "undo_run"),
        ("approve_plan", "execute_plans"),
        ("nightly_retention", "expire_snapshots"),
        ("nightly_retention", "mark_tombstones"),
        ("delete_records", "plan"),
        ("apply_retention", "plan"),
    ]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave no run behind, and each DAG paused as it was: Airflow commits in between."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    know_dags()
    with create_session() as session:
        paused = {dag.dag_id: dag.is_paused for dag in session.query(DagModel)}
    yield
    with create_session() as session:
        session.query(DagRun).filter(DagRun.run_id.startswith(RUN)).delete()
        for model in session.query(DagModel):
            model.is_paused = paused[model.dag_id]


def scheduled(session: Any) -> list[tuple[str, str]]:
    """Schedule the tasks of WAITING in runs of their own, each a minute after the one before."""
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    session.query(DagModel).update({"is_paused": False})
    for minute, (dag_id, task_id) in enumerate(WAITING):
        clock = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
        run = SerializedDagModel.get_dag(dag_id, session=session).create_dagrun(
            run_id=f"{RUN}{minute}",
            logical_date=clock,
            data_interval=(clock, clock),
            run_after=clock,
            conf={"topic": "log.a", "run": "r", "plans": ["clean_log-20260101-00000000"]},
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state="running",
            session=session,
        )
        run.get_task_instance(task_id, session=session).state = "scheduled"
    session.flush()
    return [*WAITING]
