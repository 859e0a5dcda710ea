"""expire_segments: retention by size, wall clock and event time (KIP-870)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import job_parser, run_job, run_topics, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.expire_segments.stage import execute_expire, plan_expire
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("expire_segments", __doc__ or "")
    parser.add_argument(
        "--accept-plan",
        action="append",
        default=[],
        metavar="ID",
        help="a plan that may remove more than ebbtide.max.delete.ratio; repeat for more",
    )
    args = parser.parse_args(argv)
    spark = SparkSession.builder.appName("expire_segments").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "expire_segments", is_plan_only=args.plan_only)
        plan = plan_expire(topic, to_ms(args.now))
        return plan.outcome() if args.plan_only else execute_expire(plan, args.accept_plan)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("expire_segments", main))
