"""How people answered for plans, as the approval hands it on to whatever follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self, TypedDict

from airflow.sdk.exceptions import AirflowFailException

from ebbtide.log.plans.plan import Plan

# Keys of XComs: the plans that were made, and the answer for them.
PLANS = "plans"
ANSWER = "answer"

APPROVE, REJECT = "Approve", "Reject"  # Airflow shows a button for each
NOTE = "note"  # a field beside the buttons
# One more, by which the answer says which plans its reader has seen. No DAG may have a Param of
# its name: Airflow would give the field the value of that.
SHOWN = "digests"
_DIGEST = 12  # characters of a digest that people see


class KeptPlan(TypedDict):
    """All that XCom carries of a plan."""

    plan_id: str
    job: str
    topic: str
    digest: str


def kept(plan: Plan) -> KeptPlan:
    """Return what is handed on of a plan."""
    return KeptPlan(plan_id=plan.plan_id, job=plan.job, topic=plan.topic, digest=plan.digest)


def digests_of(plans: Iterable[KeptPlan]) -> str:
    """Return the beginnings of the plans' digests, sorted, with a blank between them."""
    return " ".join(sorted({plan["digest"][:_DIGEST] for plan in plans}))


class Decision(StrEnum):
    """What became of the question whether plans may be executed."""

    APPROVED = "approved"
    REJECTED = "rejected"
    UNANSWERED = "unanswered"
    NOT_ASKED = "not asked"  # nothing would be removed


_IN_WORDS = {
    Decision.APPROVED: "Approved by {by}{note}.",
    Decision.REJECTED: "Rejected by {by}{note}. Nothing was changed.",
    Decision.UNANSWERED: "Nobody answered in time, which rejects. Nothing was changed.",
    Decision.NOT_ASKED: "No approval was needed: nothing would be removed.",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for these very plans; `by` is None where nobody had to answer, or nobody did."""

    decision: Decision
    plans: Sequence[KeptPlan]
    by: str | None = None
    note: str = ""

    @classmethod
    def of_response(cls, event: Mapping[str, Any], plans: Sequence[KeptPlan]) -> Self:
        """Return the answer that Airflow resumes an approval with."""
        if event.get("timedout"):
            return cls(Decision.UNANSWERED, plans)
        user = event["responded_by_user"] or {}
        by = user.get("name") or user.get("id")
        if not by:
            raise AirflowFailException(
                "expected an answer by a user of Airflow, found one by nobody; clear this task, so "
                "that it asks again"
            )
        is_approved = list(event["chosen_options"]) == [APPROVE]
        decision = Decision.APPROVED if is_approved else Decision.REJECTED
        fields = event["params_input"] or {}
        shown, expected = fields.get(SHOWN) or "", digests_of(plans)
        if is_approved and shown != expected:
            raise AirflowFailException(
                f"expected an answer for the plans with the digests {expected}, found one for "
                f"{shown or 'none'}; nothing was executed: clear this task, so that it asks again, "
                f"and send its field {SHOWN!r} back as the question has it"
            )
        note = fields.get(NOTE) or ""
        return cls(decision, plans, by, note.strip())

    @classmethod
    def of_xcom(cls, value: Mapping[str, Any]) -> Self:
        """Return the answer that `to_xcom` has written."""
        return cls(**{**value, "decision": Decision(value["decision"])})

    def to_xcom(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        return {**asdict(self), "decision": str(self.decision)}

    @property
    def may_execute(self) -> bool:
        """Whether the plans may be executed."""
        return self.decision in (Decision.APPROVED, Decision.NOT_ASKED)

    def in_words(self) -> str:
        """Say who decided what, in a sentence or two."""
        note = f" ({self.note})" if self.note else ""
        return _IN_WORDS[self.decision].format(by=self.by, note=note)


def answer_of(context: Any, approval: str) -> Answer | None:
    """Return what the task `approval` handed on; None where it has not asked."""
    value = context["ti"].xcom_pull(task_ids=approval, key=ANSWER)
    return None if value is None else Answer.of_xcom(value)


def plans_of(context: Any, task: str) -> list[KeptPlan]:
    """Return the plans that a task handed on, over all its mapped tasks."""
    pulled = context["ti"].xcom_pull(task_ids=[task], key=PLANS) or []
    return [plan for plans in pulled for plan in plans or ()]
