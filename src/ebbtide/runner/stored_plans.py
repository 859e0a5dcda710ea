"""Keep a stage's plan as a row, and read it back to execute it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, NamedTuple

from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import (
    ConfigurationError,
    ExitCode,
    PlanError,
    PlanExceededError,
    SafetyError,
    StateError,
)
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_own, read_own
from ebbtide.iceberg.topics import Topic, find, load_without_state
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.plans import (
    FOUR_EYES,
    FOUR_EYES_OF_ALL,
    PLAN_EVENTS,
    PLANS,
    UNANSWERED,
    NewOffsets,
    Plan,
    PlanEvent,
    PlanStep,
    Removal,
    Removes,
    Standing,
    Summary,
    approver_of,
    check_four_eyes,
    check_may_execute,
    needs_four_eyes,
    new_offsets,
    new_plan_id,
    standing_of,
    tripped,
)
from ebbtide.ledger.undo_points import UNDO_RUN
from ebbtide.moments import after, to_datetime
from ebbtide.runner.application import refuse, run_topics, to_ms
from ebbtide.runner.holds import KeptRows, count_leaving, holds_at, holds_to_review, pauses_on
from ebbtide.runner.proposals import Order, P, PlannedJob, Proposal, note_before, render_plan
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import TopicConfig
from ebbtide.settings.names import TopicName
from ebbtide.specs.settings_changes import deciding_settings

# Past runs that tell how long the next one takes.
PAST_RUNS, PAST = 5, timedelta(days=30)


@dataclass(slots=True)
class KeptPlan:
    """A plan of the table with its events, those of this process too.

    `leaving` counts by partition the offsets that an execution found to leave.
    """

    plan: Plan
    events: list[PlanEvent] = field(default_factory=list)
    leaving: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> TopicName:
        """The topic that it is for."""
        return TopicName.parse(self.plan.topic)

    def add(
        self, spark: SparkSession, args: argparse.Namespace, event: PlanStep, **more: Any
    ) -> None:
        """Keep an event of the plan: `by`, `note` and `numbers` as given."""
        added = event_of(self.plan, event, args.run_id, **more)
        append_own(spark, PLAN_EVENTS, [added], Step.PLAN_EVENT)
        self.events.append(added)


def event_of(plan: Plan, event: PlanStep, run_id: str, **more: Any) -> PlanEvent:
    """Return an event that happens to the plan now."""
    return PlanEvent(
        plan_id=plan.plan_id,
        digest=plan.digest,
        event=event,
        at=datetime.now(UTC),
        run_id=run_id,
        **{"by": None, **more},
    )


def find_plans(spark: SparkSession, plan_ids: Sequence[str]) -> list[KeptPlan]:
    """Return the plans with these ids; PlanError for an unknown one, or two of one topic."""
    plans = {plan.plan_id: plan for plan in read_own(spark, PLANS, "plan_id", plan_ids)}
    for plan_id in plan_ids:
        if plan_id not in plans:
            raise PlanError(
                f"expected a plan in lake.ebbtide.plans, found none with the id {plan_id}; check "
                "the id, or make a plan with --plan-only"
            )
    topics = [plan.topic for plan in plans.values()]
    if twice := next((topic for topic in topics if topics.count(topic) > 1), None):
        raise PlanError(
            f"expected one plan a topic, found two of {twice}; execute one and make a new plan"
        )
    events = read_events(spark, list(plans))
    return [KeptPlan(plans[plan_id], events[plan_id]) for plan_id in dict.fromkeys(plan_ids)]


def read_events(spark: SparkSession, plan_ids: Sequence[str]) -> dict[str, list[PlanEvent]]:
    """Return the events of each of these plans."""
    events: dict[str, list[PlanEvent]] = {plan_id: [] for plan_id in plan_ids}
    for event in read_own(spark, PLAN_EVENTS, "plan_id", plan_ids):
        events[event.plan_id].append(event)
    return events


def keep_plan(
    args: argparse.Namespace,
    proposal: Proposal,
    order: Order,
    guard: str = "",
) -> tuple[Plan, JobOutcome]:
    """Keep the proposal as a plan; return it, and its numbers, which name it."""
    topic, made_at = proposal.topic, datetime.now(UTC)
    of_a_night = (args.dag or args.job) if guard else None
    plan_id = new_plan_id(args.job, made_at)
    expires_at = after(made_at, _plan_expire_ms(topic))
    outcome, removes = proposal.outcome(), proposal.removes()
    outcome.topic["plan"] = plan_id
    if kept := count_leaving(topic, removes):
        outcome.topic["kept_by_holds"] = kept
    outcome.add_notes(holds_to_review(topic, made_at))
    plan = Plan(
        plan_id=plan_id,
        job=args.job,
        topic=str(topic.name),
        run_id=args.run_id,
        dag=args.dag,
        requested_by=args.triggered_by or args.requested_by or of_a_night,
        made_at=made_at,
        expires_at=expires_at,
        now=to_datetime(order.now_ms),
        parameters=json.loads(json.dumps(order.parameters)),
        bounds=proposal.fixed(),
        snapshots=snapshots_of(topic),
        removes=removes,
        summary=_summary(topic, args.job, proposal, guard, kept),
        text=render_plan(args.job, str(topic.name), outcome),
    ).sealed()
    append_own(topic.spark, PLANS, [plan], Step.PLAN_ROW)
    return plan, outcome


def _plan_expire_ms(topic: Topic) -> int:
    """Return the topic's setting, or the default where a setting is wrong that a plan repairs."""
    try:
        config = topic.config
    except ConfigurationError:
        config = TopicConfig()
    return config.plan_expire_ms


def replace_open_plans(spark: SparkSession, by: Plan) -> None:
    """Close the plans that nobody has answered and that the new one stands in for."""
    others = (p for p in read_own(spark, PLANS, "topic", [by.topic]) if p.plan_id != by.plan_id)
    older = [plan for plan in others if plan.job == by.job]
    events = read_events(spark, [plan.plan_id for plan in older])
    for plan in older:
        standing = standing_of(plan, events[plan.plan_id], by.made_at)
        if standing is Standing.OPEN and plan.dag == by.dag:
            note = f"replaced by {by.plan_id}"
            replaced = event_of(plan, PlanStep.REPLACED, by.run_id, note=note)
            append_own(spark, PLAN_EVENTS, [replaced], Step.PLAN_EVENT)


def note_unanswered(
    spark: SparkSession, args: argparse.Namespace, plans: Iterable[KeptPlan]
) -> None:
    """Reject the plans that nobody has answered in time; an answer that came elsewhere stands."""
    at = datetime.now(UTC)
    for kept in plans:
        is_approved = approver_of(kept.plan, kept.events) is not None
        standing = standing_of(kept.plan, kept.events, at)
        if standing in (Standing.OPEN, Standing.EXPIRED) and not is_approved:
            kept.add(spark, args, PlanStep.REJECTED, note=UNANSWERED)


def snapshots_of(topic: Topic) -> dict[str, dict[str, Any]]:
    """Return the id and current snapshot of each of the topic's data tables."""
    name = topic.name
    tables = {"records": name.records_table}
    if not topic.is_adopted:
        tables["batches"] = name.batches_table
    return {what: _table_and_snapshot(topic.spark, table) for what, table in tables.items()}


def _table_and_snapshot(spark: SparkSession, name: str) -> dict[str, Any]:
    table = open_table(spark, name)
    snapshot = None if table.current is None else table.current.id
    return {"table": table.metadata.uuid, "snapshot": snapshot}


def check_same_tables(plan: Plan, topic: Topic) -> None:
    """Raise PlanError where a table of the plan was dropped and created anew."""
    current = snapshots_of(topic)
    for what, of in plan.snapshots.items():
        if of["table"] != current[what]["table"]:
            raise PlanError(
                f"expected the {what} table that plan {plan.plan_id} was made on, found another "
                f"of the same name: somebody dropped it and created it anew; make a new plan"
            )


def check_removes_all(plan: Plan, topic: Topic, removes: Removes) -> None:
    """Raise PlanError if a changed setting or a pause keeps a plan's offsets from being removed.

    Offsets that another run has removed meanwhile are no reason.
    """
    assert plan.removes is not None
    left = [p for p, planned in plan.removes.items() if planned - removes.get(p, BitMap64())]
    if not left:
        return
    pauses = pauses_on(topic, holds_at(topic, to_ms(plan.now)))
    reasons = [f"partition {p}: {pauses[p]}" for p in left if p in pauses]
    before, now = plan.summary.get("settings"), deciding_settings(topic.properties)
    if before is not None:  # an older version did not store them
        changed = sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
        reasons += [
            f"{n} was {_plan_shown(before.get(n))} and is {_plan_shown(now.get(n))}"
            for n in changed
        ]
    if reasons:
        raise PlanError(
            f"expected to remove from {plan.topic} all that plan {plan.plan_id} has, found that "
            f"less would leave, since the topic has changed: {'; '.join(reasons)}; nothing was "
            "removed. Set it back and execute the plan again, or make a new plan"
        )


def _plan_shown(setting: str | None) -> str:
    return "not set" if setting is None else repr(setting)


def _summary(topic: Topic, job: str, proposal: Proposal, guard: str, kept: KeptRows) -> Summary:
    summary = Summary(
        partitions={str(p): of for p, of in proposal.summary().items()},
        seconds=_past_seconds(topic.spark, job, topic.name),
    )
    summary["settings"] = deciding_settings(topic.properties)
    if kept:
        summary["kept_by_holds"] = dict(kept)
    if guard:
        summary["guard"] = guard
    return summary


def _past_seconds(spark: SparkSession, job: str, name: TopicName) -> float | None:
    """Return the median of what the job's last runs on the topic took; None without any."""
    if not table_exists(spark, RUNS.in_catalog()):
        return None
    is_wanted = (F.col("job") == job) & (F.col("topic") == str(name))
    is_recent = F.col("started") >= F.lit(datetime.now(UTC) - PAST)
    rows = (
        spark.table(RUNS.in_catalog())
        .where(is_wanted & is_recent & (F.col("status") == "succeeded"))
        .orderBy(F.desc("started"))
        .limit(PAST_RUNS)
        .select(F.get_json_object("result", "$.topic.seconds").cast("double").alias("seconds"))
        .collect()
    )
    return median(row["seconds"] or 0.0 for row in rows) if rows else None


# Run a job whose plans are kept: plan it, execute a kept plan, or do both at once within guards.
#
# An execution plans anew with the kept plan's clock and bounds, and goes on only if nothing would
# leave beyond the plan's offsets.


APPROVE = "approve_plan"  # the DAG
MAX_NAMED = 5  # partitions of an error


def run_planned(
    spark: SparkSession,
    args: argparse.Namespace,
    job: PlannedJob[P],
    parameters: Mapping[TopicName, Mapping[str, Any]],
) -> int:
    """Plan or run the job on each topic of `parameters`, or execute the plans that are named.

    Return the exit code.
    """
    if args.plan:
        return _run_kept(spark, args, job)
    request = _Request(args, job, parameters)
    work = request.planned if args.plan_only else request.done
    return run_topics(spark, args, list(parameters), work, is_checked=not job.repairs)


def _find(session: SparkSession, name: TopicName, job: PlannedJob[Any]) -> Topic | None:
    """Return the topic, without its state where that is lost and the job repairs it."""
    try:
        return find(session, name)
    except StateError:
        if not job.repairs:
            raise
        return load_without_state(session, name)


class _Request(NamedTuple):
    """What is asked of a job, without a kept plan."""

    args: argparse.Namespace
    job: PlannedJob[Any]
    parameters: Mapping[TopicName, Mapping[str, Any]]

    def _order(self, session: SparkSession, name: TopicName) -> Order:
        order = Order(to_ms(self.args.now), self.parameters[name])
        return order._replace(parameters=self.job.resolve(session, name, order))

    def planned(self, session: SparkSession, name: TopicName) -> JobOutcome:
        """Plan for a topic; a plan that refuses nothing is kept."""
        order = self._order(session, name)._replace(keeps_offsets=True, is_plan_only=True)
        proposal = self.job.propose(session, name, order)
        if isinstance(proposal, JobOutcome):
            return proposal
        outcome: JobOutcome = proposal.outcome()
        if outcome.error is not None:
            return outcome
        _, outcome = keep_plan(self.args, proposal, order)
        return outcome

    def done(self, session: SparkSession, name: TopicName) -> JobOutcome:
        """Plan and execute, unless a guard or the rule of four eyes asks for an approval."""
        topic = _find(session, name, self.job) if self.job.is_by_hand else None
        needs_plan = topic is not None and _needs_four_eyes(topic)
        order = self._order(session, name)._replace(keeps_offsets=needs_plan)
        proposal = self.job.propose(session, name, order)
        if isinstance(proposal, JobOutcome):
            return proposal
        if needs_plan and self.job.needs_approval(proposal):
            raise PlanError(
                f"expected a plan that another person has approved, since {FOUR_EYES} is set for "
                f"{name}, found a request to do it at once; make a plan with --plan-only"
            )
        removal: Removal | None = proposal.removal
        why = "" if removal is None else tripped(str(name), proposal.topic.config, removal)
        if why:
            return self._stopped(session, name, order._replace(keeps_offsets=True), why)
        note_before(proposal.topic, proposal.touches())
        outcome: JobOutcome = self.job.execute(proposal)
        return outcome

    def _stopped(
        self, session: SparkSession, name: TopicName, order: Order, why: str
    ) -> JobOutcome:
        """Keep the plan of a topic that a guard leaves as it is; an unanswered older one closes."""
        proposal = self.job.propose(session, name, order)
        if isinstance(proposal, JobOutcome):
            return proposal
        plan, _ = keep_plan(self.args, proposal, order, why)
        replace_open_plans(session, plan)
        error = SafetyError(
            f"{why}; nothing was removed. Plan {plan.plan_id} has what would go: check the topic's "
            f"settings and its clock, and to let it pass, approve it in the DAG {APPROVE}"
        )
        return JobOutcome(topic={"plan": plan.plan_id}, error=error)


def _run_kept(spark: SparkSession, args: argparse.Namespace, job: PlannedJob[Any]) -> int:
    """Execute the plans that the arguments name, or record that they are rejected."""
    try:
        plans = {kept.name: kept for kept in find_plans(spark, args.plan)}
        for kept in plans.values() if args.rejected_by else ():
            check_may_execute(kept.plan, kept.events, args.job, datetime.now(UTC))
    except PlanError as error:
        return refuse(args.job, error)
    if args.unanswered:
        note_unanswered(spark, args, plans.values())
        return ExitCode.DONE
    if args.rejected_by:
        for kept in plans.values():
            kept.add(spark, args, PlanStep.REJECTED, by=args.rejected_by, note=args.approval_note)
        return ExitCode.DONE
    return run_topics(
        spark,
        args,
        list(plans),
        lambda session, name: _execute(session, args, job, plans[name]),
        clocks={name: kept.plan.now for name, kept in plans.items()},
        on_end=lambda session, name, outcome, error: _note_end(
            session, args, plans[name], outcome, error
        ),
        is_checked=not job.repairs,
    )


def _execute(
    session: SparkSession, args: argparse.Namespace, job: PlannedJob[Any], kept: KeptPlan
) -> JobOutcome:
    """Execute a kept plan within its offsets."""
    plan, name = kept.plan, kept.name
    check_may_execute(plan, kept.events, args.job, datetime.now(UTC))
    topic = _find(session, name, job)
    if topic is not None:  # else the job says so
        check_same_tables(plan, topic)
        if _needs_four_eyes(topic):
            check_four_eyes(plan, args.approved_by or approver_of(plan, kept.events))
    if args.approved_by and args.approved_by != approver_of(plan, kept.events):
        kept.add(session, args, PlanStep.APPROVED, by=args.approved_by, note=args.approval_note)
    order = Order(
        to_ms(plan.now),
        plan.parameters,
        plan.bounds,
        keeps_offsets=True,
        approved_by=approver_of(plan, kept.events),
    )
    try:
        proposal = job.propose(session, name, order)
    except PlanExceededError:  # beside the offsets, which only show below
        kept.add(session, args, PlanStep.STOPPED, by=None)
        raise
    if isinstance(proposal, JobOutcome):
        return proposal
    assert plan.removes is not None
    removes = proposal.removes()
    kept.leaving = {str(p): len(offsets) for p, offsets in removes.items()}
    if beyond := new_offsets(removes, plan.removes):
        numbers = {str(new.partition): {"new": new.number, "first": new.first} for new in beyond}
        kept.add(session, args, PlanStep.STOPPED, by=None, numbers=numbers)
        raise _exceeded(kept, beyond)
    if topic is not None and not job.is_by_hand:
        check_removes_all(plan, topic, removes)
    note_before(proposal.topic, proposal.touches())
    outcome: JobOutcome = job.execute(proposal)
    outcome.topic["plan"] = plan.plan_id
    return outcome


def _needs_four_eyes(topic: Topic) -> bool:
    return needs_four_eyes(topic.properties, os.environ.get(FOUR_EYES_OF_ALL))


def _exceeded(kept: KeptPlan, beyond: list[NewOffsets]) -> PlanExceededError:
    plan = kept.plan
    named = "; ".join(str(new) for new in beyond[:MAX_NAMED])
    more = f"; and those of {len(beyond) - MAX_NAMED} partitions more" if beyond[MAX_NAMED:] else ""
    is_undo = plan.job == UNDO_RUN
    what = "return to" if is_undo else "remove from"
    return PlanExceededError(
        f"expected to {what} {plan.topic} only what plan {plan.plan_id} has, found that more "
        f"would {'return' if is_undo else 'leave'} since the tables or the settings changed: "
        f"{named}{more}; nothing was {'changed' if is_undo else 'removed'}, make a new plan"
    )


def _note_end(
    session: SparkSession,
    args: argparse.Namespace,
    kept: KeptPlan,
    outcome: JobOutcome,
    error: BaseException | None,
) -> None:
    """Keep that a plan was executed, with what it removed beside what was planned."""
    if error is not None:
        return
    planned = kept.plan.summary["partitions"]
    numbers = {
        "planned_records": {p: of["records"] for p, of in planned.items()},
        "leaving_offsets": kept.leaving,
        "records_removed": outcome.rows_removed,
    }
    by = approver_of(kept.plan, kept.events) or kept.plan.requested_by
    kept.add(session, args, PlanStep.EXECUTED, by=by, numbers=numbers)
