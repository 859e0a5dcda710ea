"""repair_state: takes back what others did to a topic, or rebuilds its state from its tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.log.state.rebuilding import Asked, parse_asked
from ebbtide.runs.application import run_job
from ebbtide.runs.plan_arguments import parse_planned, planned_parser
from ebbtide.runs.planned_jobs import run_planned
from ebbtide.stages.repair_state.stage import REPAIR_STATE, asked_parameters

BY_PARTITION = {
    "log_start_offset": "where a partition starts, if its batches do not tell",
    "max_event_time_ms": "the largest event time that a partition ever held",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = planned_parser("repair_state", __doc__ or "")
    parser.add_argument(
        "--keep-changes",
        action="store_true",
        help="leave the tables as others left them, and rebuild the state from them",
    )
    for name, what in BY_PARTITION.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, action="append", default=[], metavar="P=N", help=what)
    args = parse_planned(parser, argv, ("topic", "now"), ("keep_changes", *BY_PARTITION))
    try:
        asked = Asked(
            parse_asked("--log-start-offset", args.log_start_offset),
            parse_asked("--max-event-time-ms", args.max_event_time_ms),
        )
    except RequestError as error:
        parser.error(str(error))
    spark = SparkSession.builder.appName("repair_state").getOrCreate()
    parameters = asked_parameters(asked, keeps=args.keep_changes)
    return run_planned(spark, args, REPAIR_STATE, dict.fromkeys(args.topic or (), parameters))


if __name__ == "__main__":
    sys.exit(run_job("repair_state", main))
