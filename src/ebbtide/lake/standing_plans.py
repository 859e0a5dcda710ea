"""Stored plans as they stand: each with its events, and whether it can still be executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.errors import PlanError
from ebbtide.lake.reader import Lake
from ebbtide.log.plans.events import Event, PlanEvent, Standing, standing_of
from ebbtide.log.plans.plan import Plan

ERASE_KEYS = "erase_keys"  # the job whose plans store no keys, so that only their own run has them
PLANS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPlan:
    """A plan without its offsets, how it stands, and its events, oldest first.

    `newer` is the plan that the same run has made later in its place, where it has.
    """

    plan: Plan
    standing: Standing
    events: Sequence[PlanEvent]
    newer: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it can be executed."""
        return self.standing in (Standing.OPEN, Standing.APPROVED)

    @property
    def may_be_asked_for(self) -> bool:
        """Whether approve_plan can execute it."""
        return self.waits and self.newer is None and self.plan.job != ERASE_KEYS

    @property
    def answer(self) -> PlanEvent | None:
        """Who approved or rejected it last."""
        answers = [e for e in self.events if e.event in (Event.APPROVED, Event.REJECTED)]
        return answers[-1] if answers else None


def standing_plans(
    lake: Lake, plans: Sequence[Plan], clock: datetime, since: datetime | None = None
) -> list[StandingPlan]:
    """Return how each plan stands at a time; none of them was made before `since`."""
    ids = [plan.plan_id for plan in plans]
    events: dict[str, list[PlanEvent]] = {plan_id: [] for plan_id in ids}
    for event in lake.plan_events(since, plan_id=ids) if ids else ():
        events[event.plan_id].append(event)
    by_age = sorted(plans, key=lambda plan: plan.made_at)
    newest = {_place(plan): plan.plan_id for plan in by_age}
    return [
        StandingPlan(
            plan=plan,
            standing=standing_of(plan, events[plan.plan_id], clock),
            events=events[plan.plan_id],
            newer=None if (last := newest[_place(plan)]) == plan.plan_id else last,
        )
        for plan in plans
    ]


def find_plan(lake: Lake, plan_id: str, clock: datetime) -> StandingPlan:
    """Return one plan; PlanError if there is none of that id."""
    plans = lake.plans(plan_id=plan_id)
    if not plans:
        raise PlanError(
            f"expected a plan in lake.ebbtide.plans, found none with the id {plan_id}; a plan's id "
            "is in the log of the task that made it"
        )
    return standing_plans(lake, plans, clock)[0]


def open_plans(lake: Lake, clock: datetime, span: timedelta) -> list[Plan]:
    """Return the plans of the last `span` that approve_plan can execute, newest first."""
    since = clock - span
    plans = [plan for plan in lake.plans(since) if clock < plan.expires_at]
    standing = standing_plans(lake, plans, clock, since)
    return [plan.plan for plan in reversed(standing) if plan.may_be_asked_for]


def plans_of_run(
    lake: Lake, run_id: str, dag: str | None, named: Sequence[str], clock: datetime
) -> list[StandingPlan]:
    """Return the first plans that a run has made, and those that it was started for."""
    plans = [p for p in lake.plans(run_id=run_id) if dag is None or p.dag in (dag, None)]
    if named:
        plans += lake.plans(plan_id=list(named))
    return standing_plans(lake, plans, clock)[:PLANS_SHOWN]


def _place(plan: Plan) -> tuple[str, str, str]:
    """Return what a retry makes a plan for once more."""
    return plan.run_id, plan.job, plan.topic
