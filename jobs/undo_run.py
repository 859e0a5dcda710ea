"""undo_run: gives back what a run removed, and the later runs of the same partitions with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.jobs.undo_run.stage import UNDO
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.stored_plans import run_planned


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("undo_run", argv)
    spark = SparkSession.builder.appName("undo_run").getOrCreate()
    return run_planned(spark, args, UNDO, {name: {"run": args.run} for name in args.topic})


if __name__ == "__main__":
    sys.exit(run_job("undo_run", main))
