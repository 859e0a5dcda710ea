"""repair_state: takes back what others did to a topic, or rebuilds its state from its tables."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.jobs.repair_state import REPAIR_STATE, asked_parameters
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.stored_plans import run_planned
from ebbtide.state.rebuilding import RepairInput, parse_asked


def check(args: Namespace) -> None:
    args.asked = RepairInput(
        parse_asked("--log-start-offset", args.log_start_offset),
        parse_asked("--max-event-time-ms", args.max_event_time_ms),
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("repair_state", argv, check)
    spark = SparkSession.builder.appName("repair_state").getOrCreate()
    parameters = asked_parameters(args.asked, keeps=args.keep_changes)
    return run_planned(spark, args, REPAIR_STATE, dict.fromkeys(args.topic, parameters))


if __name__ == "__main__":
    sys.exit(run_job("repair_state", main))
