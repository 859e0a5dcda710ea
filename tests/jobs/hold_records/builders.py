"""Holds of tests, and what was kept for them."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.topics import Topic, load
from ebbtide.ledger.holds import Hold, HoldEvent, Kind
from ebbtide.runner.holds import append_hold
from ebbtide.settings.names import TopicName
from jobs import delete_records, hold_records
from tests.lake_sandbox import LakeSandbox
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS
from tests.tables.nights import DAY_MS, at, set_properties
from tests.tables.planned import Jobs

MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)
NIGHT_MS = FIRST_MS + 10 * DAY_MS
WHY = ("--case-id", "7", "--reason", "asked by a court", "--owner", "legal")


def hold_on(name: TopicName, hold_id: str = "h-1", **changes: Any) -> Hold:
    """A hold on all of the topic, for case 7."""
    return Hold(
        **{
            "hold_id": hold_id,
            "event": HoldEvent.MADE,
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


class HeldTopic:
    """A topic of the lake, the jobs that work on it, and what holds keep of it."""

    def __init__(
        self, sandbox: LakeSandbox, jobs: Jobs, name: TopicName, now_ms: int = NIGHT_MS
    ) -> None:
        self.spark, self.jobs, self.name = sandbox.session, jobs, name
        self.now_ms, self.arguments = now_ms, ("--topic", str(name))

    @property
    def now(self) -> tuple[str, str]:
        return "--now", at(self.now_ms).isoformat()

    def hold(self, hold_id: str = "h-1", **changes: Any) -> Hold:
        """Keep a hold's event, and nothing more."""
        return make_hold(self.spark, self.name, hold_id, **changes)

    def kept(self, partition: int = 0) -> dict[str, list[int]]:
        return kept(self.spark, self.name, partition)

    def left(self, partition: int = 0) -> list[int]:
        """The offsets of the log."""
        return offsets(view_of_table(self.spark, self.name, partition))

    def topic(self) -> Topic:
        return load(self.spark, self.name)

    def set(self, changes: dict[str, str | None]) -> None:
        set_properties(self.spark, str(self.name), changes)

    def run(self, job: ModuleType, *more: str) -> Any:
        """Run a job, which succeeds; its row."""
        code = self.jobs.run(job, *self.arguments, *self.now, *more)
        assert code == ExitCode.DONE, self.jobs.last_run().error
        return self.jobs.last_run()

    def fail(self, job: ModuleType, *more: str) -> Any:
        """Run a job, which fails; its row."""
        assert self.jobs.run(job, *self.arguments, *self.now, *more) == ExitCode.FAILED
        return self.jobs.last_run()

    def make(self, *more: str) -> Any:
        """Make a hold by the job; its row."""
        return self.run(hold_records, "--action", "make", *WHY, "--requested-by", "ann", *more)

    def execute(self, job: ModuleType, *asked: str) -> Any:
        """Plan a job, and execute the plan once it is approved; the plan."""
        plan = self.jobs.plan(job, self.now_ms, *self.arguments, *asked)
        approved = ("--plan", plan.plan_id, "--approved-by", "bob")
        assert self.jobs.run(job, *approved) == ExitCode.DONE, self.jobs.last_run().error
        return plan

    def end(self, hold_id: str) -> Any:
        return self.execute(hold_records, "--action", "end", "--hold", hold_id)

    def delete(self, **starts: int) -> int:
        """Ask for DeleteRecords up to offsets, given as p0=2; the exit code."""
        partitions = [{"partition": int(p[1:]), "offset": offset} for p, offset in starts.items()]
        request = {"topics": [{"topic": str(self.name), "partitions": partitions}]}
        return self.jobs.run(delete_records, "--request", json.dumps(request), *self.now)
