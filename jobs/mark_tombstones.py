"""mark_tombstones: finds the tombstones among the records not marked yet (KIP-87)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.names import TopicName
from ebbtide.tables.application import job_parser, run_topics
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.mark import execute_mark, plan_mark
from ebbtide.tables.topics import load


def main(argv: Sequence[str] | None = None) -> int:
    args = job_parser("mark_tombstones", __doc__ or "").parse_args(argv)
    spark = SparkSession.builder.appName("mark_tombstones").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> Outcome:
        plan = plan_mark(load(session, name))
        return plan.outcome() if args.plan_only else execute_mark(plan)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(main())
