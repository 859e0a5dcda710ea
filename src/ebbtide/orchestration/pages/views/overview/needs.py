"""List what needs somebody: failures with their cause, horizons that are overdue, drift.

Each kind is a function from the rows to its needs; `KINDS` has them in the order of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.pages.views.overview.topic_rows import TopicRow
from ebbtide.text import moment, number

# A request by hand that was refused longer ago is history, and no longer news.
NEWS = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing to look at: on which topic, in which run, and what to do about it."""

    kind: str
    topic: str
    text: str
    at_ms: int | None = None
    run_id: str | None = None
    dag: str | None = None


def needs(rows: Sequence[TopicRow], clock_ms: int) -> list[Need]:
    """Return all needs of the topics, the kinds in order and each kind's newest first."""
    return [need for kind in KINDS for need in kind(rows, clock_ms)]


def _failures(rows: Sequence[TopicRow], clock_ms: int) -> Iterator[Need]:
    clock = datetime.fromtimestamp(clock_ms / 1000, UTC)
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


def _unreadable(rows: Sequence[TopicRow], _clock_ms: int) -> Iterator[Need]:
    for row in rows:
        if row.problem is not None:
            yield Need(kind="unreadable", topic=row.name, text=row.problem)


def _overdue(rows: Sequence[TopicRow], clock_ms: int) -> Iterator[Need]:
    for row in rows:
        if row.is_overdue(clock_ms):
            yield Need(
                kind="overdue",
                topic=row.name,
                text="tombstones or markers should have left by "
                f"{moment(row.next_horizon_ms)} UTC, and no round has removed them",
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


# Approvals that wait and holds to review are kinds of their own, first in this list.
KINDS: tuple[Callable[[Sequence[TopicRow], int], Iterator[Need]], ...] = (
    _failures,
    _unreadable,
    _overdue,
    _drifts,
)
