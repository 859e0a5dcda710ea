"""What became of a plan, and whether it may be executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ebbtide.errors import PlanError
from ebbtide.log.own_tables import JSON, Cell, OwnTable
from ebbtide.log.plans.plan import Plan

FOUR_EYES = "ebbtide.plan.four.eyes"
FOUR_EYES_OF_ALL = "EBBTIDE_FOUR_EYES"  # in the environment
UNANSWERED = "nobody answered in time"  # the note of a rejection by nobody


class Event(StrEnum):
    """The kinds of events of a plan."""

    APPROVED = "approved"
    REJECTED = "rejected"
    EXECUTED = "executed"
    STOPPED = "stopped"  # more would have been removed than the plan has
    REPLACED = "replaced"  # by a newer plan for the same


class Standing(StrEnum):
    """How a plan stands at a moment."""

    OPEN = "open"
    APPROVED = "approved"
    EXPIRED = "expired"
    REJECTED = "rejected"
    EXECUTED = "executed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """One event of a plan, a row of `lake.ebbtide.plan_events`; times are UTC.

    `numbers` holds what an execution removed beside what was planned.
    """

    plan_id: str
    digest: str
    event: Event
    by: str | None
    at: datetime
    note: str | None = None
    run_id: str | None = None
    numbers: Mapping[str, Any] | None = None


PLAN_EVENTS = OwnTable(
    name="plan_events",
    columns="""
    plan_id STRING, digest STRING,
    event STRING COMMENT 'approved, rejected, executed, stopped or replaced',
    `by` STRING, `at` TIMESTAMP, note STRING, run_id STRING,
    numbers STRING COMMENT 'JSON: what an execution removed beside what was planned'
    """,
    day="at",
    build=PlanEvent,
    cells={"event": Cell(str, Event), "numbers": JSON},
)


# Events after which a plan is closed.
_CLOSED = {
    Event.EXECUTED: Standing.EXECUTED,
    Event.REJECTED: Standing.REJECTED,
    Event.REPLACED: Standing.REPLACED,
}


def standing_of(plan: Plan, events: Sequence[PlanEvent], at: datetime) -> Standing:
    """Return how the plan stands; `events` are its own, in any order."""
    for event, standing in _CLOSED.items():
        if any(of.event is event for of in events):
            return standing
    if at >= plan.expires_at:
        return Standing.EXPIRED
    return Standing.OPEN if approver_of(plan, events) is None else Standing.APPROVED


def approver_of(plan: Plan, events: Sequence[PlanEvent]) -> str | None:
    """Return who approved this very plan last; None where nobody did."""
    approvals = [e for e in events if e.event is Event.APPROVED and e.digest == plan.digest]
    return max(approvals, key=lambda event: event.at).by if approvals else None


def check_may_execute(plan: Plan, events: Sequence[PlanEvent], job: str, at: datetime) -> None:
    """Raise PlanError for a plan of another job, an edited one, or one that is closed."""
    if plan.job != job:
        raise PlanError(
            f"expected a plan of {job}, found that {plan.plan_id} is one of {plan.job}; "
            "execute it with that job"
        )
    if plan.own_digest != plan.digest:
        raise PlanError(
            f"expected plan {plan.plan_id} to have the digest {plan.digest[:12]}, found "
            f"{plan.own_digest[:12]}: somebody edited its row; make a new plan"
        )
    standing = standing_of(plan, events, at)
    if standing not in (Standing.OPEN, Standing.APPROVED):
        raise PlanError(
            f"expected an open plan, found {plan.plan_id} {_described(standing, plan, events)}; "
            "make a new plan"
        )


def _described(standing: Standing, plan: Plan, events: Sequence[PlanEvent]) -> str:
    if standing is Standing.EXPIRED:
        return f"expired at {plan.expires_at:%Y-%m-%d %H:%M} UTC"
    last = max((e for e in events if e.event == str(standing)), key=lambda event: event.at)
    by = f" by {last.by}" if last.by else ""
    if last.note == UNANSWERED:
        by = f", since {UNANSWERED},"
    return f"{standing}{by} at {last.at:%Y-%m-%d %H:%M} UTC"


def needs_four_eyes(properties: Mapping[str, str], of_all: str | None) -> bool:
    """Return whether the topic's properties, or the variable for all topics, ask for two people.

    A topic with a wrong setting must still be one that configure_topic can repair.
    """
    texts = (of_all, properties.get(FOUR_EYES))
    return any((text or "").strip().lower() == "true" for text in texts)


def check_four_eyes(plan: Plan, approver: str | None) -> None:
    """Raise PlanError unless somebody other than who asked for the plan has approved it."""
    if not approver:
        raise PlanError(
            f"expected plan {plan.plan_id} to be approved before it is executed, since "
            f"{FOUR_EYES} is set, found no approval; have another person approve it"
        )
    if not plan.requested_by:
        raise PlanError(
            f"expected plan {plan.plan_id} to say who asked for it, since {FOUR_EYES} is set, "
            "found that it does not; make a new plan with --requested-by"
        )
    if approver.strip().casefold() == plan.requested_by.strip().casefold():
        raise PlanError(
            f"expected another person than {plan.requested_by}, who asked for plan "
            f"{plan.plan_id}, to approve it, since {FOUR_EYES} is set, found the same; have "
            "somebody else approve it"
        )
