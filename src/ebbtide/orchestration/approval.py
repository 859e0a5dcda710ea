"""The approval of plans: its settings, the question, the operator that asks, and the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict
from urllib.parse import quote, urlparse

import pendulum
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.param import Param, ParamsDict
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult

from ebbtide.errors import ConfigurationError, PlanError, RequestError
from ebbtide.lake.reader import Lake, open_lake
from ebbtide.ledger.plans import (
    FOUR_EYES_OF_ALL,
    PartitionSummary,
    Plan,
    RuleNumbers,
    check_four_eyes,
    needs_four_eyes,
    stays_in_words,
)
from ebbtide.ledger.undo_points import UNDO_RUN
from ebbtide.moments import minute
from ebbtide.orchestration.driver import explained
from ebbtide.specs.hold_request import Action
from ebbtide.state.topic_state import REPAIR
from ebbtide.text import number, seconds, size

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.hitl import HITLUser

# Keys of XComs: the plans of a task, and the answer for them.
PLANS = "plans"
ANSWER = "answer"

APPROVE, REJECT = "Approve", "Reject"  # Airflow shows a button for each
NOTE = "note"  # a field of the answer
# The field of the answer that names the plans that its author has seen. No DAG may have a Param of
# this name: Airflow would fill the field with that Param's value.
SHOWN = "digests"
_DIGEST = 12  # characters of a digest that questions and pages show


class StoredPlan(TypedDict):
    """The fields of a plan that XCom carries."""

    plan_id: str
    job: str
    topic: str
    digest: str


def kept(plan: Plan) -> StoredPlan:
    """Return the fields of a plan that go into XCom."""
    return StoredPlan(plan_id=plan.plan_id, job=plan.job, topic=plan.topic, digest=plan.digest)


def digests_of(plans: Iterable[StoredPlan]) -> str:
    """Return the first characters of the plans' digests, sorted and joined by spaces."""
    return " ".join(sorted({plan["digest"][:_DIGEST] for plan in plans}))


class Decision(StrEnum):
    """The outcome of the question whether plans may be executed."""

    APPROVED = "approved"
    REJECTED = "rejected"
    UNANSWERED = "unanswered"
    NOT_ASKED = "not asked"  # nothing would be removed


_IN_WORDS = {
    Decision.APPROVED: "Approved by {by}{note}.",
    Decision.REJECTED: "Rejected by {by}{note}. Nothing was changed.",
    Decision.UNANSWERED: "Rejected, because no answer came in time. Nothing was changed.",
    Decision.NOT_ASKED: "No approval was needed: nothing would be removed.",
}


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer for exactly these plans."""

    decision: Decision
    plans: Sequence[StoredPlan]
    by: str | None = None  # None if no answer was needed, or none came
    note: str = ""

    @classmethod
    def of_response(cls, event: Mapping[str, Any], plans: Sequence[StoredPlan]) -> Self:
        """Return the answer from the event with which Airflow resumes an approval.

        Raise AirflowFailException if the event names no user, or approves other plans.
        """
        if event.get("timedout"):
            return cls(Decision.UNANSWERED, plans)
        user = event["responded_by_user"] or {}
        by = user.get("name") or user.get("id")
        if not by:
            raise AirflowFailException(
                "expected an answer by an Airflow user, found one without a user. Nothing was "
                "executed. Clear this task to ask again"
            )
        is_approved = list(event["chosen_options"]) == [APPROVE]
        decision = Decision.APPROVED if is_approved else Decision.REJECTED
        fields = event["params_input"] or {}
        shown, expected = fields.get(SHOWN) or "", digests_of(plans)
        if is_approved and shown != expected:
            raise AirflowFailException(
                f"expected an answer for the plans with the digests {expected}, found one for "
                f"{shown or 'none'}. Nothing was executed. Clear this task to ask again, and send "
                f"the question's field {SHOWN!r} back unchanged"
            )
        note = fields.get(NOTE) or ""
        return cls(decision, plans, by, note.strip())

    @classmethod
    def of_xcom(cls, value: Mapping[str, Any]) -> Self:
        """Return the answer from a value of `to_xcom`."""
        return cls(**{**value, "decision": Decision(value["decision"])})

    def to_xcom(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {**asdict(self), "decision": str(self.decision)}

    @property
    def may_execute(self) -> bool:
        """True if the plans may be executed."""
        return self.decision in (Decision.APPROVED, Decision.NOT_ASKED)

    def in_words(self) -> str:
        """Return the decision and who made it, in one or two sentences."""
        note = f" ({self.note})" if self.note else ""
        return _IN_WORDS[self.decision].format(by=self.by, note=note)


def answer_of(context: Any, approval: str) -> ApprovalAnswer | None:
    """Return the answer that the task `approval` handed on, or None if it has not asked."""
    value = context["ti"].xcom_pull(task_ids=approval, key=ANSWER)
    return None if value is None else ApprovalAnswer.of_xcom(value)


def plans_of(context: Any, task: str) -> list[StoredPlan]:
    """Return the plans that a task handed on, of all its mapped instances."""
    pulled = context["ti"].xcom_pull(task_ids=[task], key=PLANS) or []
    return [plan for plans in pulled for plan in plans or ()]


APPROVERS = "EBBTIDE_APPROVERS"
TIMEOUT = "EBBTIDE_APPROVAL_TIMEOUT"


def approvers() -> list[HITLUser] | None:
    """Return the only users who may answer, or None for all users who may trigger the DAG."""
    names = [name.strip() for name in os.environ.get(APPROVERS, "").split(",")]
    return [{"id": name, "name": name} for name in names if name] or None


def answer_by(plans: Iterable[Plan], clock: datetime) -> datetime:
    """Return when the question times out: when the first plan expires, or EBBTIDE_APPROVAL_TIMEOUT.

    Raise RequestError if a plan has expired at `clock`.
    """
    first = min(plans, key=lambda plan: plan.expires_at)
    if first.expires_at <= clock:
        raise RequestError(
            f"expected plans that have not expired, found {first.plan_id}, which expired at "
            f"{first.expires_at:%Y-%m-%d %H:%M} UTC. Make a new plan"
        )
    timeout = _timeout()
    return first.expires_at if timeout is None else min(first.expires_at, clock + timeout)


def _timeout() -> timedelta | None:
    text = os.environ.get(TIMEOUT)
    if not text:
        return None
    try:
        timeout = pendulum.parse(text)
    except ValueError:
        timeout = None
    if not isinstance(timeout, pendulum.Duration) or timeout <= timedelta():
        raise ConfigurationError(
            f"expected an ISO 8601 duration above zero, such as PT8H, in {TIMEOUT}, found {text!r}"
        )
    return timeout.as_timedelta()


def page_of(plan_id: str) -> str:
    """Return the URL path of a plan's page, with Airflow's base path."""
    return f"{_pages()}/plans/{plan_id}"


def page_of_topic(name: str) -> str:
    """Return the URL path of a topic's page, with Airflow's base path."""
    return f"{_pages()}/topics/{quote(name, safe='')}"


def _pages() -> str:
    root = urlparse(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{root}/ebbtide"


MAX_ROWS = 20  # of a plan's table in the question; the plan's page has all rows
MAX_PLANS = 10  # in one question with a table each
_SETTINGS_NAMED = 3
_VALUE = 40  # characters of a setting's value
_TITLES = "Partition, Records, Entire files, Bytes, By rule, Oldest event, Newest event".split(", ")
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#])")


def question(plans: Sequence[Plan]) -> str:
    """Return the question in one line: the action of each job, and the records that it removes."""
    by_job: dict[str, list[Plan]] = {}
    for plan in plans:
        by_job.setdefault(plan.job, []).append(plan)
    removing = [job for job in by_job if job not in _ACTS]
    together = [plan for job in removing for plan in by_job[job]]
    asked = [f"{', '.join(removing)}: {_removal(together)}"] if together else []
    asked += [
        f"{job}: {_ACTS[job](job_plans)}" for job, job_plans in by_job.items() if job in _ACTS
    ]
    return "; ".join(asked) + "?"


class PlanReport(NamedTuple):
    """A plan in words."""

    act: str  # completes "The job would ..."
    rows: Sequence[Sequence[str]]  # one for each partition from which records are removed
    facts: Sequence[str]  # whole sentences that are not in the rows


def report_of(plan: Plan, *, is_question: bool = False) -> PlanReport:
    """Return the report of a plan. For a question it is shorter, and has example keys."""
    act = _ACTS.get(plan.job, _removal)([plan])
    return PlanReport(act, list(_rows(plan)), list(_facts(plan, is_question=is_question)))


def _removal(plans: Sequence[Plan]) -> str:
    return f"remove {_counted(plans)} from {_where(plans)}"


def _snapshots(plans: Sequence[Plan]) -> str:
    due = [_due(plan) for plan in plans]
    snapshots, files = (sum(counts) for counts in zip(*due, strict=True))
    expire = _of(snapshots, "snapshot")
    return f"expire {expire} of {_where(plans)} and rewrite {_of(files, 'file')}"


def _quarantine(plans: Sequence[Plan]) -> str:
    return f"mark tombstones of {_where(plans)} and move {_counted(plans)} to quarantine"


def _erasure(plans: Sequence[Plan]) -> str:
    keys = sum(plan.parameters.get("keys", 0) for plan in plans)
    pronoun = "it" if keys == 1 else "them"
    return (
        f"erase {_of(keys, 'key')} from {_where(plans)} and remove {_counted(plans)} of {pronoun}"
    )


def _undo(plans: Sequence[Plan]) -> str:
    runs = ", ".join(dict.fromkeys(f"run {plan.parameters.get('run', '?')}" for plan in plans))
    return f"undo {runs} on {_where(plans)} and restore {_counted(plans)}"


def _repairing(plans: Sequence[Plan]) -> str:
    return f"repair {_where(plans)} and remove {_counted(plans)}"


def _hold(plans: Sequence[Plan]) -> str:
    """Name the hold that is ended or narrowed. Only copies are deleted, no record of the topic."""
    holds = ", ".join(
        f"{'end' if plan.parameters.get('action') == Action.END else 'narrow'} hold "
        f"{plan.parameters.get('hold_id', '?')}"
        for plan in plans
    )
    copies = _of(_records(plans), "copy", "copies")
    return f"{holds} on {_where(plans)} and delete {copies} of held records"


def _settings(plans: Sequence[Plan]) -> str:
    """Name the settings that change. They remove nothing before the next nightly run."""
    changes = [change for plan in plans for change in setting_changes(plan)]
    more = len(changes) - _SETTINGS_NAMED
    named = ", ".join(changes[:_SETTINGS_NAMED]) + (f" and {more} more" if more > 0 else "")
    records = _records(plans)
    then = f"remove {_counted(plans)}" if records else "remove nothing, but a later one may"
    return f"{named} on {_where(plans)} (the next nightly run would {then})"


def setting_changes(plan: Plan) -> list[str]:
    """Return `set NAME=VALUE` or `unset NAME` for each setting that a plan changes."""
    changes = plan.parameters.get("changes", {})
    return [
        f"unset {name}" if value is None else f"set {name}={_shortened(value)}"
        for name, value in changes.items()
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _VALUE else f"{text[:_VALUE]}..."


def _where(plans: Sequence[Plan]) -> str:
    topics = sorted({plan.topic for plan in plans})
    return topics[0] if len(topics) == 1 else f"{len(topics)} topics"


def _counted(plans: Sequence[Plan]) -> str:
    return _of(_records(plans), "record")


def _of(count: int, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


_ACTS: Mapping[str, Callable[[Sequence[Plan]], str]] = {
    "configure_topic": _settings,
    "erase_keys": _erasure,
    "expire_snapshots": _snapshots,
    "hold_records": _hold,
    "mark_tombstones": _quarantine,
    REPAIR: _repairing,
    UNDO_RUN: _undo,
}


def removes_something(plan: Plan) -> bool:
    """Return whether the plan removes records, files or snapshots.

    An undo also counts if it restores no record but undoes a run, and a repair if there is a
    foreign change.
    """
    if plan.job == UNDO_RUN:
        return bool(plan.bounds)
    if plan.job == REPAIR:
        return bool(plan.parameters["found"])
    of_partitions = any(
        summary["records"] or summary["files"] or summary["rules"]
        for summary in _partitions(plan).values()
    )
    return of_partitions or any(_due(plan))


def in_markdown(plans: Sequence[Plan], until: str) -> str:
    """Return the question's text: a table for each plan, and when the question times out."""
    sections = [_section(plan) for plan in plans[:MAX_PLANS]]
    if rest := plans[MAX_PLANS:]:
        sections.append("More plans: " + ", ".join(_link(plan) for plan in rest))
    sections.append(f"Without an answer by {until} UTC, **Reject** applies: nothing is changed.")
    return "\n\n".join(sections)


def escaped(text: str) -> str:
    """Escape the text for Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(plan: Plan) -> str:
    report = report_of(plan, is_question=True)
    total_bytes = sum(summary["bytes"] for summary in _partitions(plan).values())
    bytes_of = f" ({size(total_bytes)})" if total_bytes else ""
    digest = digests_of([kept(plan)])
    lines = [
        f"### {escaped(plan.topic)}",
        "",
        f"**{escaped(plan.job)}** would {escaped(report.act)}{bytes_of}. {_requester(plan)} at "
        f"{plan.made_at:%Y-%m-%d %H:%M} UTC.",
        "",
        *_table(report.rows),
        *(f"* {escaped(fact)}" for fact in report.facts),
        f"* Plan {_link(plan)}, digest `{digest}`, can be executed until "
        f"{plan.expires_at:%Y-%m-%d %H:%M} UTC.",
    ]
    return "\n".join(lines)


def _requester(plan: Plan) -> str:
    if plan.requested_by:
        return f"Requested by **{escaped(plan.requested_by)}**"
    return f"Planned by {escaped(plan.dag or plan.job)}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with the first rows, and an empty line after it."""
    if not rows:
        return
    yield _row(_TITLES)
    yield _row(["---", "---:", "---:", "---:", "---", "---", "---"])
    yield from map(_row, rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield _row([f"and {len(rows) - MAX_ROWS:,} more partitions on the plan's page"])
    yield ""


def _rows(plan: Plan) -> Iterator[Sequence[str]]:
    for partition, of_partition in _partitions(plan).items():
        if of_partition["records"] or of_partition["rules"]:
            yield [
                partition,
                number(of_partition["records"]),
                number(of_partition["files"]),
                size(of_partition["bytes"]),
                "; ".join(_rule(*item) for item in of_partition["rules"].items()),
                minute(of_partition["oldest_event_ms"]),
                minute(of_partition["newest_event_ms"]),
            ]


def _rule(rule: str, numbers: RuleNumbers) -> str:
    """Return a rule with its counts, such as `retention ms: 1,200 records in 3 segments`."""
    segments = numbers.get("segments")
    where = f" in {_of(segments, 'segment')}" if segments else ""
    return f"{rule.replace('_', ' ')}: {_of(numbers['records'], 'record')}{where}"


def _facts(plan: Plan, *, is_question: bool) -> Iterator[str]:
    """Yield sentences with all facts that are not in the rows."""
    most = MAX_ROWS if is_question else None
    before = plan.summary.get("kept_by_holds", {})  # of a plan that version 0.1 has stored
    for hold, records in plan.summary.get("copied_for_holds", before).items():
        yield f"{hold} covers {number(records)} of these records: they are copied first."
    if guard := plan.summary.get("guard"):
        yield f"A guard stopped {plan.job} in the nightly run: {guard}."
    if plan.job == REPAIR:
        for line in plan.parameters["found"][:most]:
            yield f"Foreign change: {line}."
        for table, snapshot in plan.parameters["back_to"].items():
            yield f"The {table} table is rolled back to snapshot {snapshot}."
    for partition, of_partition in list(_partitions(plan).items())[:most]:
        if sets := of_partition.get("sets"):
            yield f"Partition {partition} gets {'; '.join(sets)}."
    if is_question and plan.job == "configure_topic":  # the page shows it above its table
        yield "Approving only changes the settings. The next nightly run then removes the records."
    lines = stays_in_words(_partitions(plan))
    for line in lines[:most]:
        yield f"{line[0].upper()}{line[1:]}."
    if more := len(lines[len(lines[:most]) :]):
        yield f"And {_of(more, 'more reason')} on the plan's page."
    keys = [key for summary in _partitions(plan).values() for key in summary["example_keys"]]
    if keys and is_question:
        yield f"Example keys: {', '.join(keys[:3])}."
    if (took := plan.summary.get("seconds")) is not None:
        yield f"Earlier runs of the job took {seconds(took)} s on this topic."


def _due(plan: Plan) -> tuple[int, int]:
    """Count the snapshots to expire and the files to rewrite. They belong to no partition."""
    snapshots = plan.parameters.get("snapshots", {})
    return sum(map(len, snapshots.values())), len(plan.parameters.get("files", ()))


def _partitions(plan: Plan) -> Mapping[str, PartitionSummary]:
    partitions: Mapping[str, PartitionSummary] = plan.summary["partitions"]
    return partitions


def _records(plans: Iterable[Plan]) -> int:
    return sum(summary["records"] for plan in plans for summary in _partitions(plan).values())


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _link(plan: Plan) -> str:
    return f"[{escaped(plan.plan_id)}]({page_of(plan.plan_id)})"


class PlanApprovalOperator(HITLOperator, BranchMixIn):
    """Ask whether the plans of the task `plans_from` may be executed, and follow the answer.

    One of the downstream tasks `execution` and `rejection` is skipped. A run that only plans does
    not ask. Neither does a run whose plans remove nothing, unless a topic has four eyes. XCom
    carries the answer together with its plans, so it never executes a plan that was made later.
    """

    inherits_from_skipmixin = True

    def __init__(self, *, plans_from: str, execution: str, rejection: str, **kwargs: Any) -> None:
        super().__init__(
            subject="Execute these plans?",
            options=[APPROVE, REJECT],
            defaults=REJECT,
            **kwargs,
        )
        self._set_fields("")
        self.plans_from = plans_from
        self.execution = execution
        self.rejection = rejection

    def execute(self, context: Context) -> None:
        """Ask, and wait for the answer without taking a slot."""
        if context["params"].get("plan_only"):
            raise AirflowSkipException(
                "the run only plans; approve_plan can execute its plans, except plans of erase_keys"
            )
        with explained(context):
            kept = plans_of(context, self.plans_from)
            is_asked = self._prepare(_to_ask_for(kept))
        if not is_asked:
            self._follow(context, ApprovalAnswer(Decision.NOT_ASKED, kept))
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
        """Read the answer or the timeout, and follow it."""
        super().execute_complete(context, dict(event))
        with explained(context):
            answer = ApprovalAnswer.of_response(event, plans_of(context, self.task_id))
            if answer.may_execute:
                _check_four_eyes(answer)
        self._follow(context, answer)

    def _set_fields(self, digests: str) -> None:
        """Set the fields of the answer's form. One sends back the digests of the plans shown."""
        why = "Stored with the plans, for example a ticket number."
        note = Param(None, type=["null", "string"], title="Note", description=why)
        about = "The digests of the plans above. The answer applies only to these plans."
        # The process that reads the answer gets the digests from XCom, not from this form.
        only: dict[str, Any] = {"enum": [digests]} if digests else {}
        shown = Param(digests, type="string", title="Digests", description=about, **only)
        self.params = ParamsDict({NOTE: note, SHOWN: shown})

    def _prepare(self, plans: Sequence[Plan]) -> bool:
        """Put the plans into the question, or return False if there are none."""
        if not plans:
            return False
        clock = datetime.now(UTC)
        until = answer_by(plans, clock)
        self.subject = question(plans)
        self.body = in_markdown(plans, f"{until:%Y-%m-%d %H:%M}")
        self.response_timeout = until - clock
        self.assigned_users = approvers()
        return True

    def _follow(self, context: Context, answer: ApprovalAnswer) -> None:
        self.log.info("ebbtide: %s", answer.in_words())
        context["ti"].xcom_push(key=ANSWER, value=answer.to_xcom())
        self.do_branch(context, [self.execution if answer.may_execute else self.rejection])


def _check_shown(context: Context, digests: str) -> None:
    """Fail the task if Airflow shows a question about other plans.

    Airflow always shows a task's first question, even if the task is cleared and asks again.
    """
    # If the task has a question, this call changes nothing and returns it.
    again = CreateHITLDetailPayload(
        ti_id=context["ti"].id, options=[APPROVE], subject="", params={}, assigned_users=[]
    )
    question = task_runner.SUPERVISOR_COMMS.send(again)
    fields = (question.params if isinstance(question, HITLDetailRequestResult) else None) or {}
    shown = fields.get(SHOWN, {}).get("value")
    if shown != digests:
        raise AirflowFailException(
            f"expected a question about the plans with the digests {digests}, found one about "
            f"{shown}: the plans were made again after the question, and Airflow cannot change a "
            "task's question. Start approve_plan for the new plans, or a new run"
        )


def _to_ask_for(kept: Sequence[StoredPlan]) -> list[Plan]:
    """Return the plans that remove something, and all plans of topics with four eyes."""
    with open_lake() as lake:
        plans = _read(lake, kept)
        return [p for p in plans if removes_something(p) or _has_four_eyes(lake, p.topic)]


def _check_four_eyes(answer: ApprovalAnswer) -> None:
    """Raise PlanError if a topic has four eyes and the user who requested its plan approved it.

    The job would refuse the plan too, but only after the answer is used up. Here the plan stays
    open, and the task can ask again.
    """
    with open_lake() as lake:
        for plan in _read(lake, answer.plans):
            if _has_four_eyes(lake, plan.topic):
                try:
                    check_four_eyes(plan, answer.by)
                except PlanError as error:
                    raise PlanError(f"{error}. Clear this task to ask again") from error


def _has_four_eyes(lake: Lake, topic: str) -> bool:
    return needs_four_eyes(lake.records(topic).properties, os.environ.get(FOUR_EYES_OF_ALL))


def _read(lake: Lake, kept: Sequence[StoredPlan]) -> list[Plan]:
    """Return the plans in the order given, without their offsets."""
    ids = [plan["plan_id"] for plan in kept]
    by_id = {plan.plan_id: plan for plan in lake.plans(plan_id=ids)} if ids else {}
    if missing := [plan_id for plan_id in ids if plan_id not in by_id]:
        raise RequestError(
            f"expected stored plans, found none of {', '.join(missing)} in lake.ebbtide.plans. "
            "Make a new plan"
        )
    return [by_id[plan_id] for plan_id in ids]
