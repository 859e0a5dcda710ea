"""configure_topic: checks settings, shows what the next run would remove, and sets them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.changes import parse_changes
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import job_parser, run_job, run_topics, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.configure_topic.source_settings import changes_from_source
from ebbtide.stages.configure_topic.stage import execute_configure, plan_configure
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("configure_topic", __doc__ or "")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--unset", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--from-source", action="store_true", help="take over what the topic's brokers have"
    )
    args = parser.parse_args(argv)
    try:
        changes = parse_changes(args.set, args.unset)
    except ConfigurationError as error:
        parser.error(str(error))
    spark = SparkSession.builder.appName("configure_topic").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "configure_topic", is_plan_only=args.plan_only)
        taken_over = changes_from_source(topic) if args.from_source else {}
        plan = plan_configure(topic, {**taken_over, **changes}, to_ms(args.now))
        return plan.outcome() if args.plan_only else execute_configure(plan)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(run_job("configure_topic", main))
