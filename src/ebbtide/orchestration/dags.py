"""The DAGs of single jobs, built from their specs. Some make a plan and ask for its approval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import DAG, XComArg, chain, get_current_context, task
from airflow.sdk.definitions.mappedoperator import MappedOperator

from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.approval import PlanApprovalOperator
from ebbtide.orchestration.driver import explained
from ebbtide.orchestration.handover import (
    GROUP_TOPICS,
    chosen_topics,
    conclude,
    group_topics,
    publishing,
    report_run,
    stage,
)
from ebbtide.orchestration.house import Priority, house_of
from ebbtide.orchestration.job_chains import ExecutionOperator, PlanOperator, RejectionOperator
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.orchestration.pool import SPARK_POOL
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import Frame, JobSpec
from ebbtide.specs.retention import STAGES

PLAN, APPROVE, REJECTION = "plan", "approve", "record_rejection"
CHOSEN = "{{ params.topic }}"


@task
def choose_topics() -> list[str]:
    """Return the enabled topics of the form, or all enabled topics if it names none."""
    context = get_current_context()
    with explained(context), open_lake() as lake:
        return chosen_topics(lake, context["params"].get("topics"))


@task
def choose_stages() -> list[str]:
    """Return the stages of the form, in the order of nightly_retention."""
    chosen = get_current_context()["params"]["stages"]
    return [stage for stage in STAGES if stage in chosen]


@task(retries=0)
def build_request(job: str) -> dict[str, Any]:
    """Return the job's request, built from the form."""
    context = get_current_context()
    with explained(context):
        return SPECS[job].request(context["params"])  # type: ignore[misc]


def on_demand(spec: JobSpec, doc: str | None, file: str) -> None:
    """Make the DAG of a job. `file` is its DAG file."""
    with DAG(spec.name, **house_of(spec, doc)) as made:
        if spec.frame is Frame.GROUPED:
            groups = group_topics()
            chain(groups, stage(spec.name, groups), report_run([spec.name], GROUP_TOPICS))
        elif spec.frame is Frame.ASKING:
            _plan_and_approve(spec)
        else:
            topics = None if spec.is_ingest else [CHOSEN]
            job = EbbtideJobOperator(task_id=spec.name, job=spec.name, topics=topics)
            publishes = publishing(spec.name, is_ingest=True) if spec.is_ingest else None
            conclude([job], publishes=publishes, stages=[spec.name])
    made.fileloc = file


def _plan_and_approve(spec: JobSpec) -> None:
    """Chain the plan of a job, its approval, its execution and the report.

    A hold has the highest priority, so that its records are copied before another job removes them.
    """
    job = spec.name
    first = Priority.HOLD if spec.is_hold else Priority.PLAN
    then = Priority.HOLD if spec.is_hold else Priority.APPROVED
    asked = {"request": build_request(job)} if spec.request else {"topics": [CHOSEN]}
    plan = PlanOperator(task_id=PLAN, job=job, priority_weight=first, **asked)
    answered: dict[str, Any] = {"job": job, "approval": APPROVE, "priority_weight": then}
    pool = spec.execution_pool or SPARK_POOL
    execute = ExecutionOperator(task_id=job, pool=pool, **answered)
    reject = RejectionOperator(task_id=REJECTION, **answered)
    chain(plan, approval(PLAN, execution=job), [execute, reject])
    judged = conclude(
        [execute],
        publishes=publishing(job) if spec.moves_low_watermarks else None,
        stages=[job],
        plans=PLAN,
        approval=APPROVE,
    )
    chain(reject, judged)


def approval(plans_from: str, *, execution: str) -> PlanApprovalOperator:
    """Return the task that asks for an approval of the plans of `plans_from`."""
    return PlanApprovalOperator(
        task_id=APPROVE, plans_from=plans_from, execution=execution, rejection=REJECTION
    )


def rejections(jobs: XComArg | Sequence[str]) -> MappedOperator:
    """Return the tasks that record a rejection, one per job."""
    return RejectionOperator.partial(
        task_id=REJECTION,
        approval=APPROVE,
        pool=SPARK_POOL,  # a mapped task ignores the operator's own default
        priority_weight=Priority.APPROVED,
        map_index_template="{{ task.job }}",
    ).expand(job=jobs)
