"""ingest_table: copies the new rows of another tool's tables to topics of ebbtide."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.adopted.copied_rows import copied_topics
from ebbtide.jobs.ingest_table import TableSource, ingest_table
from ebbtide.jobs.quarantine import RunOf
from ebbtide.layouts.layout import Choices
from ebbtide.runner.application import run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def check(args: Namespace) -> None:
    choices = Choices.of(args)
    if (args.source is not None or any(choices)) and len(args.topic) != 1:
        raise RequestError("expected one --topic with --source or columns")
    args.table = TableSource(
        args.now, args.source, choices, args.profile or "", args.source_topic or ""
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("ingest_table", argv, check)
    spark = SparkSession.builder.appName("ingest_table").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        run = RunOf(args.run_id, args.now)
        return ingest_table(session, name, args.table, run, is_plan_only=args.plan_only)

    return run_topics(spark, args, args.topic or copied_topics(spark), work)


if __name__ == "__main__":
    sys.exit(run_job("ingest_table", main))
