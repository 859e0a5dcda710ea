"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.requests.delete_request import parse_request, read_request
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import argument, job_parser, run_job, run_topics, to_ms
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.delete_records.stage import answer_request


def main(argv: Sequence[str] | None = None) -> int:
    parser = job_parser("delete_records", __doc__ or "", has_topics=False)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--request",
        type=argument(parse_request),
        metavar="JSON",
        help="topics, and up to where: by offset, timestamp, age or consumer groups",
    )
    given.add_argument(
        "--request-file",
        dest="request",
        type=argument(read_request),
        metavar="PATH",
        help="the same in a file that the driver reads",
    )
    args = parser.parse_args(argv)
    request, now_ms = args.request, to_ms(args.now)
    spark = SparkSession.builder.appName("delete_records").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        asked, timeout_ms = request.topics[name], request.timeout_ms
        return answer_request(session, name, asked, now_ms, timeout_ms, plan_only=args.plan_only)

    return run_topics(spark, args, sorted(request.topics), work)


if __name__ == "__main__":
    sys.exit(run_job("delete_records", main))
