"""replicate_log: copies missing records and batches to each replica of a topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import run_job, run_topics, to_ms
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("replicate_log", argv)
    spark = SparkSession.builder.appName("replicate_log").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "replicate_log", is_plan_only=args.plan_only)
        plan = plan_replicate(topic)
        return plan.outcome() if args.plan_only else execute_replicate(plan, to_ms(args.now))

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("replicate_log", main))
