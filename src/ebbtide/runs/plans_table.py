"""`lake.ebbtide.plans` and `plan_events`: kept plans and what became of them; rows never change."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.small_appends import prepare_append
from ebbtide.iceberg.schema import PLAN_EVENTS_TABLE, PLANS_TABLE, create_plans
from ebbtide.log.plans.events import PlanEvent
from ebbtide.log.plans.plan import Plan

_TIME = pa.timestamp("us", tz="UTC")
_PLANS = pa.schema(
    [
        *((n, pa.string()) for n in ("plan_id", "job", "topic", "run_id", "dag", "requested_by")),
        *((name, _TIME) for name in ("made_at", "expires_at", "now")),
        *((name, pa.string()) for name in ("parameters", "bounds", "snapshots")),
        ("removes", pa.map_(pa.int32(), pa.binary())),
        *((name, pa.string()) for name in ("summary", "text", "digest")),
    ]
)
_EVENTS = pa.schema(
    [
        *((name, pa.string()) for name in ("plan_id", "digest", "event", "by")),
        ("at", _TIME),
        *((name, pa.string()) for name in ("note", "run_id", "numbers")),
    ]
)
# Topics are planned in threads, and a catalog may check and create in two steps.
_ONE_AT_A_TIME = Lock()


def append_plan(spark: SparkSession, plan: Plan) -> None:
    """Keep the plan."""
    _append(spark, Step.PLAN_ROW, PLANS_TABLE, plan.to_row(), _PLANS, "made_at")


def append_event(spark: SparkSession, event: PlanEvent) -> None:
    """Keep what became of a plan."""
    _append(spark, Step.PLAN_EVENT, PLAN_EVENTS_TABLE, event.to_row(), _EVENTS, "at")


def read_plans(spark: SparkSession, plan_ids: Sequence[str]) -> list[Plan]:
    """Return the plans that there are of these, in no order."""
    return [Plan.of_row(row) for row in _rows(spark, PLANS_TABLE, {"plan_id": plan_ids})]


def read_plans_of(spark: SparkSession, job: str, topic: str) -> list[Plan]:
    """Return all plans of a job for a topic, in no order."""
    rows = _rows(spark, PLANS_TABLE, {"job": [job], "topic": [topic]})
    return [Plan.of_row(row) for row in rows]


def read_events(spark: SparkSession, plan_ids: Sequence[str]) -> dict[str, list[PlanEvent]]:
    """Return the events of each of these plans."""
    events: dict[str, list[PlanEvent]] = {plan_id: [] for plan_id in plan_ids}
    for row in _rows(spark, PLAN_EVENTS_TABLE, {"plan_id": plan_ids}):
        events[row["plan_id"]].append(PlanEvent.of_row(row))
    return events


def _append(
    spark: SparkSession, step: Step, table: str, row: dict[str, Any], schema: pa.Schema, day: str
) -> None:
    with _ONE_AT_A_TIME:
        if not table_exists(spark, table):
            create_plans(spark)
    rows = pa.Table.from_pylist([row], schema=schema)
    commit(step, prepare_append(spark, table, rows, day))


def _rows(
    spark: SparkSession, table: str, equals: dict[str, Sequence[str]]
) -> list[dict[str, Any]]:
    if not table_exists(spark, table):
        return []
    rows = spark.table(table)
    for column, values in equals.items():
        rows = rows.where(F.col(column).isin(list(values)))
    listed: list[dict[str, Any]] = rows.toArrow().to_pylist()
    return listed
