"""The page of a kept plan: what it would remove, how it stands, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.errors import PlanError
from ebbtide.lake.reader import Lake
from ebbtide.log.plans.events import PlanEvent, Standing, standing_of
from ebbtide.log.plans.plan import Plan
from ebbtide.orchestration.pages.views.run.plans import may_be_asked_for


@dataclass(frozen=True, slots=True)
class PlanPage:
    """A plan without its offsets, how it stands, and its events, oldest first."""

    plan: Plan
    standing: Standing
    events: Sequence[PlanEvent]

    @property
    def may_be_asked_for(self) -> bool:
        """Whether approve_plan can execute it."""
        return may_be_asked_for(self.plan, self.standing)


def plan_page(lake: Lake, plan_id: str, clock: datetime) -> PlanPage:
    """Return the plan's page at this time; PlanError where there is no such plan."""
    plans = lake.plans(plan_id=plan_id)
    if not plans:
        raise PlanError(
            f"expected a plan in lake.ebbtide.plans, found none with the id {plan_id}; a plan's id "
            "is in the log of the task that made it"
        )
    events = lake.plan_events(plan_id=plan_id)
    return PlanPage(plans[0], standing_of(plans[0], events, clock), events)
