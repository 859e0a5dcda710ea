"""Count the plans that wait for an approval, by topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.log.plans.events import PlanEvent, Standing, standing_of
from ebbtide.moments import before
from ebbtide.orchestration.approval.plan_table import removes_something


def count_waiting(lake: Lake, topics: Sequence[LakeTopic], clock: datetime) -> Counter[str]:
    """Return how many plans by which something leaves are open at `clock`, by topic.

    Only the days are read in which a plan that has not expired can have been made.
    """
    if not topics:
        return Counter()
    longest_ms = max(topic.config.plan_expire_ms for topic in topics)
    since = before(clock, longest_ms)
    plans = [
        plan
        for plan in lake.plans(since, topic=[topic.name for topic in topics])
        if plan.expires_at > clock and removes_something(plan)
    ]
    if not plans:
        return Counter()
    events: defaultdict[str, list[PlanEvent]] = defaultdict(list)
    for event in lake.plan_events(since, plan_id=[plan.plan_id for plan in plans]):
        events[event.plan_id].append(event)
    return Counter(
        plan.topic
        for plan in plans
        if standing_of(plan, events[plan.plan_id], clock) is Standing.OPEN
    )
