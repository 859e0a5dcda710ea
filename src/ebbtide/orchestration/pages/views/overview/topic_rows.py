"""A topic's row in the overview: from its history, or read from its tables where it has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.holds import HoldStanding
from ebbtide.lake.reader import Lake
from ebbtide.log.attempts import Attempt
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.orchestration.pages.charts import sparkline
from ebbtide.orchestration.pages.views.overview.history import TopicHistory

DAY_MS = 24 * 60 * 60 * 1000
# What a row takes from the topic's summary.
SUMMARIZED = (
    *("cleanup_policy", "is_enabled", "partitions", "records", "file_bytes", "dirty_share"),
    *("next_horizon_ms", "oldest_event_ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One line of the overview; None stands for what no job has told yet."""

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
    open_erasures: int = 0
    holds: Sequence[HoldStanding] = ()
    night: Sequence[Attempt] = ()
    failures: Sequence[Attempt] = ()
    problem: str | None = None

    @property
    def night_ms(self) -> int | None:
        """When the last night that worked on the topic was done with it."""
        ends = [attempt.ended for attempt in self.night]
        return int(max(ends).timestamp() * 1000) if ends else None

    @property
    def rows_removed(self) -> int | None:
        """The records that the last night removed."""
        return sum(attempt.rows_removed for attempt in self.night) if self.night else None

    @property
    def has_failed(self) -> bool:
        """Whether a job of the last night failed, or a later one."""
        return bool(self.failures)

    @property
    def sparkline(self) -> str:
        """The points of its size over the last days."""
        return sparkline(self.sizes)

    def is_overdue(self, clock_ms: int) -> bool:
        """Return whether a horizon passed a day ago, which is more than one night.

        If the last night had a clock of its own, as in a demonstration or a rehearsal, that counts.
        """
        horizon = self.next_horizon_ms
        clocks_ms = [int(attempt.now.timestamp() * 1000) for attempt in self.night]
        night_ms, clock_of_night_ms = self.night_ms, max(clocks_ms, default=clock_ms)
        if night_ms is not None and abs(clock_of_night_ms - night_ms) > DAY_MS:
            clock_ms = clock_of_night_ms
        return self.is_enabled and horizon is not None and horizon < clock_ms - DAY_MS


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
    """Return the row with what its tables say, where no job of this version has told it."""
    if row.partitions is not None:
        return row
    try:
        return replace(row, **_numbers(lake.summary(row.name)))
    except EbbtideError as error:
        return replace(row, problem=str(error))
