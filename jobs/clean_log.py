"""clean_log: one cleaner round on each log that is due for one (KIP-534)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.choice import bounds_of_plan
from ebbtide.jobs.clean_log.stage import CleanPlan, execute_clean, plan_clean
from ebbtide.jobs.unfinished import settle, settle_adopted
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, PlannedJob
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName


def propose(session: SparkSession, name: TopicName, order: Order) -> CleanPlan:
    topic, bounds = load(session, name), bounds_of_plan(order.bounds)
    if topic.is_adopted:
        topic = settle_adopted(topic, order.now_ms, is_plan_only=order.is_plan_only)
    else:
        topic = settle(topic, "clean_log", is_plan_only=order.is_plan_only)
    return plan_clean(topic, order.now_ms, bounds, keeps_offsets=order.keeps_offsets)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("clean_log", argv)
    spark = SparkSession.builder.appName("clean_log").getOrCreate()
    return run_planned(
        spark, args, PlannedJob(propose, execute_clean), {name: {} for name in args.topic}
    )


if __name__ == "__main__":
    sys.exit(run_job("clean_log", main))
