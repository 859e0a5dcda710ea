"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.delete_records import parse_request
from ebbtide.log.names import TopicName
from ebbtide.tables.application import argument, job_parser, run_topics, to_ms
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.clean import finish_round
from ebbtide.tables.stages.delete_records import answer_unknown_topic, execute_delete, plan_delete
from ebbtide.tables.topics import exists, load


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("delete_records", __doc__ or "", has_topics=False)
    parser.add_argument(
        "--request",
        required=True,
        type=argument(parse_request),
        metavar="JSON",
        help="topics and offsets, in the shape of the KIP",
    )
    args = parser.parse_args(argv)
    request = args.request
    spark = SparkSession.builder.appName("delete_records").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> Outcome:
        requested = request[name]
        if not exists(session, name):
            return answer_unknown_topic(requested)
        topic = load(session, name)
        if args.plan_only:
            return plan_delete(topic, requested, to_ms(args.now)).outcome()
        return execute_delete(plan_delete(finish_round(topic), requested, to_ms(args.now)))

    return run_topics(spark, args, sorted(request), work)


if __name__ == "__main__":
    sys.exit(main())
