"""undo_run: gives back what a run removed, and the later runs of the same partitions with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.runs.application import run_job
from ebbtide.runs.plan_arguments import parse_planned, planned_parser
from ebbtide.runs.planned_jobs import run_planned
from ebbtide.stages.undo_run.stage import UNDO


def main(argv: Sequence[str] | None = None) -> int:
    parser = planned_parser("undo_run", __doc__ or "")
    parser.add_argument("--run", metavar="RUN_ID", help="the run in lake.ebbtide.runs to undo")
    args = parse_planned(parser, argv, ("topic", "now", "run"))
    spark = SparkSession.builder.appName("undo_run").getOrCreate()
    return run_planned(spark, args, UNDO, {name: {"run": args.run} for name in args.topic or ()})


if __name__ == "__main__":
    sys.exit(run_job("undo_run", main))
