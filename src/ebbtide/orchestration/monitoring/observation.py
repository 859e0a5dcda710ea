"""Look at a finished run once more, to send its metrics and call the notifier."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.holds import AllHolds, HoldStanding, read_all_holds
from ebbtide.lake.reader import Lake, LakeTopic
from ebbtide.lake.standing_plans import standing_plans
from ebbtide.log.attempts import Run
from ebbtide.log.plans.events import Standing
from ebbtide.moments import before
from ebbtide.orchestration.approval.plan_table import removes_something
from ebbtide.orchestration.deletions import HISTORY, NIGHTLY
from ebbtide.orchestration.monitoring import metrics, notices
from ebbtide.orchestration.monitoring.measurements import Measurement, TopicRun, since_success
from ebbtide.orchestration.monitoring.notices import (
    Notice,
    guards_tripped,
    holds_to_review,
    horizon_overdue,
)
from ebbtide.orchestration.night import LowWatermark

log = logging.getLogger(__name__)

# A night that failed once is found in the first, one that fails for long in the second.
LOOK_BACK = (timedelta(days=2), HISTORY)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A DAG run when all its stages are over; `healthy` are the topics that passed the last."""

    dag: str
    now: datetime
    topics: Sequence[str]
    healthy: Collection[str]
    answers: Sequence[LowWatermark]
    rows: Sequence[Run]  # of this pass of the run: a cleared one has older ones too

    @property
    def is_night(self) -> bool:
        """Whether the run did all that a night does."""
        return self.dag == NIGHTLY


def observe(context: Any, lake: Lake, run: FinishedRun, alias: Any) -> None:
    """Send metrics and notices; whatever goes wrong here is logged only.

    `alias` is that of the topics' assets, whose events tell of earlier successes.
    """
    try:
        has_metrics, has_notifier = metrics.is_on(), notices.is_asked_for()
        if not has_metrics and not has_notifier:
            return
        holds = _holds(lake)
        topics = list(_topic_runs(lake, run, holds))
        if has_metrics:
            metrics.send(_measured(run, topics))
            if run.is_night:
                metrics.send(_successes(context, run, alias))
        if has_notifier and (of_run := _notices(run, topics, holds.standings if holds else ())):
            notices.notify(context, of_run)
    except Exception:
        log.exception("ebbtide: metrics or notices of this run were not sent")


def _holds(lake: Lake) -> AllHolds | None:
    """Return the holds that stand; None where they cannot be read, which stops what removes."""
    try:
        holds = read_all_holds(lake, datetime.now(UTC))
    except EbbtideError as error:
        log.warning("ebbtide: holds to review are not told of: %s", error)
        return None
    for topic, problem in holds.problems.items():
        log.warning("ebbtide: %s: holds to review are not told of: %s", topic, problem)
    return holds


def _topic_runs(lake: Lake, run: FinishedRun, holds: AllHolds | None) -> Iterator[TopicRun]:
    """Yield the topics whose state can be read."""
    standings = () if holds is None else holds.standings
    due = Counter(of.hold.topic for of in standings if of.is_to_be_reviewed)
    topics = list(_readable(lake, run.topics))
    waiting = count_waiting(lake, topics, datetime.now(UTC))
    for topic in topics:
        rows = [row for row in run.rows if row.topic == topic.name]
        answers = [answer for answer in run.answers if answer["topic"] == topic.name]
        now_ms = int(run.now.timestamp() * 1000)
        yield TopicRun(
            topic,
            rows,
            answers,
            now_ms,
            waiting[topic.name],
            None if holds is None or topic.name in holds.problems else due[topic.name],
        )


def count_waiting(lake: Lake, topics: Sequence[LakeTopic], clock: datetime) -> Counter[str]:
    """Return how many plans by which something leaves are open at `clock`, by topic.

    Only the days are read in which a plan that has not expired can have been made.
    """
    if not topics:
        return Counter()
    since = before(clock, max(topic.config.plan_expire_ms for topic in topics))
    made = lake.plans(since, topic=[topic.name for topic in topics])
    plans = [plan for plan in made if plan.expires_at > clock and removes_something(plan)]
    standing = standing_plans(lake, plans, clock, since)
    return Counter(s.plan.topic for s in standing if s.standing is Standing.OPEN)


def _readable(lake: Lake, names: Iterable[str]) -> Iterator[LakeTopic]:
    for name in names:
        try:
            topic = lake.topic(name)
            _ = topic.config, topic.partitions
        except EbbtideError:
            continue  # the run has failed by it, and says so
        except Exception:  # one topic's state must not hide the others
            log.exception("ebbtide: %s: it has no metrics", name)
            continue
        yield topic


def _measured(run: FinishedRun, topics: Iterable[TopicRun]) -> Iterator[Measurement]:
    for topic in topics:
        try:
            of_topic = list(topic.measured())
            of_topic += topic.measured_at_night() if run.is_night else ()
        except Exception:  # one topic's numbers must not hide those of others
            log.exception("ebbtide: %s: its metrics were not sent", topic.topic.name)
            continue
        yield from of_topic


def _notices(
    run: FinishedRun, topics: Iterable[TopicRun], holds: Iterable[HoldStanding]
) -> list[Notice]:
    """Return what somebody should look at; a night tells of every hold, also of idle topics."""
    overdue = [
        horizon_overdue(topic.topic.name, topic.horizon_overdue_seconds)
        for topic in topics
        if run.is_night and topic.horizon_overdue_seconds
    ]
    return [*guards_tripped(run.rows), *overdue, *(holds_to_review(holds) if run.is_night else ())]


def _successes(context: Any, run: FinishedRun, alias: Any) -> Iterator[Measurement]:
    """Yield how long ago each topic's last night succeeded; of one that never did, nothing."""
    clock = datetime.now(UTC)
    failing = [name for name in run.topics if name not in run.healthy]
    last = dict.fromkeys(run.healthy, clock)
    if failing:
        last |= _last_successes(context, failing, clock, alias)
    for name, when in last.items():
        yield from since_success(name, when, clock)


def _last_successes(
    context: Any, names: Sequence[str], clock: datetime, alias: Any
) -> Mapping[str, datetime]:
    """Return the time of each topic's newest event of a night, as far back as HISTORY."""
    last: dict[str, datetime] = {}
    for days in LOOK_BACK:
        events = context["inlet_events"][alias].after((clock - days).isoformat())
        for event in events:
            if event.source_dag_id == NIGHTLY and event.asset.name in names:
                name = event.asset.name
                last[name] = max(event.timestamp, last.get(name, event.timestamp))
        if len(last) == len(names):
            break
    return last
