"""ingest_segments: a broker's log directory, or a copy of one, goes into the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import UnknownTopicError
from ebbtide.log.names import TopicName
from ebbtide.records.log_directory import list_log_directory, read_manifest
from ebbtide.tables.application import job_parser, run_topics
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.ingest import Source, ingest_topic


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("ingest_segments", __doc__ or "", has_topics=False)
    parser.add_argument("--source", required=True, metavar="URI", help="the log directory")
    parser.add_argument("--cluster", required=True, help="the namespace the topics go to")
    parser.add_argument(
        "--topic",
        action="append",
        type=TopicName.parse,
        metavar="CLUSTER.TOPIC",
        help="only this topic; repeat for more",
    )
    parser.add_argument("--accept-gap", action="store_true", help="take a log with lost offsets")
    args = parser.parse_args(argv)
    source = Source(
        list_log_directory(args.source), read_manifest(args.source), args.now, args.accept_gap
    )
    found = {TopicName.checked(args.cluster, d.topic) for d in source.directories}
    missing = set(args.topic or ()) - found
    if missing:
        raise UnknownTopicError(
            f"expected {', '.join(map(str, sorted(missing)))} in {args.source}, found "
            f"{', '.join(map(str, sorted(found))) or 'no topic'}"
        )
    spark = SparkSession.builder.appName("ingest_segments").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> Outcome:
        return ingest_topic(session, name, source, is_plan_only=args.plan_only)

    return run_topics(spark, args, sorted(args.topic or found), work)


if __name__ == "__main__":
    sys.exit(main())
