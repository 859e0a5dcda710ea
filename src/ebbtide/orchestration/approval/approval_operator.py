"""Ask people whether plans may be executed: an Airflow operator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.definitions.param import Param, ParamsDict
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskAwaitingInput,
)
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult

from ebbtide.errors import PlanError, RequestError
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.log.plans.events import FOUR_EYES_OF_ALL, check_four_eyes, needs_four_eyes
from ebbtide.log.plans.plan import Plan
from ebbtide.orchestration.approval.answer import (
    ANSWER,
    APPROVE,
    NOTE,
    PLANS,
    REJECT,
    SHOWN,
    Answer,
    Decision,
    KeptPlan,
    digests_of,
    plans_of,
)
from ebbtide.orchestration.approval.plan_table import in_markdown, question, removes_something
from ebbtide.orchestration.approval.settings import answer_by, approvers
from ebbtide.orchestration.driver.causes import explained

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanApprovalOperator(HITLOperator, BranchMixIn):
    """Ask whether the plans of the task `plans_from` may be executed, and follow the answer.

    `execution` and `rejection` are the tasks behind it, of which one is skipped. Nobody is asked in
    a run that only plans, nor where nothing would be removed, unless the topic has four eyes. The
    answer is handed on together with the plans it is for: a plan that is made after it was asked
    for is never executed by it.
    """

    inherits_from_skipmixin = True

    def __init__(self, *, plans_from: str, execution: str, rejection: str, **kwargs: Any) -> None:
        super().__init__(
            subject="May these plans be executed?",
            options=[APPROVE, REJECT],
            defaults=REJECT,
            **kwargs,
        )
        self._set_fields("")
        self.plans_from = plans_from
        self.execution = execution
        self.rejection = rejection

    def execute(self, context: Context) -> None:
        """Ask, and wait without a slot until somebody answers."""
        if context["params"].get("plan_only"):
            raise AirflowSkipException("the run only plans; approve_plan executes what it planned")
        with explained(context):
            kept = plans_of(context, self.plans_from)
            is_asked = self._prepare(_to_ask_for(kept))
        if not is_asked:
            self._follow(context, Answer(Decision.NOT_ASKED, kept))
            return
        context["ti"].xcom_push(key=PLANS, value=kept)
        self._set_fields(digests_of(kept))
        try:
            super().execute(context)
        except TaskAwaitingInput:
            with explained(context):
                _check_shown(context, digests_of(kept))
            raise

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Take the answer, or that there was none in time."""
        super().execute_complete(context, dict(event))
        with explained(context):
            answer = Answer.of_response(event, plans_of(context, self.task_id))
            if answer.may_execute:
                _check_four_eyes(answer)
        self._follow(context, answer)

    def _set_fields(self, digests: str) -> None:
        """Set the fields of the answer's form; one sends back which plans it has shown."""
        why = "Kept with the plans, such as the number of a request."
        note = Param(None, type=["null", "string"], title="Note", description=why)
        about = "The digests of the plans above. The answer counts for these alone."
        # The process that takes the answer knows them by XCom, and not by this form.
        only: dict[str, Any] = {"enum": [digests]} if digests else {}
        shown = Param(digests, type="string", title="Digests", description=about, **only)
        self.params = ParamsDict({NOTE: note, SHOWN: shown})

    def _prepare(self, plans: Sequence[Plan]) -> bool:
        """Put the plans into the question; False where there are none to ask for."""
        if not plans:
            return False
        clock = datetime.now(UTC)
        until = answer_by(plans, clock)
        self.subject = question(plans)
        self.body = in_markdown(plans, f"{until:%Y-%m-%d %H:%M}")
        self.response_timeout = until - clock
        self.assigned_users = approvers()
        return True

    def _follow(self, context: Context, answer: Answer) -> None:
        self.log.info("ebbtide: %s", answer.in_words())
        context["ti"].xcom_push(key=ANSWER, value=answer.to_xcom())
        self.do_branch(context, [self.execution if answer.may_execute else self.rejection])


def _check_shown(context: Context, digests: str) -> None:
    """Fail the task where Airflow shows a question about other plans.

    It shows a task's first question, however often the task is cleared and asks anew.
    """
    # Where there is a question, this changes nothing and returns it.
    again = CreateHITLDetailPayload(
        ti_id=context["ti"].id, options=[APPROVE], subject="", params={}, assigned_users=[]
    )
    question = task_runner.SUPERVISOR_COMMS.send(again)
    fields = (question.params if isinstance(question, HITLDetailRequestResult) else None) or {}
    shown = fields.get(SHOWN, {}).get("value")
    if shown != digests:
        raise AirflowFailException(
            f"expected Airflow to show the plans with the digests {digests}, found that it shows "
            f"those with {shown}: the plans were made anew after the question, and a task's "
            "question stays as it is; start approve_plan for the new plans, or a new run"
        )


def _to_ask_for(kept: Sequence[KeptPlan]) -> list[Plan]:
    """Return the plans by which something leaves, and those of topics with four eyes."""
    with open_lake() as lake:
        plans = _read(lake, kept)
        return [p for p in plans if removes_something(p) or _has_four_eyes(lake, p.topic)]


def _check_four_eyes(answer: Answer) -> None:
    """Raise PlanError if a topic has four eyes and the user who asked for its plan approved it.

    The plans stay open: their execution would refuse them too, but the answer would be used up.
    """
    with open_lake() as lake:
        for plan in _read(lake, answer.plans):
            if _has_four_eyes(lake, plan.topic):
                try:
                    check_four_eyes(plan, answer.by)
                except PlanError as error:
                    raise PlanError(f"{error}: clear the task, which asks again") from error


def _has_four_eyes(lake: Lake, topic: str) -> bool:
    return needs_four_eyes(lake.records(topic).properties, os.environ.get(FOUR_EYES_OF_ALL))


def _read(lake: Lake, kept: Sequence[KeptPlan]) -> list[Plan]:
    """Return the plans in the order given, without their offsets."""
    ids = [plan["plan_id"] for plan in kept]
    by_id = {plan.plan_id: plan for plan in lake.plans(plan_id=ids)} if ids else {}
    if missing := [plan_id for plan_id in ids if plan_id not in by_id]:
        raise RequestError(
            f"expected kept plans, found none of {', '.join(missing)} in lake.ebbtide.plans; "
            "make a new plan"
        )
    return [by_id[plan_id] for plan_id in ids]
