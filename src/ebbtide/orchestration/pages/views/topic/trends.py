"""Charts of a topic over its runs, and what each job has removed by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ebbtide.lake.reader import Run
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.orchestration.pages.charts import Chart, Point, chart
from ebbtide.text import number, size

HOUR_MS = 3_600_000
# What a job's result for a partition counts, and how the page calls it.
REASONS: Mapping[str, Mapping[str, str]] = {
    "clean_log": {
        "superseded": "superseded by a newer record of the key",
        "aborted": "of aborted transactions",
        "keyless": "without a key in a compacted topic",
        "tombstones_removed": "tombstones past their horizon",
        "markers_removed": "transaction markers past their horizon",
    },
    "expire_segments": {
        "records_in_segments": "in segments past a retention limit",
        "records_expired": "single records past the event-time limit",
    },
    "delete_records": {"records_removed": "below a requested offset"},
    "repair_state": {},
}


class Removal(NamedTuple):
    """Records that left for one reason, over all runs shown."""

    job: str
    reason: str
    records: int


def removals(runs: Sequence[Run]) -> list[Removal]:
    """Return what left the topic in these runs by reason, the most first."""
    counts: Counter[tuple[str, str]] = Counter()
    for run in runs:
        for name, reason in REASONS.get(run.job, {}).items():
            counts[run.job, reason] += sum(_count(of.get(name)) for of in run.partitions.values())
    return [Removal(job, reason, count) for (job, reason), count in counts.most_common() if count]


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


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
