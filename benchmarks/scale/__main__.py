"""Measure each job on many partitions, segments and topics, and on twice as many.

    python -m benchmarks.scale [--cases partitions,topics] [--counts 500,1000]

Each job is a spark-submit of its own, as in a night; times hold its start.
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
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    counts = tuple(map(int, args.counts.split(","))) if args.counts else None
    for name in args.cases.split(","):
        for count in counts or CASES[name].counts:
            kept = Kept.begun(args.results, name, count)
            for step in run(name, count, BENCH / "scale"):
                of_step = KeptStep.of(step)
                kept.add(of_step)
                print(step_line(name, count, of_step), flush=True)


if __name__ == "__main__":
    main()
