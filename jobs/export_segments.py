"""export_segments: writes a topic's tables as segment files of a broker's log directory."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.topics import load
from ebbtide.jobs.export_segments import Export, execute_export, plan_export
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def check(args: Namespace) -> None:
    if (named := len(args.topic)) > 1:
        raise RequestError(f"expected one --topic, since it fills its target, found {named}")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("export_segments", argv, check)
    export = Export(args.target, args.run_id, tuple(args.partition))
    spark = SparkSession.builder.appName("export_segments").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "export_segments", is_plan_only=args.plan_only)
        plan = plan_export(topic, export)
        return plan.outcome() if args.plan_only else execute_export(plan)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("export_segments", main))
