"""Store a stage's plan as a row, and read it back to execute it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import (
    ConfigurationError,
    PlanError,
    PlanExceededError,
)
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_own, read_own
from ebbtide.iceberg.topics import Topic
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.plans import (
    PLAN_EVENTS,
    PLANS,
    UNANSWERED,
    Plan,
    PlanEvent,
    PlanStep,
    Removes,
    Standing,
    Summary,
    approver_of,
    new_offsets,
    new_plan_id,
    standing_of,
)
from ebbtide.ledger.undo_points import UNDO_RUN
from ebbtide.moments import after, machine_clock, to_datetime, to_ms
from ebbtide.runner.holds import KeptRows, count_leaving, holds_at, holds_to_review, pauses_on
from ebbtide.runner.job import PlanRequest, Proposal
from ebbtide.runner.plan_text import render_plan
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import TopicConfig, by_new_names
from ebbtide.settings.names import TopicName
from ebbtide.specs.settings_changes import deciding_settings

# Past runs from which the duration of the next one is estimated.
PAST_RUNS, PAST = 5, timedelta(days=30)
MAX_NAMED = 5  # partitions named in an error


@dataclass(slots=True)
class KeptPlan:
    """A stored plan with its events, including those that this process added."""

    plan: Plan
    events: list[PlanEvent] = field(default_factory=list)
    # Number of offsets that the execution would remove, by partition.
    leaving: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> TopicName:
        """The plan's topic."""
        return TopicName.parse(self.plan.topic)

    def add(
        self, spark: SparkSession, args: argparse.Namespace, event: PlanStep, **more: Any
    ) -> None:
        """Store an event of the plan, with `by`, `note` and `numbers` as given."""
        added = event_of(self.plan, event, args.run_id, **more)
        append_own(spark, PLAN_EVENTS, [added], Step.PLAN_EVENT)
        self.events.append(added)


def event_of(plan: Plan, event: PlanStep, run_id: str, **more: Any) -> PlanEvent:
    """Return an event of the plan at the machine clock's time."""
    return PlanEvent(
        plan_id=plan.plan_id,
        digest=plan.digest,
        event=event,
        at=machine_clock(),
        run_id=run_id,
        **{"by": None, **more},
    )


def find_plans(spark: SparkSession, plan_ids: Sequence[str]) -> list[KeptPlan]:
    """Return the plans with these ids.

    Raise PlanError if an id is unknown, or if two of the plans have the same topic.
    """
    plans = {plan.plan_id: plan for plan in read_own(spark, PLANS, "plan_id", plan_ids)}
    for plan_id in plan_ids:
        if plan_id not in plans:
            raise PlanError(
                f"expected a plan in lake.ebbtide.plans, found none with the id {plan_id}. Check "
                "the id, or make a plan with --plan-only"
            )
    topics = [plan.topic for plan in plans.values()]
    if twice := next((topic for topic in topics if topics.count(topic) > 1), None):
        raise PlanError(
            f"expected one plan per topic, found two for {twice}. Execute one, then make a new plan"
        )
    events = read_events(spark, list(plans))
    return [KeptPlan(plans[plan_id], events[plan_id]) for plan_id in dict.fromkeys(plan_ids)]


def read_events(spark: SparkSession, plan_ids: Sequence[str]) -> dict[str, list[PlanEvent]]:
    """Return the events of plans, by plan id."""
    events: dict[str, list[PlanEvent]] = {plan_id: [] for plan_id in plan_ids}
    for event in read_own(spark, PLAN_EVENTS, "plan_id", plan_ids):
        events[event.plan_id].append(event)
    return events


def keep_plan(
    args: argparse.Namespace,
    proposal: Proposal,
    request: PlanRequest,
    guard: str = "",
) -> tuple[Plan, JobOutcome]:
    """Store the proposal as a plan; return the plan, and its numbers with the plan's id."""
    topic, made_at = proposal.topic, machine_clock()
    of_a_night = (args.dag or args.job) if guard else None
    plan_id = new_plan_id(args.job, made_at)
    expires_at = after(made_at, _plan_expire_ms(topic))
    outcome, removes = proposal.outcome(), proposal.removes()
    outcome.topic["plan"] = plan_id
    if kept := count_leaving(topic, proposal.loses()):
        outcome.topic["copied_for_holds"] = kept
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
        now=to_datetime(request.now_ms),
        parameters=json.loads(json.dumps(request.parameters)),
        bounds=proposal.fixed(),
        snapshots=snapshots_of(topic),
        removes=removes,
        summary=_summary(topic, args.job, proposal, guard, kept),
        text=render_plan(args.job, str(topic.name), outcome),
    ).sealed()
    append_own(topic.spark, PLANS, [plan], Step.PLAN_ROW)
    return plan, outcome


def _plan_expire_ms(topic: Topic) -> int:
    """Return the topic's setting, or the default if a setting is wrong; a plan may repair that."""
    try:
        config = topic.config
    except ConfigurationError:
        config = TopicConfig()
    return config.plan_expire_ms


def replace_open_plans(spark: SparkSession, by: Plan) -> None:
    """Close the job's open plans for the topic that the new plan replaces."""
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
    """Reject the plans that have no answer yet."""
    at = machine_clock()
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
    """Raise PlanError if a table of the plan was dropped and created again."""
    current = snapshots_of(topic)
    for what, snapshot in plan.snapshots.items():
        if snapshot["table"] != current[what]["table"]:
            raise PlanError(
                f"expected the {what} table of plan {plan.plan_id}, found a new table of the same "
                "name: the old one was dropped after the plan was made. Make a new plan"
            )


def check_removes_all(plan: Plan, topic: Topic, removes: Removes) -> None:
    """Raise PlanError if a changed setting or a pause prevents the removal of planned offsets.

    Offsets that another run has already removed do not count.
    """
    assert plan.removes is not None
    left = [p for p, planned in plan.removes.items() if planned - removes.get(p, BitMap64())]
    if not left:
        return
    pauses = pauses_on(topic, holds_at(topic, to_ms(plan.now)))
    reasons = [f"partition {p}: {pauses[p]}" for p in left if p in pauses]
    stored, now = plan.summary.get("settings"), deciding_settings(topic.properties)
    if stored is not None:  # an older version did not store them
        before = by_new_names(stored)
        changed = sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
        reasons += [
            f"{n} was {_plan_shown(before.get(n))} and is {_plan_shown(now.get(n))}"
            for n in changed
        ]
    if reasons:
        raise PlanError(
            f"expected all offsets of plan {plan.plan_id} to be removed from {plan.topic}, found "
            f"fewer, because the topic has changed: {'; '.join(reasons)}. Nothing was removed. "
            "Reverse the change and execute the plan again, or make a new plan"
        )


def _plan_shown(setting: str | None) -> str:
    return "not set" if setting is None else repr(setting)


def _summary(topic: Topic, job: str, proposal: Proposal, guard: str, kept: KeptRows) -> Summary:
    summary = Summary(
        partitions={
            str(p): partition_summary for p, partition_summary in proposal.summary().items()
        },
        seconds=_past_seconds(topic.spark, job, topic.name),
    )
    summary["settings"] = deciding_settings(topic.properties)
    if kept:
        summary["copied_for_holds"] = dict(kept)
    if guard:
        summary["guard"] = guard
    return summary


def _past_seconds(spark: SparkSession, job: str, name: TopicName) -> float | None:
    """Return the median seconds of the job's last runs on the topic, or None without any."""
    if not table_exists(spark, RUNS.in_catalog()):
        return None
    is_wanted = (F.col("job") == job) & (F.col("topic") == str(name))
    is_recent = F.col("started") >= F.lit(machine_clock() - PAST)
    rows = (
        spark.table(RUNS.in_catalog())
        .where(is_wanted & is_recent & (F.col("status") == "succeeded"))
        .orderBy(F.desc("started"))
        .limit(PAST_RUNS)
        .select(F.get_json_object("result", "$.topic.seconds").cast("double").alias("seconds"))
        .collect()
    )
    return median(row["seconds"] or 0.0 for row in rows) if rows else None


def check_within(
    spark: SparkSession, args: argparse.Namespace, kept: KeptPlan, removes: Removes
) -> None:
    """Raise PlanExceededError if the execution would remove offsets that its plan lacks."""
    plan = kept.plan
    assert plan.removes is not None
    kept.leaving = {str(p): len(offsets) for p, offsets in removes.items()}
    beyond = new_offsets(removes, plan.removes)
    if not beyond:
        return
    numbers = {str(new.partition): {"new": new.number, "first": new.first} for new in beyond}
    kept.add(spark, args, PlanStep.EXCEEDED, by=None, numbers=numbers)
    named = "; ".join(str(new) for new in beyond[:MAX_NAMED])
    more = f"; and more in {len(beyond) - MAX_NAMED} other partitions" if beyond[MAX_NAMED:] else ""
    is_undo = plan.job == UNDO_RUN
    raise PlanExceededError(
        f"expected only the offsets of plan {plan.plan_id} to be "
        f"{'restored to' if is_undo else 'removed from'} {plan.topic}, found more: {named}{more}. "
        "The tables or settings changed after the plan was made. Nothing was "
        f"{'changed' if is_undo else 'removed'}. Make a new plan"
    )


def note_end(
    session: SparkSession,
    args: argparse.Namespace,
    kept: KeptPlan,
    outcome: JobOutcome,
    error: BaseException | None,
) -> None:
    """Store that a plan was executed, with the planned and the removed numbers."""
    if error is not None:
        return
    planned = kept.plan.summary["partitions"]
    numbers = {
        "planned_records": {p: summary["records"] for p, summary in planned.items()},
        "leaving_offsets": kept.leaving,
        "records_removed": outcome.rows_removed,
    }
    by = approver_of(kept.plan, kept.events) or kept.plan.requested_by
    kept.add(session, args, PlanStep.EXECUTED, by=by, numbers=numbers)
