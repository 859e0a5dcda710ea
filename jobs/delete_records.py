"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.log.delete_records import ErrorCode
from ebbtide.log.delete_request import parse_request
from ebbtide.log.names import TopicName
from ebbtide.tables.application import argument, job_parser, run_topics, to_ms
from ebbtide.tables.commits import refusal_of
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.clean import finish_round
from ebbtide.tables.stages.delete_records import execute_delete, plan_delete, refuse_topic
from ebbtide.tables.stages.requested_offsets import resolve_offsets
from ebbtide.tables.topics import exists, load


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("delete_records", __doc__ or "", has_topics=False)
    parser.add_argument(
        "--request",
        required=True,
        type=argument(parse_request),
        metavar="JSON",
        help="topics, and up to where: by offset, timestamp, age or consumer groups",
    )
    args = parser.parse_args(argv)
    request, now_ms = args.request, to_ms(args.now)
    spark = SparkSession.builder.appName("delete_records").getOrCreate()

    def delete(session: SparkSession, name: TopicName) -> Outcome:
        if not exists(session, name):
            return refuse_topic(request.topics[name], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic = load(session, name) if args.plan_only else finish_round(load(session, name))
        requested = resolve_offsets(topic, request.topics[name], now_ms)
        plan = plan_delete(topic, requested.offsets, now_ms)
        return requested.add_to(plan.outcome() if args.plan_only else execute_delete(plan))

    def work(session: SparkSession, name: TopicName) -> Outcome:
        try:
            return delete(session, name)
        except Py4JJavaError as error:
            if refusal := refusal_of(error):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return refuse_topic(request.topics[name], code, refusal)
            raise

    return run_topics(spark, args, sorted(request.topics), work)


if __name__ == "__main__":
    sys.exit(main())
