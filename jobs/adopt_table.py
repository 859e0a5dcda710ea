"""adopt_table: recognises another tool's table, and makes it a topic."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.jobs.adopt_table import execute_adoption, plan_adoption
from ebbtide.layouts.layout import Choices
from ebbtide.runner.application import run_job, run_topics, to_ms
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.specs.settings_changes import parse_changes


def check(args: Namespace) -> None:
    args.settings = parse_changes(args.set, ())


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("adopt_table", argv, check)
    choices = Choices.of(args)
    spark = SparkSession.builder.appName("adopt_table").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        now_ms = to_ms(args.now)
        plan = plan_adoption(
            session, name, choices, args.settings, now_ms, profile=args.profile or ""
        )
        return plan.outcome() if args.plan_only else execute_adoption(plan)

    return run_topics(spark, args, args.topic, work, is_checked=False)


if __name__ == "__main__":
    sys.exit(run_job("adopt_table", main))
