"""expire_snapshots: frees files that no kept snapshot needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.application import job_parser, run_job, run_topics
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.expire_snapshots.stage import (
    execute_expire_snapshots,
    plan_expire_snapshots,
)
from ebbtide.stages.expire_snapshots.tidy_runs import tidy_runs
from ebbtide.stages.unfinished import settle


def main(argv: Sequence[str] | None = None) -> int:
    args = job_parser("expire_snapshots", __doc__ or "").parse_args(argv)
    spark = SparkSession.builder.appName("expire_snapshots").getOrCreate()

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "expire_snapshots", is_plan_only=args.plan_only)
        return plan_expire_snapshots(topic) if args.plan_only else execute_expire_snapshots(topic)

    code = run_topics(spark, args, args.topic, work)
    if not args.plan_only:
        tidy_runs(spark, datetime.now(UTC))
    return code


if __name__ == "__main__":
    sys.exit(run_job("expire_snapshots", main))
