"""Clean the same logs in several ways, each run in a fresh process, and keep what it took.

    python -m benchmarks.clean_log --cells 8m-5 --contenders ours,kafka --runs 3

A cell is <records>-<percent dirty>[-zipf][-b<records a batch>]. Runs are interleaved: every cell
and contender once, then all of them again.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.clean_log.contenders.names import (
    ADOPTED_BY_HAND,
    BY_HAND,
    CONTENDERS,
    KAFKA,
    OURS,
    table_of,
)
from benchmarks.clean_log.data.cells import Cell
from benchmarks.clean_log.data.home import BENCH
from benchmarks.clean_log.data.prepared import CellData, prepare
from benchmarks.clean_log.report.kept import CellResults
from benchmarks.clean_log.report.lines import cell_table, run_line
from benchmarks.clean_log.runs import FailedRunError, run_once

STANDARD = f"{OURS},{KAFKA},overwrite,cow-merge,mor-delete"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clean_log",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default="8m-5", help="comma-separated")
    parser.add_argument("--contenders", default=STANDARD, help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--runs", type=int, default=5, help="of each; 0 only prepares the data")
    parser.add_argument("--runs-by-hand", type=int, help="of statements of SQL")
    parser.add_argument("--minutes", type=float, default=1e9, help="no run starts after that")
    parser.add_argument(
        "--resume", action="store_true", help="count what is kept: runs and failures"
    )
    parser.add_argument("--drop", action="store_true", help="remove a cell's data when it is done")
    parser.add_argument("--results", type=Path, default=BENCH / "results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    ends = time.monotonic() + 60 * args.minutes
    contenders: list[str] = args.contenders.split(",")
    if unknown := set(contenders) - set(CONTENDERS):
        raise SystemExit(f"expected contenders of {', '.join(CONTENDERS)}, found {unknown}")
    wanted = dict.fromkeys(contenders, args.runs)
    if args.runs_by_hand is not None:
        by_hand = (*BY_HAND, *ADOPTED_BY_HAND)
        wanted |= {name: args.runs_by_hand for name in contenders if name in by_hand}
    results = [CellResults.of(args.results, cell) for cell in args.cells.split(",")]
    # Cells that are dropped when they are done are done one by one.
    groups = [[result] for result in results] if args.drop else [results]
    with only_benchmark():
        for group in groups:
            run_group(group, wanted, ends, is_resumed=args.resume)
            if args.drop:
                for result in group:
                    shutil.rmtree(BENCH / result.cell, ignore_errors=True)
    for result in results:
        print(f"\n{cell_table(result)}")
    return 1 if any(result.failures for result in results) else 0


@contextmanager
def only_benchmark() -> Iterator[None]:
    """Two at a time would share the cores and the homes that they clean."""
    BENCH.mkdir(parents=True, exist_ok=True)
    with (BENCH / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("another benchmark of clean_log is running; wait for it") from None
        yield


def run_group(
    results: Sequence[CellResults], wanted: dict[str, int], ends: float, *, is_resumed: bool
) -> None:
    """Every run that is wanted and not kept yet; a contender that fails is not run again."""
    is_measured = any(wanted.values())
    if is_measured and not is_resumed:
        for result in results:
            result.forget(wanted)
    missing = {result.cell: result.missing(wanted) for result in results}
    tables = list(filter(None, map(table_of, wanted)))
    data = {
        result.cell: prepare(Cell.parse(result.cell), tables)
        for result in results
        if missing[result.cell] or not is_measured
    }
    for number in range(max(wanted.values())):
        for result in results:
            for contender, count in missing[result.cell].items():
                is_in_time = time.monotonic() < ends
                if number < count and is_in_time and contender not in result.failures:
                    run_and_keep(contender, data[result.cell], result)


def run_and_keep(contender: str, data: CellData, result: CellResults) -> None:
    try:
        run = run_once(contender, data)
    except (FailedRunError, subprocess.TimeoutExpired) as error:
        print(f"{data.cell.name} {contender}: {error}", file=sys.stderr, flush=True)
        result.keep(contender, str(error))
    else:
        result.keep(contender, run)
        print(f"{data.cell.name:14} {run_line(run)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
