"""Make plans, execute them once they are approved, and record that they were rejected."""

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
    """Plan what `jobs/<job>.py` would do, and keep the plans; the XCom `plans` names them.

    They say that the user who triggered the run has asked for them.
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

    Where it handed on none of this job, the task is skipped.
    """

    by: ClassVar[str] = "--approved-by"
    by_nobody: ClassVar[Sequence[str]] = ()

    def __init__(self, *, approval: str, **kwargs: Any) -> None:
        super().__init__(needs_spark=True, **kwargs)
        self.approval = approval
        self.answer: ApprovalAnswer | None = None

    @property
    def asked(self) -> Sequence[JobParam]:
        """The parameters that no plan keeps."""
        return [param for param in self.spec.asked if not param.is_stored]

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        self._take_answer(context)
        return super()._execute(context, attempt)

    def _take_answer(self, context: Context) -> None:
        """Set topics and plans by the answer; AirflowSkipException where there is no work."""
        self.answer = self._answer(context)
        self.topics = sorted({plan["topic"] for plan in self._plans()})
        if not self.topics:
            raise AirflowSkipException(f"{self.job}: there is no plan of it")

    def _answer(self, context: Context) -> ApprovalAnswer:
        answer = answer_of(context, self.approval)
        if answer is None and "success" in states_of(context, self.approval).values():
            raise AirflowFailException(
                f"expected an answer from {self.approval}, found none: it was marked as "
                "successful by hand, which approves nothing; clear it, so that it asks"
            )
        if answer is None:
            raise AirflowSkipException(f"{self.approval} has not asked")
        if not answer.may_execute:
            raise AirflowSkipException(answer.in_words())
        return answer

    def _plans(self) -> list[StoredPlan]:
        answered = self.answer.plans if self.answer else ()
        return [plan for plan in answered if plan["job"] == self.job]

    def _check(self, lake: Lake, context: Context, topics: Sequence[str] | None) -> None:
        """Leave all checks to the job: the form was checked when the plan was made."""

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
    """Record with the plans of `job` who rejected them and why, or that nobody answered in time."""

    by: ClassVar[str] = "--rejected-by"
    by_nobody: ClassVar[Sequence[str]] = ("--unanswered",)

    @property
    def asked(self) -> Sequence[JobParam]:
        """None: a rejection needs no parameters."""
        return ()

    def _execute(self, context: Context, attempt: TaskAttempt) -> list[LowWatermark]:
        self._take_answer(context)
        return self._settle_plan(self._submit(context, attempt, list(self.topics or ())))

    def _answer(self, context: Context) -> ApprovalAnswer:
        answer = answer_of(context, self.approval)
        if answer is None or answer.may_execute:
            raise AirflowSkipException("no plan is rejected")
        return answer


def connections_of_plan(lake: Lake, plan: Plan) -> set[str]:
    """Return the Kafka connections of what the plan was asked, and of its topic."""
    needed = connections_of_topics(lake, [plan.topic], plan.parameters.get("connection"))
    if request := plan.parameters.get("request"):
        needed |= connections_needed(lake, parse_request_object(request))
    return needed


def kept_plans(lake: Lake, attempt: TaskAttempt, job: str) -> list[StoredPlan]:
    """Return the newest plan of each topic that this DAG run has made for `job`."""
    plans = lake.plans(attempt.since, run_id=attempt.run_id, dag=attempt.dag, job=job)
    newest = {plan.topic: plan for plan in plans}
    return [kept(plan) for _, plan in sorted(newest.items())]


LOAD_PLANS = "load_plans"
APPROVE_PLAN = "approve_plan"  # the DAG


@task(task_id=LOAD_PLANS)
def load_plans() -> list[str]:
    """Hand on the plans that the form names; return their jobs, in the order of a night."""
    context = get_current_context()
    with explained(context), open_lake() as lake:
        plans = find_waiting(lake, context["params"]["plans"])
    context["ti"].xcom_push(key=PLANS, value=[kept(plan) for plan in plans])
    return sorted({plan.job for plan in plans}, key=_place)


@task(trigger_rule=TriggerRule.ALL_DONE)
def find_open_plans() -> list[dict[str, Any]]:
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
        task_id="request_approval",
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
