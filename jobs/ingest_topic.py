"""ingest_topic: appends live topics to the tables, up to what their brokers have now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError
from ebbtide.log.live_offsets import Isolation
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import argument, job_parser, refuse, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.ingest_topic.stage import LiveSource, choose_topics, ingest_topic


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("ingest_topic", __doc__ or "", has_topics=False)
    parser.add_argument("--connection", required=True, help="the Kafka connection, by its id")
    parser.add_argument("--cluster", required=True, help="the namespace the topics go to")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=argument(TopicName.parse),
        metavar="CLUSTER.TOPIC",
        help="a topic to take; repeat for more",
    )
    parser.add_argument("--topics-pattern", metavar="REGEX", help="all topics whose name it is")
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
