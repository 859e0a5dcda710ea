"""repair_state: takes back what others did to a topic, or rebuilds its state from its tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.rebuilding import Asked, parse_asked
from ebbtide.runs.application import job_parser, run_job, run_unchecked, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.repair_state.stage import execute_repair, plan_repair
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("repair_state", __doc__ or "")
    parser.add_argument(
        "--keep-changes",
        action="store_true",
        help="leave the tables as others left them, and rebuild the state from them",
    )
    for option, what in (
        ("--log-start-offset", "where a partition starts, if its batches do not tell"),
        ("--max-event-time-ms", "the largest event time that a partition ever held"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="P=N", help=what)
    args = parser.parse_args(argv)
    try:
        asked = Asked(
            parse_asked("--log-start-offset", args.log_start_offset),
            parse_asked("--max-event-time-ms", args.max_event_time_ms),
        )
    except RequestError as error:
        parser.error(str(error))
    spark = SparkSession.builder.appName("repair_state").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        plan = plan_repair(session, name, to_ms(args.now), asked, keeps=args.keep_changes)
        settle(plan.topic, "repair_state", is_plan_only=args.plan_only)
        return plan.outcome() if args.plan_only else execute_repair(plan)

    return run_unchecked(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("repair_state", main))
