"""The overview: a row per topic, the topics that need attention, and the runs behind both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from threading import Lock
from typing import Any, NamedTuple, Self

from ebbtide.errors import EbbtideError
from ebbtide.lake.own_tables import HoldStanding, OpenErasures, RunLog, read_all_holds
from ebbtide.lake.reader import Lake
from ebbtide.ledger.own_tables import RUNS, Attempt
from ebbtide.ledger.topic_summary import TopicSummary
from ebbtide.moments import minute, to_datetime
from ebbtide.orchestration.deletions import HISTORY, NIGHTLY
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.pages.charts import sparkline
from ebbtide.text import number

# Numbers that only some jobs report: the newest reported value counts.
_SOMETIMES_KNOWN = ("waiting", "low_watermark_lag", "drifted_settings", "oldest_event_ms")


@dataclass(slots=True)
class TopicHistory:
    """A topic's newest attempts. They can be added in any order, and more than once."""

    name: str
    summarized: Attempt | None = None  # the newest with a summary
    of_days: dict[date, Attempt] = field(default_factory=dict)  # each day's newest with a summary
    of_jobs: dict[tuple[str | None, str], Attempt] = field(default_factory=dict)
    night: dict[str, Attempt] = field(default_factory=dict)  # of the newest nightly run, by job
    known: dict[str, tuple[datetime, int]] = field(default_factory=dict)
    open_erasures: int = 0  # keys that are being erased

    def add(self, attempt: Attempt) -> None:
        """Add an attempt to the history."""
        job = (attempt.dag, attempt.job)
        self.of_jobs[job] = _newer(self.of_jobs.get(job), attempt)
        if attempt.dag == NIGHTLY:
            self._add_to_night(attempt)
        if attempt.summary is not None:
            self.summarized = _newer(self.summarized, attempt)
            day = attempt.ended.date()
            self.of_days[day] = _newer(self.of_days.get(day), attempt)
            for name in _SOMETIMES_KNOWN:
                self._add_known(name, getattr(attempt.summary, name), attempt.ended)

    def _add_to_night(self, attempt: Attempt) -> None:
        newest = max(self.night.values(), key=_end, default=attempt)
        if attempt.run_id != newest.run_id:
            if _end(attempt) < _end(newest):
                return
            self.night = {}
        self.night[attempt.job] = _newer(self.night.get(attempt.job), attempt)

    def _add_known(self, name: str, value: int | None, at: datetime) -> None:
        if value is not None and (name not in self.known or self.known[name][0] <= at):
            self.known[name] = (at, value)

    @property
    def summary(self) -> TopicSummary | None:
        """The summary at the end of the topic's newest job."""
        return None if self.summarized is None else self.summarized.summary

    @property
    def failures(self) -> list[Attempt]:
        """The newest attempt of each job whose newest attempt failed, newest first."""
        failed = [attempt for attempt in self.of_jobs.values() if not attempt.succeeded]
        return sorted(failed, key=_end, reverse=True)

    @property
    def sizes(self) -> list[int]:
        """Bytes of the topic's files at the end of each day on which a job ran, oldest first."""
        days = sorted(self.of_days.items())
        return [attempt.summary.file_bytes for _, attempt in days if attempt.summary is not None]

    def known_number(self, name: str) -> int | None:
        """Return the newest value of a number that only some jobs report, or None."""
        return self.known[name][1] if name in self.known else None


def _end(attempt: Attempt) -> tuple[datetime, datetime]:
    return attempt.ended, attempt.started


def _newer(before: Attempt | None, attempt: Attempt) -> Attempt:
    return attempt if before is None or _end(attempt) >= _end(before) else before


@dataclass(slots=True)
class Histories:
    """The histories of all topics on which a job ran in the last `HISTORY`."""

    log: RunLog = field(default_factory=RunLog)
    erasures: OpenErasures = field(default_factory=OpenErasures)
    by_topic: dict[str, TopicHistory] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def read_on(self, lake: Lake) -> Mapping[str, TopicHistory]:
        """Add the rows of `runs` that were written since the last call. Return all histories."""
        with self.lock:
            table = lake.own_table(RUNS)
            if not self.log.is_of(table):
                self.log, self.by_topic = RunLog(), {}
            since = datetime.now(UTC) - HISTORY
            if table is not None:
                for attempt in self.log.read_on(table, since):
                    self._of(attempt.topic).add(attempt)
            still_open = self.erasures.read_on(lake, since)
            for name, history in self.by_topic.items():
                history.open_erasures = still_open.get(name, 0)
            return self.by_topic

    def _of(self, topic: str) -> TopicHistory:
        return self.by_topic.setdefault(topic, TopicHistory(topic))


DAY_MS = 24 * 60 * 60 * 1000
# The numbers that a row takes from the topic's summary.
SUMMARIZED = (
    *("cleanup_policy", "is_enabled", "partitions", "records", "file_bytes", "dirty_share"),
    *("next_horizon_ms", "oldest_event_ms", "erase_by_ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One line of the overview. None means that no job has reported the value yet."""

    name: str
    cleanup_policy: str | None = None
    is_enabled: bool = True
    partitions: int | None = None
    records: int | None = None
    file_bytes: int | None = None
    sizes: Sequence[int] = ()
    dirty_share: float | None = None
    waiting: int | None = None
    next_horizon_ms: int | None = None
    oldest_event_ms: int | None = None  # by its files: no event in them is older
    low_watermark_lag: int | None = None
    drifted_settings: int | None = None
    erase_by_ms: int | None = None  # when the oldest delete must be off the disk
    open_erasures: int = 0
    holds: Sequence[HoldStanding] = ()
    night: Sequence[Attempt] = ()
    failures: Sequence[Attempt] = ()
    problem: str | None = None

    @property
    def night_ms(self) -> int | None:
        """When the last nightly run with work on the topic ended there."""
        ends = [attempt.ended for attempt in self.night]
        return int(max(ends).timestamp() * 1000) if ends else None

    @property
    def rows_removed(self) -> int | None:
        """The records that the last nightly run removed."""
        return sum(attempt.rows_removed for attempt in self.night) if self.night else None

    @property
    def has_failed(self) -> bool:
        """True if any job's newest attempt failed."""
        return bool(self.failures)

    @property
    def sparkline(self) -> str:
        """The points of a polyline: the topic's size over the last days."""
        return sparkline(self.sizes)

    def is_overdue(self, clock_ms: int) -> bool:
        """Return whether the next horizon passed more than a day ago."""
        horizon, clock_ms = self.next_horizon_ms, self._clock_ms(clock_ms)
        return self.is_enabled and horizon is not None and horizon < clock_ms - DAY_MS

    def is_erasure_overdue(self, clock_ms: int) -> bool:
        """Return whether a delete is not off the disk by its deadline."""
        return self.erase_by_ms is not None and self.erase_by_ms < self._clock_ms(clock_ms)

    def _clock_ms(self, clock_ms: int) -> int:
        """Return the clock, or in a demonstration or rehearsal the last nightly run's `now`.

        That `now` differs from the run's end by more than a day.
        """
        clocks_ms = [int(attempt.now.timestamp() * 1000) for attempt in self.night]
        night_ms, clock_of_night_ms = self.night_ms, max(clocks_ms, default=clock_ms)
        if night_ms is not None and abs(clock_of_night_ms - night_ms) > DAY_MS:
            return clock_of_night_ms
        return clock_ms


def topic_rows(
    names: Iterable[str],
    histories: Mapping[str, TopicHistory],
    holds: Mapping[str, Sequence[HoldStanding]],
) -> list[TopicRow]:
    """Return a row for each topic."""
    return [replace(_row(name, histories.get(name)), holds=holds.get(name, ())) for name in names]


def _row(name: str, history: TopicHistory | None) -> TopicRow:
    if history is None:
        return TopicRow(name=name)
    row = TopicRow(
        name=name,
        sizes=history.sizes,
        waiting=history.known_number("waiting"),
        low_watermark_lag=history.known_number("low_watermark_lag"),
        drifted_settings=history.known_number("drifted_settings"),
        open_erasures=history.open_erasures,
        night=tuple(history.night.values()),
        failures=history.failures,
    )
    if (summary := history.summary) is None:
        return row
    oldest_ms = history.known_number("oldest_event_ms") if summary.records else None
    return replace(row, **_numbers(replace(summary, oldest_event_ms=oldest_ms)))


def _numbers(summary: TopicSummary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in SUMMARIZED}


def filled(row: TopicRow, lake: Lake) -> TopicRow:
    """Return the row, read from the topic's tables if no job has reported its numbers yet."""
    if row.partitions is not None:
        return row
    try:
        return replace(row, **_numbers(lake.summary(row.name)))
    except EbbtideError as error:
        return replace(row, problem=str(error))


LATE = "erasure overdue"  # the kind of a need
# A failure outside of nightly runs that is older needs no attention any more.
NEWS = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Need:
    """A topic or run that needs attention, and why."""

    kind: str
    text: str
    topic: str | None = None
    at_ms: int | None = None
    run_id: str | None = None
    dag: str | None = None


def needs(rows: Sequence[TopicRow], clock_ms: int) -> list[Need]:
    """Return all needs: overdue erasures, failures (newest first), unreadable, and the rest."""
    return [
        *(_late(row) for row in rows if row.is_erasure_overdue(clock_ms)),
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
    """Return a need for each open question of these DAGs' runs, from Airflow's API."""
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
    """Return the need of something that cannot be read."""
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


def _late(row: TopicRow) -> Need:
    text = f"a delete had to be off the disk by {minute(row.erase_by_ms)} UTC"
    return Need(LATE, text, row.name, row.erase_by_ms)


def _overdue(row: TopicRow) -> Need:
    due = minute(row.next_horizon_ms)
    text = f"tombstones or markers were due at {due} UTC, and no cleaner round has removed them"
    return Need("overdue", text, row.name, row.next_horizon_ms)


def _drift(count: int) -> str:
    differs = "setting differs" if count == 1 else "settings differ"
    return f"{number(count)} {differs} from the brokers'"


# The first page: totals, needs, and the topics: searched, sorted, filtered, paged. The page's query
# has all choices, so that each view is a link.


TOPICS_A_PAGE = 50
NEEDS_SHOWN = 8


class TopicColumn(NamedTuple):
    """A column to sort by: title, a row's value, and whether large values come first."""

    title: str
    value: Callable[[TopicRow], Any]
    is_descending: bool = True


class Filter(NamedTuple):
    """A filter of the topics: title, and whether a row passes at a time."""

    title: str
    holds: Callable[[TopicRow, int], bool]


COLUMNS: Mapping[str, TopicColumn] = {
    "topic": TopicColumn("Topic", lambda row: row.name, is_descending=False),
    "size": TopicColumn("Size", lambda row: row.file_bytes),
    "records": TopicColumn("Records", lambda row: row.records),
    "dirty": TopicColumn("Dirty", lambda row: row.dirty_share),
    "oldest": TopicColumn("Oldest event", lambda row: row.oldest_event_ms, is_descending=False),
    "horizon": TopicColumn("Next horizon", lambda row: row.next_horizon_ms, is_descending=False),
    "lag": TopicColumn("Replica lag", lambda row: row.low_watermark_lag),
    "night": TopicColumn("Last nightly run", lambda row: row.night_ms),
    "removed": TopicColumn("Removed", lambda row: row.rows_removed),
}
FILTERS: Mapping[str, Filter] = {
    "failed": Filter("Failed", lambda row, _: row.has_failed or row.problem is not None),
    "late": Filter("Erasures overdue", lambda row, clock_ms: row.is_erasure_overdue(clock_ms)),
    "overdue": Filter("Overdue", lambda row, clock_ms: row.is_overdue(clock_ms)),
    "waiting": Filter("Waiting for a horizon", lambda row, _: bool(row.waiting)),
    "erasing": Filter("Keys being erased", lambda row, _: bool(row.open_erasures)),
    "held": Filter("Held", lambda row, _: bool(row.holds)),
    "lagging": Filter("Replicas behind", lambda row, _: bool(row.low_watermark_lag)),
    "drifted": Filter("Settings drifted", lambda row, _: bool(row.drifted_settings)),
    "disabled": Filter("Not enabled", lambda row, _: not row.is_enabled),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewQuery:
    """The query of the overview: search, filter, sort order and page."""

    search: str = ""
    only: str = ""
    sort: str = "topic"
    order: str = ""
    page: int = 1

    @classmethod
    def of(cls, search: str, only: str, sort: str, order: str, page: int) -> Self:
        """Return the query. Replace an unknown filter, column or order by the default."""
        return cls(
            search=search.strip(),
            only=only if only in FILTERS else "",
            sort=sort if sort in COLUMNS else "topic",
            order=order if order in ("up", "down") else "",
            page=max(page, 1),
        )

    @property
    def is_descending(self) -> bool:
        """True if large values come first."""
        return self.order == "down" if self.order else COLUMNS[self.sort].is_descending

    def query(self, **changes: Any) -> dict[str, Any]:
        """Return this query with changes, from the first page on, without its default values."""
        asked = replace(self, **{"page": 1, **changes})
        values = asdict(asked)
        return {n: v for n, v in values.items() if v != getattr(_DEFAULT, n)}

    def sorted_by(self, column: str) -> dict[str, Any]:
        """Return this query sorted by a column. If it is already, reverse the order."""
        if column == self.sort:
            return self.query(order="up" if self.is_descending else "down")
        return self.query(sort=column, order="")


_DEFAULT = OverviewQuery()


def overview(
    lake: Lake,
    histories: Mapping[str, TopicHistory],
    asked: OverviewQuery,
    clock_ms: int,
    waiting: Sequence[Need] = (),
) -> dict[str, Any]:
    """Return the page's values. Totals, needs and filters count all topics, not only this page's.

    A topic's tables are opened only if it is on this page and no job has reported its numbers yet.
    `waiting` are open questions of runs: only overdue erasures stand before them.
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
    all_needs.sort(key=lambda need: need.kind != LATE)
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
    """Return the holds by topic, and a need for each topic whose holds cannot be read."""
    try:
        standings, problems = read_all_holds(lake, to_datetime(clock_ms))
    except EbbtideError as error:
        return {}, [unreadable(str(error))]
    by_topic: dict[str, list[HoldStanding]] = {}
    for standing in standings:
        by_topic.setdefault(standing.hold.topic, []).append(standing)
    return by_topic, [unreadable(str(problem)) for problem in problems.values()]


def _matches(row: TopicRow, asked: OverviewQuery, clock_ms: int) -> bool:
    is_named = asked.search.lower() in row.name.lower()
    return is_named and (not asked.only or FILTERS[asked.only].holds(row, clock_ms))


def _sorted(rows: Sequence[TopicRow], asked: OverviewQuery) -> list[TopicRow]:
    """Return the rows sorted by a column, then by name. Rows without a value come last."""
    value = COLUMNS[asked.sort].value
    known = sorted((row for row in rows if value(row) is not None), key=lambda row: row.name)
    known.sort(key=value, reverse=asked.is_descending)
    return [*known, *(row for row in rows if value(row) is None)]


def _totals(rows: Sequence[TopicRow], clock_ms: int) -> dict[str, int | None]:
    """Return sums over all topics. `removed` counts only the newest nightly run."""
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
