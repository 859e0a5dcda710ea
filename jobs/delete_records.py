"""delete_records: a DeleteRecords request on the tables (KIP-107)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.jobs.delete_records.stage import DELETE_RECORDS, delete_parameters
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.stored_plans import run_planned
from ebbtide.specs.delete_request import DeleteRequest


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("delete_records", argv)
    spark = SparkSession.builder.appName("delete_records").getOrCreate()
    request: DeleteRequest = args.request or DeleteRequest({})
    parameters = {
        name: delete_parameters(name, request.topics[name], request.timeout_ms)
        for name in sorted(request.topics)
    }
    return run_planned(spark, args, DELETE_RECORDS, parameters)


if __name__ == "__main__":
    sys.exit(run_job("delete_records", main))
