"""ingest_segments: appends a broker's log directory, or a copy of one, to the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, UnknownTopicError
from ebbtide.iceberg.catalog import catalog_store
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.runner.application import refuse, run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("ingest_segments", argv)
    spark = SparkSession.builder.appName("ingest_segments").getOrCreate()
    try:
        source = Source.of_uri(
            args.source,
            args.now,
            accept_gap=args.accept_gap,
            settings=dict(args.set),
            store=catalog_store(spark),
        )
        topics = select_topics(source, args.cluster, args.topic)
    except EbbtideError as error:
        return refuse("ingest_segments", error)

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        return ingest_segments(session, name, source, is_plan_only=args.plan_only)

    return run_topics(spark, args, topics, work)


def select_topics(source: Source, cluster: str, wanted: Sequence[TopicName]) -> list[TopicName]:
    topics = [TopicName(cluster, topic) for topic in source.topics()]
    missing = [name for name in wanted if name.cluster != cluster or not source.of(name)]
    if missing:
        raise UnknownTopicError(
            f"expected {', '.join(map(str, missing))} in {source.uri}, found "
            f"{', '.join(map(str, topics)) or 'no topic'}"
        )
    return sorted(set(wanted)) or topics


if __name__ == "__main__":
    sys.exit(run_job("ingest_segments", main))
