"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.log.requests.delete_request import DeleteRequest, parse_request, read_request
from ebbtide.runs.application import argument, run_job
from ebbtide.runs.plan_arguments import parse_planned, planned_parser
from ebbtide.runs.planned_jobs import run_planned
from ebbtide.stages.delete_records.stage import DELETE_RECORDS, delete_parameters


def main(argv: Sequence[str] | None = None) -> int:
    parser = planned_parser("delete_records", __doc__ or "", has_topics=False)
    given = parser.add_mutually_exclusive_group()
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
    args = parse_planned(parser, argv, ("request", "now"))
    spark = SparkSession.builder.appName("delete_records").getOrCreate()
    request: DeleteRequest = args.request or DeleteRequest({})
    parameters = {
        name: delete_parameters(name, request.topics[name], request.timeout_ms)
        for name in sorted(request.topics)
    }
    return run_planned(spark, args, DELETE_RECORDS, parameters)


if __name__ == "__main__":
    sys.exit(run_job("delete_records", main))
