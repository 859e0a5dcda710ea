"""configure_topic: checks settings, shows what the next run would remove, and sets them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.configure_topic import (
    ConfigurePlan,
    changes_from_source,
    execute_configure,
    plan_configure,
)
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, Parameters, PlannedJob, removes_records
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName
from ebbtide.specs.settings_changes import parse_changes


def resolve(session: SparkSession, name: TopicName, order: Order) -> Parameters:
    asked = order.parameters
    taken_over = changes_from_source(load(session, name)) if asked["from_source"] else {}
    return {"changes": {**taken_over, **asked["changes"]}}


def propose(session: SparkSession, name: TopicName, order: Order) -> ConfigurePlan:
    topic = load(session, name)
    if not topic.is_adopted:
        topic = settle(topic, "configure_topic", is_plan_only=order.is_plan_only)
    return plan_configure(
        topic,
        order.parameters["changes"],
        order.now_ms,
        order.bounds,
        keeps_offsets=order.keeps_offsets,
    )


def needs_approval(plan: ConfigurePlan) -> bool:
    return removes_records(plan) or bool(plan.removing_more)


CONFIGURE_TOPIC = PlannedJob(
    propose,
    execute_configure,
    is_by_hand=True,
    needs_approval=needs_approval,
    resolve=resolve,
)


def check(args: Namespace) -> None:
    args.changes = parse_changes(args.set, args.unset)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("configure_topic", argv, check)
    spark = SparkSession.builder.appName("configure_topic").getOrCreate()
    asked = {"changes": args.changes, "from_source": args.from_source}
    return run_planned(spark, args, CONFIGURE_TOPIC, dict.fromkeys(args.topic, asked))


if __name__ == "__main__":
    sys.exit(run_job("configure_topic", main))
