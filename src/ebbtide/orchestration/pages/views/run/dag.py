"""The tab of a DAG: its last runs on topics, and what each removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ebbtide.lake.attempts import Attempt
from ebbtide.lake.reader import Lake
from ebbtide.orchestration.deletions import HISTORY

RUNS_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRunRow:
    """A run of the DAG, summed over its topics."""

    run_id: str
    ended: datetime
    topics: int
    failed: int
    rows_removed: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPage:
    """The last runs of a DAG, newest first; none for a DAG that is not ebbtide's."""

    dag: str
    runs: Sequence[DagRunRow]


def dag_page(lake: Lake, dag: str) -> DagPage:
    """Return the page of a DAG."""
    by_run: dict[str, list[Attempt]] = {}
    for run in lake.attempts(datetime.now(UTC) - HISTORY, dag=dag):
        by_run.setdefault(run.run_id, []).append(run)
    rows = [_row(run_id, runs) for run_id, runs in by_run.items()]
    return DagPage(dag=dag, runs=sorted(rows, key=lambda r: r.ended, reverse=True)[:RUNS_SHOWN])


def _row(run_id: str, runs: Sequence[Attempt]) -> DagRunRow:
    newest = {(run.topic, run.task): run for run in runs}
    failed = {run.topic for run in newest.values() if not run.succeeded}
    return DagRunRow(
        run_id=run_id,
        ended=max(run.ended for run in runs),
        topics=len({run.topic for run in runs}),
        failed=len(failed),
        rows_removed=sum(run.rows_removed for run in runs),
        seconds=sum(run.seconds for run in runs),
    )
