"""The plans of a run: what each would remove, how it stands, and who has answered for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.lake.reader import Lake
from ebbtide.log.plans.events import Event, PlanEvent, Standing, standing_of
from ebbtide.log.plans.plan import Plan

PLANS_SHOWN = 20
Place = tuple[str, str, str]  # of a plan: its run, job and topic
KEYLESS = "erase_keys"  # the job whose plans keep no keys, so that only their own run executes them


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOfRun:
    """A plan without its offsets, and its events, oldest first.

    `newer` is the plan that the same run has made later in its place, where it has.
    """

    plan: Plan
    standing: Standing
    events: Sequence[PlanEvent]
    newer: str | None = None

    @property
    def may_be_asked_for(self) -> bool:
        """Whether approve_plan can execute it."""
        return self.newer is None and may_be_asked_for(self.plan, self.standing)

    @property
    def answer(self) -> PlanEvent | None:
        """Who approved or rejected it last."""
        answers = [e for e in self.events if e.event in (Event.APPROVED, Event.REJECTED)]
        return answers[-1] if answers else None


def may_be_asked_for(plan: Plan, standing: Standing) -> bool:
    """Return whether approve_plan can execute a plan."""
    return standing in (Standing.OPEN, Standing.APPROVED) and plan.job != KEYLESS


def open_plans(lake: Lake, clock: datetime, since: timedelta) -> list[Plan]:
    """Return the plans of the last `since` that can be executed at this time, newest first."""
    plans = [plan for plan in lake.plans(clock - since) if clock < plan.expires_at]
    ids = [plan.plan_id for plan in plans]
    events = lake.plan_events(plan_id=ids) if ids else []
    standings = {
        plan.plan_id: standing_of(plan, [e for e in events if e.plan_id == plan.plan_id], clock)
        for plan in plans
    }
    newest = newest_of_runs(plans)
    return [
        plan
        for plan in reversed(plans)
        if may_be_asked_for(plan, standings[plan.plan_id]) and newest[_place(plan)] is plan
    ]


def newest_of_runs(plans: Iterable[Plan]) -> dict[Place, Plan]:
    """Return the last plan that each run has made for a job and topic; a retry makes one more."""
    return {_place(plan): plan for plan in sorted(plans, key=lambda plan: plan.made_at)}


def _place(plan: Plan) -> Place:
    return plan.run_id, plan.job, plan.topic


def plans_of_run(
    lake: Lake, run_id: str, dag: str | None, named: Sequence[str], clock: datetime
) -> list[PlanOfRun]:
    """Return the plans that a run has made, and those that it was started for."""
    plans = [p for p in lake.plans(run_id=run_id) if dag is None or p.dag in (dag, None)]
    if named:
        plans += lake.plans(plan_id=list(named))
    ids = [plan.plan_id for plan in plans]
    events = lake.plan_events(plan_id=ids) if ids else []
    listed, newest = [], newest_of_runs(plans)
    for plan in plans[:PLANS_SHOWN]:
        own = [event for event in events if event.plan_id == plan.plan_id]
        last = newest[_place(plan)].plan_id
        listed.append(
            PlanOfRun(
                plan=plan,
                standing=standing_of(plan, own, clock),
                events=own,
                newer=last if last != plan.plan_id else None,
            )
        )
    return listed
