"""ingest_topic: appends live topics to the tables, up to what their brokers have now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.jobs.ingest_topic import LiveSource, choose_topics, ingest_topic
from ebbtide.kafka.live_offsets import Isolation
from ebbtide.runner.application import refuse, run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("ingest_topic", argv)
    source = LiveSource(args.connection, args.now, Isolation(args.isolation), args.accept_gap)
    try:
        topics = choose_topics(source, args.cluster, args.topic, args.topics_pattern)
    except EbbtideError as error:
        return refuse("ingest_topic", error)
    spark = SparkSession.builder.appName("ingest_topic").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        return ingest_topic(session, name, source, is_plan_only=args.plan_only)

    return run_topics(spark, args, topics, work)


if __name__ == "__main__":
    sys.exit(run_job("ingest_topic", main))
