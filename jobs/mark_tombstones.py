"""mark_tombstones: finds the tombstones among the records not marked yet (KIP-87)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.requests.from_offset import parse_from_offset
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import argument, job_parser, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.mark_tombstones.quarantine import RunOf
from ebbtide.stages.mark_tombstones.stage import execute_mark, plan_mark
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("mark_tombstones", __doc__ or "")
    parser.add_argument(
        "--from-offset",
        action="append",
        default=[],
        type=argument(parse_from_offset),
        metavar="[PARTITION:]OFFSET",
        help="mark again from there what is not cleaned, by the rules of now; repeat for more",
    )
    args = parser.parse_args(argv)
    if args.from_offset and len(args.topic) > 1:
        parser.error(f"expected one --topic with --from-offset, found {len(args.topic)}")
    spark = SparkSession.builder.appName("mark_tombstones").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "mark_tombstones", is_plan_only=args.plan_only)
        plan = plan_mark(topic, args.from_offset)
        run = RunOf(args.run_id, args.now)
        return plan.outcome() if args.plan_only else execute_mark(plan, run)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("mark_tombstones", main))
