"""Chain plan, approval and execution, as every DAG does that removes something by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg, chain
from airflow.sdk.definitions.mappedoperator import MappedOperator

from ebbtide.orchestration.approval.approval_operator import PlanApprovalOperator
from ebbtide.orchestration.approval.job_operators import (
    ExecutionOperator,
    PlanOperator,
    RejectionOperator,
)
from ebbtide.orchestration.handover import conclude, publishing
from ebbtide.orchestration.house import Priority
from ebbtide.orchestration.pool import SPARK_POOL

PLAN, APPROVE, REJECTION = "plan", "approve", "record_rejection"


def plan_and_approve(
    job: str,
    *,
    asked: Mapping[str, Any],
    again: Mapping[str, Any] | None = None,
    publishes: bool = False,
    is_hold: bool = False,
) -> None:
    """Chain the plan of `job`, its approval, its execution and the verdict.

    `asked` are arguments of the task that plans, `again` of the one that executes the plan: what
    no plan keeps. With `publishes` the low watermarks of the execution are published. A hold goes
    before all others, so that what it is to keep is still there.
    """
    first = Priority.HOLD if is_hold else Priority.PLAN
    then = Priority.HOLD if is_hold else Priority.APPROVED
    plan = PlanOperator(task_id=PLAN, job=job, priority_weight=first, **asked)
    answered: dict[str, Any] = {"job": job, "approval": APPROVE, "priority_weight": then}
    execute = ExecutionOperator(task_id=job, **answered, **(again or {}))
    reject = RejectionOperator(task_id=REJECTION, **answered)
    chain(plan, approval(PLAN, execution=job), [execute, reject])
    judged = conclude(
        [execute],
        publishes=publishing(job) if publishes else None,
        stages=[job],
        plans=PLAN,
        approval=APPROVE,
    )
    chain(reject, judged)


def approval(plans_from: str, *, execution: str) -> PlanApprovalOperator:
    """Return the task that asks for the plans of `plans_from`."""
    return PlanApprovalOperator(
        task_id=APPROVE, plans_from=plans_from, execution=execution, rejection=REJECTION
    )


def rejections(jobs: XComArg | Sequence[str]) -> MappedOperator:
    """Return the tasks that record a rejection, one a job."""
    return RejectionOperator.partial(
        task_id=REJECTION,
        approval=APPROVE,
        pool=SPARK_POOL,  # of a mapped task, only what is said here counts
        priority_weight=Priority.APPROVED,
        map_index_template="{{ task.job }}",
    ).expand(job=jobs)
