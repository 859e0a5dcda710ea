"""Holds of tests, and what was kept for them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import table_exists
from ebbtide.log.holds import Event, Hold, Kind
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.holds_table import append_hold

MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)


def hold_on(name: TopicName, hold_id: str = "h-1", **changes: Any) -> Hold:
    """A hold on all of the topic, for case 7."""
    return Hold(
        **{
            "hold_id": hold_id,
            "event": Event.MADE,
            "at": MADE,
            "by": "ann",
            "run_id": "run-1",
            "kind": Kind.KEEP,
            "topic": f"{name.cluster}.{name.topic}",
            "case_id": "7",
            **changes,
        }
    )


def make_hold(spark: SparkSession, name: TopicName, hold_id: str = "h-1", **changes: Any) -> Hold:
    """Keep the hold's event, and nothing more."""
    hold = hold_on(name, hold_id, **changes)
    append_hold(spark, name, hold)
    return hold


def hashed(*keys: str) -> tuple[str, ...]:
    return tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)


def kept(spark: SparkSession, name: TopicName, partition: int = 0) -> dict[str, list[int]]:
    """The offsets kept of a partition by each hold; an offset that is there twice shows."""
    if not table_exists(spark, name.held_table):
        return {}
    rows = (
        spark.table(name.held_table)
        .where(f"`partition` = {partition}")
        .orderBy("hold_id", "offset")
        .select("hold_id", "offset")
        .collect()
    )
    offsets: dict[str, list[int]] = {}
    for row in rows:
        offsets.setdefault(row["hold_id"], []).append(row["offset"])
    return offsets
