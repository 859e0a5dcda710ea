"""List runs, newest first: start, topics, failures, and removed records and bytes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide import open_lake
from ebbtide.commands.answer import Answer, iso
from ebbtide.lake.runs import Attempts, by_run
from ebbtide.ledger.own_tables import Attempt
from ebbtide.local.progress import working
from ebbtide.numbers import whole_argument
from ebbtide.text import aligned, number, size, without_empty

HEADER = ("run", "dag", "started (UTC)", "topics", "failed", "records\nremoved", "bytes\nremoved")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the filters."""
    parser.add_argument(
        "--topic",
        action="append",
        metavar="CLUSTER.TOPIC",
        help="only runs on this topic; repeat for more topics",
    )
    parser.add_argument("--dag", help="only runs of this DAG")
    parser.add_argument("--failed", action="store_true", help="only runs in which a topic failed")
    parser.add_argument(
        "--days",
        type=whole_argument(most=36_500),
        default=30,
        help="only runs of the last DAYS days [30]",
    )
    parser.add_argument(
        "--limit", type=whole_argument(least=1), default=20, help="number of runs to list [20]"
    )


def answer(args: argparse.Namespace) -> Answer:
    """Return one line per run."""
    chosen: dict[str, Any] = {"topic": args.topic, "dag": args.dag}
    given = {column: value for column, value in chosen.items() if value}
    with open_lake() as lake, working("reading the runs"):
        rows = lake.attempts(datetime.now(UTC) - timedelta(days=args.days), **given)
    runs = [described(run) for run in by_run(rows)]
    runs.sort(key=lambda run: run["started"], reverse=True)
    shown = [run for run in runs if run["failed"] or not args.failed][: args.limit]
    return Answer(_text(shown, args.days), {"runs": shown})


def described(run: Attempts[Attempt]) -> dict[str, Any]:
    """Return a run as JSON values. `failed` has the topics whose last attempt failed."""
    return {
        "run_id": run.last.run_id,
        "dag": run.last.dag,
        "started": iso(run.started),
        "ended": iso(run.ended),
        "now": iso(run.last.now),
        "topics": run.topics,
        "failed": run.failed_topics,
        "rows_removed": run.rows_removed,
        "bytes_removed": run.bytes_removed,
    }


def _text(runs: Sequence[Mapping[str, Any]], days: int) -> str:
    if not runs:
        return f"no such run in the last {days} days"
    return aligned(*without_empty(HEADER, [_row(run) for run in runs]))


def _row(run: Mapping[str, Any]) -> list[str]:
    return [
        run["run_id"],
        run["dag"] or "-",
        str(run["started"])[:16].replace("T", " "),
        number(len(run["topics"])),
        number(len(run["failed"]) or None),
        number(run["rows_removed"]),
        size(run["bytes_removed"]),
    ]
