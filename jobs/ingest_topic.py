"""ingest_topic: a live topic goes into the tables, as far as its brokers have it now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.live import Isolation
from ebbtide.log.names import TopicName
from ebbtide.tables.application import job_parser, run_topics
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.live import LiveSource, ingest_live_topic


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("ingest_topic", __doc__ or "")
    parser.add_argument("--connection", required=True, help="the Kafka connection, by its id")
    parser.add_argument(
        "--isolation",
        type=Isolation,
        choices=list(Isolation),
        default=Isolation.READ_COMMITTED,
        help="what of transactions is taken",
    )
    parser.add_argument("--accept-gap", action="store_true", help="go on without lost offsets")
    args = parser.parse_args(argv)
    source = LiveSource(args.connection, args.now, args.isolation, args.accept_gap)
    spark = SparkSession.builder.appName("ingest_topic").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> Outcome:
        return ingest_live_topic(session, name, source, is_plan_only=args.plan_only)

    return run_topics(spark, args, args.topic, work)


if __name__ == "__main__":
    sys.exit(main())
