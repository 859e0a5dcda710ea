"""The page of a run: how it stands, its plans and its question, what it did; logs of its tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from ebbtide import open_lake
from ebbtide.errors import EbbtideError
from ebbtide.lake.reader import Lake
from ebbtide.lake.standing_plans import StandingPlan, plans_of_run
from ebbtide.lake.undo_points import UndoableRun, undoable_runs
from ebbtide.log.plans.events import FOUR_EYES_OF_ALL, needs_four_eyes
from ebbtide.orchestration.approval.answer import NOTE, SHOWN
from ebbtide.orchestration.driver.causes import CAUSE
from ebbtide.orchestration.pages import answers
from ebbtide.orchestration.pages.airflow_api import AirflowApi, Api
from ebbtide.orchestration.pages.rendering import query
from ebbtide.orchestration.pages.same_origin import require_same_origin
from ebbtide.orchestration.pages.views.adopted import refuses
from ebbtide.orchestration.pages.views.run.page import run_page
from ebbtide.orchestration.pages.views.run.progress import (
    Progress,
    Question,
    Task,
    progress_of,
    question_of,
)
from ebbtide.specs.filled import Filled

LOG_LINES = 60
CAUSES_SHOWN = 5
UNDO = "undo_run"
APPROVE_PLAN = "approve_plan"
MADE_ANEW = (
    "The answer was not taken: somebody has cleared the task, and the plan is made anew. Nothing "
    "was changed. Read the new plan once the run asks again."
)
SETTLES = "Airflow is putting the question into place. It takes an answer in a few seconds."


def add_runs(app: FastAPI) -> None:
    """Add the page of a run, what its question is answered by, and excerpts of its logs."""

    @app.get("/runs/{run_id}")
    async def run(
        request: Request, api: Api, run_id: str, dag: str = "", topic: str = "", page: int = 1
    ) -> Response:
        return await _run(request, api, run_id, dag, topic=topic, page=page)

    @app.post("/runs/{run_id}/answer", dependencies=[Depends(require_same_origin)])
    async def answer(request: Request, api: Api, run_id: str, dag: str) -> Response:
        filled = Filled.of((await request.form()).multi_items())
        path = _task_path(dag, run_id, filled.text("task") or "", filled.number("map_index") or 0)
        question = await _question(api, path)
        if question is not None and not question.stands:
            return await _run(request, api, run_id, dag, MADE_ANEW, 409)
        if question is not None and not question.is_settled:
            return await _run(request, api, run_id, dag, SETTLES, 409)
        reply = await api.patch(
            *path,
            "hitlDetails",
            body={
                "chosen_options": [filled.text("answer") or ""],
                "params_input": {NOTE: filled.text(NOTE), SHOWN: filled.text(SHOWN)},
            },
        )
        if not reply.is_good:
            return await _run(request, api, run_id, dag, reply.problem, reply.status)
        return answers.go_to(request, f"runs/{quote(run_id, safe='')}?dag={quote(dag, safe='')}")

    @app.get("/runs/{run_id}/log")
    async def log(
        request: Request,
        api: Api,
        run_id: str,
        dag: str,
        task: str,
        attempt: int = 1,
        map_index: int = -1,
    ) -> Response:
        path = ("dags", dag, "dagRuns", run_id, "taskInstances", task, "logs", str(attempt))
        reply = await api.get(*path, full_content="true", map_index=map_index)
        lines = log_lines(reply.value["content"]) if reply.is_good else []
        return answers.page(
            request,
            "log.html",
            run_id=run_id,
            dag=dag,
            task=task,
            attempt=attempt,
            lines=lines[-LOG_LINES:],
            left_out=max(len(lines) - LOG_LINES, 0),
            problem=None if reply.is_good else reply.problem,
            status_code=200 if reply.is_good else reply.status,
        )


async def _run(
    request: Request,
    api: AirflowApi,
    run_id: str,
    dag: str,
    problem: str | None = None,
    status_code: int = 200,
    topic: str = "",
    page: int = 1,
) -> Response:
    progress = await read_progress(api, dag, run_id) if dag else None
    asking = await runs_that_ask(api)

    def read() -> dict[str, Any]:
        with open_lake() as lake:
            named = progress.plans if progress else ()
            plans = plans_of_run(lake, run_id, dag or None, named, datetime.now(UTC))
            shown = run_page(lake, run_id, dag or None, topic or None, page)
            return {
                "page": shown,
                "plans": plans,
                "undoable": undoable(lake, shown),
                "why_not": _why_not(lake, api, dag, progress, plans),
                "may_ask": bool(plans) and api.may_trigger("approve_plan"),
            }

    shown = await run_in_threadpool(read)
    if status_code == 200 and not (progress or shown["page"]["first"] or shown["plans"]):
        status_code = 404  # the page says that nobody knows the run
    return answers.page(
        request,
        "run.html",
        progress=progress,
        problem=problem,
        note=NOTE,
        asking={plan: of for plan, of in asking.items() if of != run_id},
        page_link=lambda number: query({"dag": dag, "page": number}),
        status_code=status_code,
        **shown,
    )


async def read_progress(api: AirflowApi, dag: str, run_id: str) -> Progress | None:
    """Ask Airflow how a run stands; None where it knows no such run, or the user may not look."""
    run = await api.get("dags", dag, "dagRuns", run_id)
    tasks = await api.get("dags", dag, "dagRuns", run_id, "taskInstances", limit=100)
    if not (run.is_good and tasks.is_good):
        return None
    of_dag = await api.get("dags", dag, "tasks")
    listed = of_dag.value["tasks"] if of_dag.is_good else []
    following = {of["task_id"]: of["downstream_task_ids"] or () for of in listed}
    progress = progress_of(run.value, tasks.value["task_instances"], following)
    progress = replace(progress, tasks=await _with_causes(api, dag, run_id, progress.tasks))
    for task in progress.waits_for:
        path = _task_path(dag, run_id, task.task, task.map_index)
        if question := await _question(api, path):
            return replace(progress, question=question)
    return progress


async def runs_that_ask(api: AirflowApi) -> dict[str, str]:
    """Return the run of approve_plan that is at work on a plan, by the plan's id."""
    states = ["queued", "running"]
    reply = await api.get("dags", APPROVE_PLAN, "dagRuns", state=states, limit=100)
    asking = {}
    for run in reply.value["dag_runs"] if reply.is_good else ():
        for plan in (run["conf"] or {}).get("plans") or ():
            asking[str(plan)] = str(run["dag_run_id"])
    return asking


async def _with_causes(api: AirflowApi, dag: str, run_id: str, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks; the first that failed have their causes."""
    explained = list(tasks)
    failed = [place for place, task in enumerate(tasks) if task.has_failed]
    for place in failed[:CAUSES_SHOWN]:
        task = tasks[place]
        path = ("dags", dag, "dagRuns", run_id, "taskInstances", task.task, "xcomEntries", CAUSE)
        cause = await api.get(*path, map_index=task.map_index)
        if cause.is_good:
            explained[place] = replace(task, cause=str(cause.value["value"]))
    return explained


async def _question(api: AirflowApi, path: tuple[str, ...]) -> Question | None:
    """Return what a task asks, or None if it asks nothing that is not answered."""
    detail = await api.get(*path, "hitlDetails")
    if not detail.is_good:
        return None
    health = await api.get("monitor", "health")
    heartbeat = health.value["scheduler"]["latest_scheduler_heartbeat"] if health.is_good else None
    return question_of(detail.value, datetime.fromisoformat(heartbeat) if heartbeat else None)


def log_lines(content: Sequence[Any]) -> list[str]:
    """Return the lines of a log as the API has them, without the marks that fold them."""
    texts = [of if isinstance(of, str) else str(of.get("event", "")) for of in content]
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("::")]


def undoable(lake: Lake, page: Mapping[str, Any]) -> UndoableRun | None:
    """Return how the run can be taken back on the only topic of the page; None where it cannot."""
    if not page["stages"]:
        return None
    name = page["topics"][0].last.topic
    try:
        if refuses(lake.topic(name), UNDO):
            return None
        runs = undoable_runs(lake, name, datetime.now(UTC))
    except EbbtideError:  # somebody has dropped it, or set what is wrong: its own page says so
        return None
    return next((run for run in runs if run.run_id == page["run_id"]), None)


def _why_not(
    lake: Lake,
    api: AirflowApi,
    dag: str,
    progress: Progress | None,
    plans: Sequence[StandingPlan],
) -> str | None:
    """Say why the user cannot answer the run's question; None where that is not so."""
    if progress is None or progress.question is None:
        return None
    if not api.may_answer(dag):
        return f"{api.user_name} may look, and may not answer."
    if progress.user == api.user_name and any(_has_four_eyes(lake, of) for of in plans):
        return (
            f"{api.user_name} has asked for it, so somebody else has to approve it: the rule of "
            "four eyes holds. To reject it, use Airflow's own page."
        )
    return None if progress.question.is_settled else SETTLES


def _has_four_eyes(lake: Lake, stored: StandingPlan) -> bool:
    properties = lake.records(stored.plan.topic).properties
    return needs_four_eyes(properties, os.environ.get(FOUR_EYES_OF_ALL))


def _task_path(dag: str, run_id: str, task: str, map_index: int) -> tuple[str, ...]:
    return ("dags", dag, "dagRuns", run_id, "taskInstances", task, str(map_index))
