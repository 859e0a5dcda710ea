"""Operators and tasks that make plans, execute approved plans, and record rejections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import TriggerRule, XComArg, get_current_context, task
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from ebbtide.errors import RequestError
from ebbtide.lake.own_tables import ERASE_KEYS, standing_plans
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.ledger.plans import Plan
from ebbtide.orchestration.approval import PLANS, ApprovalAnswer, StoredPlan, answer_of, kept
from ebbtide.orchestration.driver import (
    TaskAttempt,
    began,
    connections_needed,
    connections_of_topics,
    explained,
    states_of,
)
from ebbtide.orchestration.driver_inputs import DriverFiles, options_of_params
from ebbtide.orchestration.night import NIGHT, LowWatermark
from ebbtide.orchestration.operator import EbbtideJobOperator
from ebbtide.specs.delete_request import parse_request_object
from ebbtide.specs.params import JobParam

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanOperator(EbbtideJobOperator):
    """Run `jobs/<job>.py` with --plan-only and store its plans. The XCom `plans` names them.

    The plans record the user who triggered the run as their requester.
    """

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        topics = self._healthy(context, attempt)
        with open_lake() as lake:
            self._check(lake, context, topics)
        if topics != []:
            self._settle_plan(self._submit(context, attempt, topics))
        with open_lake() as lake:
            plans = kept_plans(lake, attempt, self.job)
        context["ti"].xcom_push(key=PLANS, value=plans)
        return []

    def _only_plans(self, context: Context) -> bool:
        return True

    def _arguments(
        self,
        context: Context,
        attempt: TaskAttempt,
        topics: Sequence[str] | None,
        files: DriverFiles,
    ) -> list[str]:
        user = context["dag_run"].triggering_user_name
        requester = [f"--triggered-by={user}"] if user else []
        return ["--plan-only", *requester, *super()._arguments(context, attempt, topics, files)]


class ExecutionOperator(EbbtideJobOperator):
    """Execute the plans of `job` that the task `approval` handed on with its answer.

    If it handed on none of this job, the task is skipped.
    """

    by: ClassVar[str] = "--approved-by"
    by_nobody: ClassVar[Sequence[str]] = ()

    def __init__(self, *, approval: str, **kwargs: Any) -> None:
        super().__init__(needs_spark=True, **kwargs)
        self.approval = approval
        self.answer: ApprovalAnswer | None = None

    @property
    def asked(self) -> Sequence[JobParam]:
        """The job's Params that plans do not store."""
        return [param for param in self.spec.asked if not param.is_stored]

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        self._take_answer(context)
        return super()._execute(context, attempt)

    def _take_answer(self, context: Context) -> None:
        """Set topics and plans from the answer. Raise AirflowSkipException if there are none."""
        self.answer = self._answer(context)
        self.topics = sorted({plan["topic"] for plan in self._plans()})
        if not self.topics:
            raise AirflowSkipException(f"{self.job}: no plan to execute or reject")

    def _answer(self, context: Context) -> ApprovalAnswer:
        answer = answer_of(context, self.approval)
        if answer is None and "success" in states_of(context, self.approval).values():
            raise AirflowFailException(
                f"expected an answer from {self.approval}, found none: a user marked the task as "
                "success, which approves nothing. Clear it to ask again"
            )
        if answer is None:
            raise AirflowSkipException(f"{self.approval} did not ask")
        if not answer.may_execute:
            raise AirflowSkipException(answer.in_words())
        return answer

    def _plans(self) -> list[StoredPlan]:
        answered = self.answer.plans if self.answer else ()
        return [plan for plan in answered if plan["job"] == self.job]

    def _check(self, lake: Lake, context: Context, topics: Sequence[str] | None) -> None:
        """Check nothing: the form was checked before the plan was made."""

    def _arguments(
        self,
        context: Context,
        attempt: TaskAttempt,
        topics: Sequence[str] | None,
        files: DriverFiles,
    ) -> list[str]:
        arguments = options_of_params(context["params"], self.asked)
        for plan in self._plans():
            if plan["topic"] in (topics or ()):
                arguments.append(f"--plan={plan['plan_id']}")
        if self.answer and self.answer.by:  # a value may begin with a hyphen
            arguments += [f"{self.by}={self.answer.by}", f"--approval-note={self.answer.note}"]
        else:
            arguments += self.by_nobody
        return [*arguments, *attempt.identity()]

    def _connections(
        self,
        lake: Lake,
        context: Context,
        topics: Sequence[str],
        request: Mapping[str, Any] | None,
    ) -> set[str]:
        plans = lake.plans(plan_id=[plan["plan_id"] for plan in self._plans()])
        return {name for plan in plans for name in connections_of_plan(lake, plan)}


class RejectionOperator(ExecutionOperator):
    """Record with the plans of `job` who rejected them and why, or that no answer came in time."""

    by: ClassVar[str] = "--rejected-by"
    by_nobody: ClassVar[Sequence[str]] = ("--unanswered",)

    @property
    def asked(self) -> Sequence[JobParam]:
        """No Params: a rejection needs none."""
        return ()

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        self._take_answer(context)
        return self._settle_plan(self._submit(context, attempt, list(self.topics or ())))

    def _answer(self, context: Context) -> ApprovalAnswer:
        answer = answer_of(context, self.approval)
        if answer is None or answer.may_execute:
            raise AirflowSkipException("no plan was rejected")
        return answer


def connections_of_plan(lake: Lake, plan: Plan) -> set[str]:
    """Return the Kafka connections that a plan's request and topic need."""
    needed = connections_of_topics(lake, [plan.topic], plan.parameters.get("connection"))
    if request := plan.parameters.get("request"):
        needed |= connections_needed(lake, parse_request_object(request))
    return needed


def kept_plans(lake: Lake, attempt: TaskAttempt, job: str) -> list[StoredPlan]:
    """Return each topic's newest plan that this DAG run made for `job`."""
    plans = lake.plans(attempt.since, run_id=attempt.run_id, dag=attempt.dag, job=job)
    newest = {plan.topic: plan for plan in plans}
    return [kept(plan) for _, plan in sorted(newest.items())]


LOAD_PLANS = "load_plans"
APPROVE_PLAN = "approve_plan"  # the DAG


@task(task_id=LOAD_PLANS)
def load_plans() -> list[str]:
    """Hand on the plans that the form names. Return their jobs, in the order of stages."""
    context = get_current_context()
    with explained(context), open_lake() as lake:
        plans = find_waiting(lake, context["params"]["plans"])
    context["ti"].xcom_push(key=PLANS, value=[kept(plan) for plan in plans])
    return sorted({plan.job for plan in plans}, key=_place)


@task(trigger_rule=TriggerRule.ALL_DONE)
def find_open_plans() -> list[dict[str, Any]]:
    """Return the conf of a run of approve_plan for each open plan of this run."""
    context = get_current_context()
    run = context["dag_run"]
    with explained(context), open_lake() as lake:
        plans = lake.plans(began(run), run_id=run.run_id, dag=context["ti"].dag_id)
        left = [s.plan.plan_id for s in standing_plans(lake, plans, datetime.now(UTC)) if s.waits]
    return [{"conf": {"plans": [plan]}, "trigger_run_id": f"plan__{plan}"} for plan in left]


def ask_for(runs: XComArg) -> MappedOperator:
    """Trigger approve_plan once for each open plan, even if this run is cleared and runs again."""
    return TriggerDagRunOperator.partial(
        task_id="request_approval",
        trigger_dag_id=APPROVE_PLAN,
        logical_date=None,
        skip_when_already_exists=True,
        map_index_template="{{ task.conf.plans[0] }}",
    ).expand_kwargs(runs)


def find_waiting(lake: Lake, plan_ids: Sequence[str]) -> list[Plan]:
    """Return the plans with these ids. Raise RequestError unless all can still be executed."""
    asked = dict.fromkeys(plan_ids)
    standing = standing_plans(lake, lake.plans(plan_id=list(asked)), datetime.now(UTC))
    by_id = {stored.plan.plan_id: stored for stored in standing}
    problems = [
        f"{plan_id} ({by_id[plan_id].standing if plan_id in by_id else 'unknown'})"
        for plan_id in asked
        if plan_id not in by_id or not by_id[plan_id].waits
    ]
    if problems:
        raise RequestError(
            f"expected open or approved plans, found {', '.join(problems)}. Make new plans"
        )
    plans = [by_id[plan_id].plan for plan_id in asked]
    if keyless := next((plan for plan in plans if plan.job == ERASE_KEYS), None):
        raise RequestError(
            f"expected plans that can be executed without their form, found {keyless.plan_id}: "
            f"plans store no keys. Trigger {ERASE_KEYS} with the keys; it plans and asks again"
        )
    return plans


def _place(job: str) -> tuple[int, str]:
    return (NIGHT.index(job) if job in NIGHT else len(NIGHT), job)
