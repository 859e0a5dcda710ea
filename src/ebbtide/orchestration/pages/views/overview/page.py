"""The first page: totals, what needs somebody, and the topics: searched, sorted, filtered, paged.

What was asked for is the page's query, so that each view of it is a link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from ebbtide.errors import EbbtideError
from ebbtide.lake.holds import HoldStanding, read_all_holds
from ebbtide.lake.reader import Lake
from ebbtide.moments import to_datetime
from ebbtide.orchestration.pages.views.overview.history import TopicHistory
from ebbtide.orchestration.pages.views.overview.needs import Need, needs, unreadable
from ebbtide.orchestration.pages.views.overview.topic_rows import TopicRow, filled, topic_rows

TOPICS_A_PAGE = 50
NEEDS_SHOWN = 8


class Column(NamedTuple):
    """A column to sort by: its title, a row's value, and whether large values come first."""

    title: str
    value: Callable[[TopicRow], Any]
    is_descending: bool = True


class Filter(NamedTuple):
    """A choice among the topics."""

    title: str
    holds: Callable[[TopicRow, int], bool]


COLUMNS: Mapping[str, Column] = {
    "topic": Column("Topic", lambda row: row.name, is_descending=False),
    "size": Column("Size", lambda row: row.file_bytes),
    "records": Column("Records", lambda row: row.records),
    "dirty": Column("Dirty", lambda row: row.dirty_share),
    "oldest": Column("Oldest event", lambda row: row.oldest_event_ms, is_descending=False),
    "horizon": Column("Next horizon", lambda row: row.next_horizon_ms, is_descending=False),
    "lag": Column("Replica lag", lambda row: row.low_watermark_lag),
    "night": Column("Last night", lambda row: row.night_ms),
    "removed": Column("Removed", lambda row: row.rows_removed),
}
FILTERS: Mapping[str, Filter] = {
    "failed": Filter("Failed", lambda row, _: row.has_failed or row.problem is not None),
    "overdue": Filter("Overdue", lambda row, clock_ms: row.is_overdue(clock_ms)),
    "waiting": Filter("Waiting for a horizon", lambda row, _: bool(row.waiting)),
    "erasing": Filter("Keys being erased", lambda row, _: bool(row.open_erasures)),
    "held": Filter("Held", lambda row, _: bool(row.holds)),
    "lagging": Filter("Replicas behind", lambda row, _: bool(row.low_watermark_lag)),
    "drifted": Filter("Settings drifted", lambda row, _: bool(row.drifted_settings)),
    "disabled": Filter("Not enabled", lambda row, _: not row.is_enabled),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A page of the overview as its query asks for it; what it does not know is left out."""

    search: str = ""
    only: str = ""
    sort: str = "topic"
    order: str = ""
    page: int = 1

    @classmethod
    def of(cls, search: str, only: str, sort: str, order: str, page: int) -> Self:
        """Return what was asked for, with a column and a filter that exist."""
        return cls(
            search=search.strip(),
            only=only if only in FILTERS else "",
            sort=sort if sort in COLUMNS else "topic",
            order=order if order in ("up", "down") else "",
            page=max(page, 1),
        )

    @property
    def is_descending(self) -> bool:
        """Whether large values come first."""
        return self.order == "down" if self.order else COLUMNS[self.sort].is_descending

    def query(self, **changes: Any) -> dict[str, Any]:
        """Return the query of this page with changes; another choice begins at the first page."""
        asked = replace(self, **{"page": 1, **changes})
        values = asdict(asked)
        return {n: v for n, v in values.items() if v != getattr(_DEFAULT, n)}

    def sorted_by(self, column: str) -> dict[str, Any]:
        """Return the query of the same topics by a column; by the same one, the other way round."""
        if column == self.sort:
            return self.query(order="up" if self.is_descending else "down")
        return self.query(sort=column, order="")


_DEFAULT = Asked()


def overview(
    lake: Lake,
    histories: Mapping[str, TopicHistory],
    asked: Asked,
    clock_ms: int,
    waiting: Sequence[Need] = (),
) -> dict[str, Any]:
    """Return the page; its totals, needs and filters are of all topics, not only those shown.

    Only topics on it that no job of this version has told are opened. `waiting` are the questions
    of runs, which come first of what needs somebody.
    """
    held, problems = _holds(lake, clock_ms)
    rows = topic_rows(lake.topic_names(), histories, held)
    matching = _sorted([row for row in rows if _matches(row, asked, clock_ms)], asked)
    pages = max(-(-len(matching) // TOPICS_A_PAGE), 1)
    asked = replace(asked, page=min(asked.page, pages))
    start = (asked.page - 1) * TOPICS_A_PAGE
    shown = [filled(row, lake) for row in matching[start : start + TOPICS_A_PAGE]]
    unreadable = [row for row in shown if row.problem is not None]
    seen = {row.name: row for row in rows} | {row.name: row for row in unreadable}
    all_needs = [*waiting, *problems, *needs(list(seen.values()), clock_ms)]
    return {
        "asked": asked,
        "totals": _totals(rows, clock_ms),
        "needs": all_needs[:NEEDS_SHOWN],
        "more_needs": max(len(all_needs) - NEEDS_SHOWN, 0),
        "filters": {
            name: sum(choice.holds(row, clock_ms) for row in rows)
            for name, choice in FILTERS.items()
        },
        "topics": shown,
        "first": start + 1,
        "matching": len(matching),
        "pages": pages,
        "clock_ms": clock_ms,
    }


def _holds(lake: Lake, clock_ms: int) -> tuple[Mapping[str, Sequence[HoldStanding]], list[Need]]:
    """Return the holds of each topic, or that they cannot be read."""
    try:
        standings, problems = read_all_holds(lake, to_datetime(clock_ms))
    except EbbtideError as error:
        return {}, [unreadable(str(error))]
    by_topic: dict[str, list[HoldStanding]] = {}
    for standing in standings:
        by_topic.setdefault(standing.hold.topic, []).append(standing)
    return by_topic, [unreadable(str(problem)) for problem in problems.values()]


def _matches(row: TopicRow, asked: Asked, clock_ms: int) -> bool:
    is_named = asked.search.lower() in row.name.lower()
    return is_named and (not asked.only or FILTERS[asked.only].holds(row, clock_ms))


def _sorted(rows: Sequence[TopicRow], asked: Asked) -> list[TopicRow]:
    """Return the rows by a column, those without its value last, and by name among equals."""
    value = COLUMNS[asked.sort].value
    known = sorted((row for row in rows if value(row) is not None), key=lambda row: row.name)
    known.sort(key=value, reverse=asked.is_descending)
    return [*known, *(row for row in rows if value(row) is None)]


def _totals(rows: Sequence[TopicRow], clock_ms: int) -> dict[str, int | None]:
    """Return sums over all topics; `removed` counts the newest night alone."""
    nights = [attempt for row in rows for attempt in row.night]
    newest = max(nights, key=lambda attempt: attempt.ended, default=None)
    night = [attempt for attempt in nights if newest and attempt.run_id == newest.run_id]
    oldest = (row.oldest_event_ms for row in rows)
    return {
        "topics": len(rows),
        "records": sum(row.records or 0 for row in rows),
        "file_bytes": sum(row.file_bytes or 0 for row in rows),
        "removed": sum(attempt.rows_removed for attempt in night),
        "night_ms": int(newest.ended.timestamp() * 1000) if newest else None,
        "waiting": sum(row.waiting or 0 for row in rows),
        "overdue": sum(row.is_overdue(clock_ms) for row in rows),
        "erasing": sum(row.open_erasures for row in rows),
        "holds": sum(len(row.holds) for row in rows),
        "oldest_event_ms": min((ms for ms in oldest if ms is not None), default=None),
    }
