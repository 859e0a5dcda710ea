"""Plans that wait for an answer: those a form names, and those that a night has left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import TriggerRule, XComArg, get_current_context, task
from airflow.sdk.definitions.mappedoperator import MappedOperator

from ebbtide.errors import RequestError
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.lake.standing_plans import ERASE_KEYS, standing_plans
from ebbtide.log.plans.plan import Plan
from ebbtide.orchestration.approval.answer import PLANS, kept
from ebbtide.orchestration.driver.attempt import began
from ebbtide.orchestration.driver.causes import explained
from ebbtide.orchestration.night import NIGHT

NAMED_PLANS = "named_plans"
APPROVE_PLAN = "approve_plan"  # the DAG


@task(task_id=NAMED_PLANS)
def named_plans() -> list[str]:
    """Hand on the plans that the form names; return their jobs, in the order of a night."""
    context = get_current_context()
    with explained(context), open_lake() as lake:
        plans = find_waiting(lake, context["params"]["plans"])
    context["ti"].xcom_push(key=PLANS, value=[kept(plan) for plan in plans])
    return sorted({plan.job for plan in plans}, key=_place)


@task(trigger_rule=TriggerRule.ALL_DONE)
def left_plans() -> list[dict[str, Any]]:
    """Return a run of approve_plan for each plan that this run has left to be approved."""
    context = get_current_context()
    run = context["dag_run"]
    with explained(context), open_lake() as lake:
        plans = lake.plans(began(run), run_id=run.run_id, dag=context["ti"].dag_id)
        left = [s.plan.plan_id for s in standing_plans(lake, plans, datetime.now(UTC)) if s.waits]
    return [{"conf": {"plans": [plan]}, "trigger_run_id": f"plan__{plan}"} for plan in left]


def ask_for(runs: XComArg) -> MappedOperator:
    """Trigger approve_plan for each plan that is left; a run that is cleared asks once."""
    return TriggerDagRunOperator.partial(
        task_id=APPROVE_PLAN,
        trigger_dag_id=APPROVE_PLAN,
        logical_date=None,
        skip_when_already_exists=True,
        map_index_template="{{ task.conf.plans[0] }}",
    ).expand_kwargs(runs)


def find_waiting(lake: Lake, plan_ids: Sequence[str]) -> list[Plan]:
    """Return the plans with these ids; RequestError unless all of them can still be executed."""
    asked = dict.fromkeys(plan_ids)
    standing = standing_plans(lake, lake.plans(plan_id=list(asked)), datetime.now(UTC))
    by_id = {stored.plan.plan_id: stored for stored in standing}
    problems = [
        f"{plan_id}, which is {by_id[plan_id].standing if plan_id in by_id else 'unknown'}"
        for plan_id in asked
        if plan_id not in by_id or not by_id[plan_id].waits
    ]
    if problems:
        raise RequestError(
            f"expected plans that can be executed, found {'; '.join(problems)}; make new plans"
        )
    plans = [by_id[plan_id].plan for plan_id in asked]
    if keyless := next((plan for plan in plans if plan.job == ERASE_KEYS), None):
        raise RequestError(
            f"expected plans that say all of what is asked, found {keyless.plan_id}: a plan keeps "
            f"no keys; trigger {ERASE_KEYS} with them, which asks for a plan of its own"
        )
    return plans


def _place(job: str) -> tuple[int, str]:
    return (NIGHT.index(job) if job in NIGHT else len(NIGHT), job)
