"""Charts of a topic over its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebbtide.log.attempts import Run
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.orchestration.pages.charts import Chart, Point, chart
from ebbtide.text import number, size

HOUR_MS = 3_600_000


def trends(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts that these runs, oldest first, have enough numbers for."""
    removed = [Point(_ms(run), run.rows_removed) for run in runs if run.rows_removed]
    charts = [
        chart("Size of its files", "bytes", _points(runs, lambda s, _: s.file_bytes), size),
        chart("Records", "records", _points(runs, lambda s, _: s.records), number),
        chart("Removed by a run", "records", removed, number, has_columns=True),
        chart("Horizon overdue", "hours", _points(runs, _horizon_age), lambda v: f"{v:,} h"),
        chart("Dirty share", "per cent", _points(runs, _dirty), lambda v: f"{v} %"),
    ]
    return [made for made in charts if made is not None]


def _dirty(summary: TopicSummary, _now_ms: int) -> float | None:
    return None if summary.dirty_share is None else round(100 * summary.dirty_share, 1)


def _horizon_age(summary: TopicSummary, now_ms: int) -> float | None:
    """Return for how many hours the next horizon had passed by the run's clock, or 0."""
    horizon = summary.next_horizon_ms
    return None if horizon is None else round(max(now_ms - horizon, 0) / HOUR_MS, 1)


def _points(runs: Sequence[Run], value: Callable[[TopicSummary, int], float | None]) -> list[Point]:
    """Return a value of each run's summary, where the run has one."""
    points = []
    for run in runs:
        now_ms = int(run.now.timestamp() * 1000)
        if run.summary is not None and (of_run := value(run.summary, now_ms)) is not None:
            points.append(Point(_ms(run), of_run))
    return points


def _ms(run: Run) -> int:
    return int(run.ended.timestamp() * 1000)
