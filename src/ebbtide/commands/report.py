"""Show the report of a run: the records that each rule removed from each partition."""

from __future__ import annotations

import argparse
from typing import Any

from ebbtide import open_lake
from ebbtide.commands.answer import Answer, iso
from ebbtide.ledger.own_tables import Run
from ebbtide.local.progress import working
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.report import find_run, render_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run."""
    parser.add_argument("run", nargs="?", help="Airflow's id of the run [the newest run]")


def answer(args: argparse.Namespace) -> Answer:
    """Return the report of the run, or of the newest."""
    return report_of(args.run)


def report_of(run: str | None) -> Answer:
    """Return a run's report. The document has a row for each attempt of a job on a topic."""
    with open_lake() as lake, working("reading the run and its topics"):
        rows = find_run(lake, run)
        run_id = rows[-1].run_id if rows else run
        text = render_run(lake, run_id or "", rows)
    return Answer(text, {"run_id": run_id, "attempts": [attempt(row) for row in rows]})


def attempt(row: Run) -> dict[str, Any]:
    """Return a row of `runs` as JSON values. Snapshot ids are text, because they exceed 2^53."""
    return {
        "topic": row.topic,
        "job": row.job,
        "dag": row.dag,
        "task": row.task,
        "status": row.status,
        "cause": None if row.succeeded else cause_of(row),
        "started": iso(row.started),
        "ended": iso(row.ended),
        "now": iso(row.now),
        "rows_removed": row.rows_removed,
        "files_removed": row.files_removed,
        "bytes_removed": row.bytes_removed,
        "snapshot_ids": [str(snapshot) for snapshot in row.snapshot_ids],
        "result": row.result,
    }
