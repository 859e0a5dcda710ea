"""List what needs somebody: questions, failures with their cause, overdue horizons, drift.

Each kind is a function from the rows to its needs; `KINDS` has them in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ebbtide.moments import minute, to_datetime
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.pages.views.overview.topic_rows import TopicRow
from ebbtide.text import number

# A request by hand that was refused longer ago is history, and no longer news.
NEWS = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing to look at: on which topic or in which run, and what to do about it."""

    kind: str
    text: str
    topic: str | None = None
    at_ms: int | None = None
    run_id: str | None = None
    dag: str | None = None


def needs(rows: Sequence[TopicRow], clock_ms: int) -> list[Need]:
    """Return all needs of the topics, the kinds in order and each kind's newest first."""
    return [need for kind in KINDS for need in kind(rows, clock_ms)]


def questions(details: Iterable[Mapping[str, Any]], dags: Collection[str]) -> list[Need]:
    """Return the questions of these DAGs' runs that nobody has answered, as Airflow has them."""
    return [
        Need(
            kind="approval",
            text=detail["subject"],
            at_ms=int(datetime.fromisoformat(detail["created_at"]).timestamp() * 1000),
            run_id=of["dag_run_id"],
            dag=of["dag_id"],
        )
        for detail in details
        if (of := detail["task_instance"])["dag_id"] in dags
    ]


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


def unreadable(problem: str) -> Need:
    """Say that something of all topics cannot be read."""
    return Need(kind="unreadable", text=problem)


def _unreadable(rows: Sequence[TopicRow], _clock_ms: int) -> Iterator[Need]:
    for row in rows:
        if row.problem is not None:
            yield Need(kind="unreadable", topic=row.name, text=row.problem)


def _reviews(rows: Sequence[TopicRow], _clock_ms: int) -> Iterator[Need]:
    for row in rows:
        for of in row.holds:
            if of.is_to_be_reviewed:
                yield Need(kind="review", topic=row.name, text=of.hold.review_warning)


def _overdue(rows: Sequence[TopicRow], clock_ms: int) -> Iterator[Need]:
    for row in rows:
        if row.is_overdue(clock_ms):
            yield Need(
                kind="overdue",
                topic=row.name,
                text="tombstones or markers should have left by "
                f"{minute(row.next_horizon_ms)} UTC, and no round has removed them",
                at_ms=row.next_horizon_ms,
            )


def _drifts(rows: Sequence[TopicRow], _clock_ms: int) -> Iterator[Need]:
    for row in rows:
        if row.drifted_settings:
            count = row.drifted_settings
            yield Need(
                kind="drift",
                topic=row.name,
                text=f"{number(count)} {'setting differs' if count == 1 else 'settings differ'} "
                "from the brokers'",
            )


KINDS: tuple[Callable[[Sequence[TopicRow], int], Iterator[Need]], ...] = (
    _failures,
    _unreadable,
    _reviews,
    _overdue,
    _drifts,
)
