"""Run a job whose plans are kept: plan it, execute a kept plan, or do both at once within guards.

An execution plans anew with the kept plan's clock and bounds, and goes on only if nothing would
leave beyond the plan's offsets.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode, PlanError, PlanExceededError, SafetyError, StateError
from ebbtide.iceberg.topics import Topic, find, load_without_state
from ebbtide.log.plans.events import (
    FOUR_EYES,
    FOUR_EYES_OF_ALL,
    Event,
    approver_of,
    check_four_eyes,
    check_may_execute,
    needs_four_eyes,
)
from ebbtide.log.plans.guards import Removal, tripped
from ebbtide.log.plans.offsets import NewOffsets, new_offsets
from ebbtide.log.settings.names import TopicName
from ebbtide.log.undo.points import UNDO_RUN
from ebbtide.runs.application import refuse, run_topics, to_ms
from ebbtide.runs.kept_plans import (
    KeptPlan,
    check_removes_all,
    check_same_tables,
    find_plans,
    keep_plan,
    note_unanswered,
    replace_open_plans,
)
from ebbtide.runs.proposals import Order, P, PlannedJob
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.runs.undo_points import note_before

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
            kept.add(spark, args, Event.REJECTED, by=args.rejected_by, note=args.approval_note)
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
        kept.add(session, args, Event.APPROVED, by=args.approved_by, note=args.approval_note)
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
        kept.add(session, args, Event.STOPPED, by=None)
        raise
    if isinstance(proposal, JobOutcome):
        return proposal
    assert plan.removes is not None
    removes = proposal.removes()
    kept.leaving = {str(p): len(offsets) for p, offsets in removes.items()}
    if beyond := new_offsets(removes, plan.removes):
        numbers = {str(new.partition): {"new": new.number, "first": new.first} for new in beyond}
        kept.add(session, args, Event.STOPPED, by=None, numbers=numbers)
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
    kept.add(session, args, Event.EXECUTED, by=by, numbers=numbers)
