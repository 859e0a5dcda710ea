"""adopt_table: recognises a table that others write, and keeps it as a topic from then on."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.adopted.layout import Choices
from ebbtide.log.settings.changes import parse_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import run_job, run_topics, to_ms
from ebbtide.runs.command_line import parse_job
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.adopt_table.stage import execute_adoption, plan_adoption


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
