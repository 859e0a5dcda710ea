"""Measure each job on many partitions, segments and topics, and on twice as many.

    python -m benchmarks.scale [--cases partitions,runs] [--factor 0.1 | --counts 50,100] [--again]

Each job is a spark-submit of its own, as in a night; times hold its start. A case that is kept in
the results is not measured again.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.clean_log.data.home import BENCH
from benchmarks.scale.cases import CASES, run
from benchmarks.scale.kept import Kept, KeptStep, step_line
from tests.lake_sandbox import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "scale"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--counts", help="instead of each case's own two, comma-separated")
    parser.add_argument("--factor", type=float, default=1.0, help="times each case's own two")
    parser.add_argument("--again", action="store_true", help="measure kept ones again")
    parser.add_argument("--directory", type=Path, default=BENCH / "scale", help="of the lakes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    counts = tuple(map(int, args.counts.split(","))) if args.counts else None
    for name in args.cases.split(","):
        own = (max(1, round(count * args.factor)) for count in CASES[name].counts)
        for count in counts or own:
            if args.again:
                Kept.forget(args.results, name, count)
            _measure(Kept.begun(args.results, name, count), args.directory)


def _measure(kept: Kept, directory: Path) -> None:
    """Do the steps of a case, unless it is complete, and keep each as soon as it is done."""
    if kept.is_complete:
        print(f"{kept.case} {kept.count:>7,}  is kept of {kept.date}", flush=True)
        return
    for step in run(kept.case, kept.count, directory):
        of_step = KeptStep.of(step)
        kept.add(of_step)
        print(step_line(kept.case, kept.count, of_step), flush=True)
    kept.complete()


if __name__ == "__main__":
    main()
