"""A topic's row in the overview: from its history, or read from its tables where it has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ebbtide.errors import EbbtideError
from ebbtide.lake.attempts import Attempt
from ebbtide.lake.contents import oldest_event_ms, read_contents
from ebbtide.lake.reader import Lake
from ebbtide.orchestration.pages.charts import sparkline
from ebbtide.orchestration.pages.views.holds import HoldRow
from ebbtide.orchestration.pages.views.overview.history import TopicHistory

DAY_MS = 24 * 60 * 60 * 1000


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
    holds: Sequence[HoldRow] = ()
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
    holds: Mapping[str, Sequence[HoldRow]],
) -> list[TopicRow]:
    """Return a row for each topic."""
    return [replace(_row(name, histories.get(name)), holds=holds.get(name, ())) for name in names]


def _row(name: str, history: TopicHistory | None) -> TopicRow:
    if history is None:
        return TopicRow(name=name)
    told = TopicRow(
        name=name,
        sizes=history.sizes,
        waiting=history.known_number("waiting"),
        low_watermark_lag=history.known_number("low_watermark_lag"),
        drifted_settings=history.known_number("drifted_settings"),
        open_erasures=history.open_erasures,
        night=tuple(history.night.values()),
        failures=history.failures,
    )
    return replace(told, **_summarized(history))


def _summarized(history: TopicHistory) -> dict[str, Any]:
    summary = history.summary
    if summary is None:
        return {}
    return {
        "cleanup_policy": summary.cleanup_policy,
        "is_enabled": summary.is_enabled,
        "partitions": summary.partitions,
        "records": summary.records,
        "file_bytes": summary.file_bytes,
        "dirty_share": summary.dirty_share,
        "next_horizon_ms": summary.next_horizon_ms,
        "oldest_event_ms": history.known_number("oldest_event_ms") if summary.records else None,
    }


def filled(row: TopicRow, lake: Lake) -> TopicRow:
    """Return the row with what its tables say, where no job of this version has told it."""
    if row.partitions is not None:
        return row
    try:
        topic = lake.topic(row.name)
        states, contents = topic.partitions.values(), read_contents(lake, row.name).values()
        horizons = [ms for state in states if (ms := state.next_horizon_ms) is not None]
        changes: dict[str, Any] = {
            "cleanup_policy": ",".join(sorted(topic.config.cleanup_policy or ())),
            "is_enabled": topic.config.is_enabled,
            "partitions": len(states),
            "records": sum(of.records for of in contents),
            "file_bytes": sum(of.file_bytes for of in contents),
            "next_horizon_ms": min(horizons, default=None),
            "oldest_event_ms": oldest_event_ms(contents),
        }
    except EbbtideError as error:
        return replace(row, problem=str(error))
    return replace(row, **changes)
