"""ingest_segments: appends a broker's log directory, or a copy of one, to the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, UnknownTopicError
from ebbtide.iceberg.table_store import catalog_store
from ebbtide.log.settings.changes import parse_setting
from ebbtide.log.settings.credentials import check_uri
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import argument, job_parser, refuse, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.ingest_segments.stage import Source, ingest_segments


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("ingest_segments", __doc__ or "", has_topics=False)
    parser.add_argument(
        "--source", required=True, type=argument(check_uri), metavar="URI", help="the log directory"
    )
    parser.add_argument("--cluster", required=True, help="the namespace the topics go to")
    parser.add_argument(
        "--topic",
        action="append",
        type=argument(TopicName.parse),
        metavar="CLUSTER.TOPIC",
        help="only this topic; repeat for more",
    )
    parser.add_argument("--accept-gap", action="store_true", help="take a log with lost offsets")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=argument(parse_setting),
        metavar="NAME=VALUE",
        help="a setting of the topics that this run creates; repeat for more",
    )
    args = parser.parse_args(argv)
    spark = SparkSession.builder.appName("ingest_segments").getOrCreate()
    try:
        source = Source.of_uri(
            args.source,
            args.now,
            accept_gap=args.accept_gap,
            settings=dict(args.set),
            store=catalog_store(spark),
        )
        topics = select_topics(source, args.cluster, args.topic or ())
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
