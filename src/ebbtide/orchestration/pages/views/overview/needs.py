"""List what needs somebody: questions, failures with their cause, overdue horizons, drift."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ebbtide.moments import minute, to_datetime
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.pages.views.overview.topic_rows import TopicRow
from ebbtide.text import number

# A request by hand that was refused longer ago is history, and no longer news.
NEWS = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Need:
    """One thing to look at: on which topic or in which run, and what to do about it."""

    kind: str
    text: str
    topic: str | None = None
    at_ms: int | None = None
    run_id: str | None = None
    dag: str | None = None


def needs(rows: Sequence[TopicRow], clock_ms: int) -> list[Need]:
    """Return all needs of the topics: failures, newest first, and then the other kinds in order."""
    return [
        *_failures(rows, clock_ms),
        *(Need("unreadable", row.problem, row.name) for row in rows if row.problem is not None),
        *(
            Need("review", standing.hold.review_warning, row.name)
            for row in rows
            for standing in row.holds
            if standing.is_to_be_reviewed
        ),
        *(_overdue(row) for row in rows if row.is_overdue(clock_ms)),
        *(
            Need("drift", _drift(row.drifted_settings), row.name)
            for row in rows
            if row.drifted_settings
        ),
    ]


def questions(details: Iterable[Mapping[str, Any]], dags: Collection[str]) -> list[Need]:
    """Return the questions of these DAGs' runs that nobody has answered, as Airflow has them."""
    return [
        Need(
            kind="approval",
            text=detail["subject"],
            at_ms=int(datetime.fromisoformat(detail["created_at"]).timestamp() * 1000),
            run_id=instance["dag_run_id"],
            dag=instance["dag_id"],
        )
        for detail in details
        if (instance := detail["task_instance"])["dag_id"] in dags
    ]


def unreadable(problem: str) -> Need:
    """Say that something of all topics cannot be read."""
    return Need("unreadable", problem)


def _failures(rows: Sequence[TopicRow], clock_ms: int) -> Iterator[Need]:
    clock = to_datetime(clock_ms)
    failed = [
        attempt
        for row in rows
        for attempt in row.failures
        if attempt in row.night or attempt.ended >= clock - NEWS
    ]
    for attempt in sorted(failed, key=lambda attempt: attempt.ended, reverse=True):
        yield Need(
            kind="failed",
            topic=attempt.topic,
            text=f"{attempt.job}: {cause_of(attempt)}",
            at_ms=int(attempt.ended.timestamp() * 1000),
            run_id=attempt.run_id,
            dag=attempt.dag,
        )


def _overdue(row: TopicRow) -> Need:
    due = minute(row.next_horizon_ms)
    text = f"tombstones or markers should have left by {due} UTC, and no round has removed them"
    return Need("overdue", text, row.name, row.next_horizon_ms)


def _drift(count: int) -> str:
    differs = "setting differs" if count == 1 else "settings differ"
    return f"{number(count)} {differs} from the brokers'"
