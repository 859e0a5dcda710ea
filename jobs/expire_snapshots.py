"""expire_snapshots: frees files that no kept snapshot needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.topics import load
from ebbtide.jobs.expire_snapshots import (
    NOTE,
    Due,
    SnapshotsPlan,
    execute_expire_snapshots,
    free_held,
    tidy_runs,
)
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import run_job, run_topics
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, Parameters, PlannedJob
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName


def resolve(session: SparkSession, name: TopicName, _: Order) -> Parameters:
    topic = load(session, name)
    if topic.is_adopted:
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes to plan on, found {name}, which was "
            f"adopted: {NOTE}"
        )
    return Due.of(topic).to_parameters()


def propose(session: SparkSession, name: TopicName, order: Order) -> SnapshotsPlan:
    topic = settle(load(session, name), "expire_snapshots", is_plan_only=order.is_plan_only)
    return SnapshotsPlan(topic, Due.of_parameters(order.parameters))


def execute(plan: SnapshotsPlan) -> JobOutcome:
    return execute_expire_snapshots(plan.topic, plan.due)


EXPIRE_SNAPSHOTS = PlannedJob(propose, execute, resolve=resolve)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("expire_snapshots", argv)
    spark = SparkSession.builder.appName("expire_snapshots").getOrCreate()
    if args.plan_only or args.plan:
        return run_planned(spark, args, EXPIRE_SNAPSHOTS, {name: {} for name in args.topic})

    def work(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = load(session, name)
        if topic.is_adopted:
            return free_held(topic)
        return execute_expire_snapshots(settle(topic, "expire_snapshots"))

    code = run_topics(spark, args, args.topic, work)
    tidy_runs(spark, datetime.now(UTC))
    return code


if __name__ == "__main__":
    sys.exit(run_job("expire_snapshots", main))
