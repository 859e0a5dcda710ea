"""abandon_table: takes away all that adopt_table has written; the table's rows stay."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.runner.application import run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("abandon_table", argv)
    spark = SparkSession.builder.appName("abandon_table").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        plan = plan_abandonment(session, name)
        return plan.outcome() if args.plan_only else execute_abandonment(plan)

    return run_topics(spark, args, args.topic, work, is_checked=False)


if __name__ == "__main__":
    sys.exit(run_job("abandon_table", main))
