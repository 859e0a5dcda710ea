"""mark_tombstones: finds the tombstones among the records not marked yet (KIP-87)."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ebbtide.errors import RequestError
from ebbtide.iceberg.topics import load
from ebbtide.jobs.mark_tombstones import MarkPlan, execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import run_job
from ebbtide.runner.command_line import parse_job
from ebbtide.runner.proposals import Order, PlannedJob
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.stored_plans import run_planned
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import parse_from_offset


def propose(session: SparkSession, name: TopicName, order: Order) -> MarkPlan:
    topic = settle(load(session, name), "mark_tombstones", is_plan_only=order.is_plan_only)
    again = [parse_from_offset(text) for text in order.parameters["from_offset"]]
    return replace(plan_mark(topic, again, order.bounds), now_ms=order.now_ms)


def check(args: Namespace) -> None:
    if args.from_offset and len(args.topic) > 1:
        raise RequestError(f"expected one --topic with --from-offset, found {len(args.topic)}")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_job("mark_tombstones", argv, check)
    spark = SparkSession.builder.appName("mark_tombstones").getOrCreate()

    def execute(plan: MarkPlan) -> JobOutcome:
        now = datetime.fromtimestamp(plan.now_ms / 1000, UTC)
        return execute_mark(plan, RunOf(args.run_id, now))

    # A night follows the settings, and only who marks again asks for something by hand.
    job = PlannedJob(propose, execute, is_by_hand=bool(args.from_offset))
    asked = {"from_offset": [str(of) for of in args.from_offset]}
    return run_planned(spark, args, job, dict.fromkeys(args.topic, asked))


if __name__ == "__main__":
    sys.exit(run_job("mark_tombstones", main))
