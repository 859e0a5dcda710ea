"""expire_segments: retention by size, wall clock and event time (KIP-870)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.expire_segments import ExpirePlan, execute_expire, plan_expire
from ebbtide.jobs.unfinished import settle, settle_adopted
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, PlannedJob
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName


def propose(session: SparkSession, name: TopicName, order: Order) -> ExpirePlan:
    topic = load(session, name)
    if topic.is_adopted:
        topic = settle_adopted(topic, order.now_ms, is_plan_only=order.is_plan_only)
    else:
        topic = settle(topic, "expire_segments", is_plan_only=order.is_plan_only)
    return plan_expire(topic, order.now_ms, order.bounds, keeps_offsets=order.keeps_offsets)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("expire_segments", argv)
    spark = SparkSession.builder.appName("expire_segments").getOrCreate()
    job = PlannedJob(propose, execute_expire)
    return run_planned(spark, args, job, {name: {} for name in args.topic})


if __name__ == "__main__":
    sys.exit(run_job("expire_segments", main))
