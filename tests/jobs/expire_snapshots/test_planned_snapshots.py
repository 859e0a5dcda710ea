"""Snapshots and files are planned by name: what becomes due later is not the plan's."""

from __future__ import annotations

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from jobs import expire_snapshots
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS
from tests.tables.planned import Jobs

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [[Message("a", "1"), Message("b", "1")], [Message("a", "2")], [Message("c", "1")]]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    empty.log(MESSAGES, CONFIG, FIRST_MS)
    empty.mark()
    empty.set({"history.expire.max-snapshot-age-ms": "0"})
    return empty


def snapshots(bench: Bench) -> list[int]:
    table = java_table(bench.spark, bench.name.records_table)
    return [int(snapshot.snapshotId()) for snapshot in table.snapshots()]


def test_only_what_was_due_when_planned_leaves_the_disk(bench: Bench, jobs: Jobs) -> None:
    bench.clean(FIRST_MS + DAY_MS)
    before = snapshots(bench)
    kept = jobs.plan(expire_snapshots, FIRST_MS, "--topic", str(bench.name))
    due = kept.parameters["snapshots"]["records"]
    assert due == sorted(before[:-1])
    assert len(kept.parameters["files"]) == 1
    assert kept.removes == {}
    assert "snapshots expired: " in kept.text
    newest = before[-1]
    assert jobs.run(expire_snapshots, "--plan", kept.plan_id) == ExitCode.DONE
    left = snapshots(bench)
    assert newest in left
    assert not set(due) & set(left)
    row = jobs.last_run()
    assert row.topic_result["files_rewritten"] == 1
    assert jobs.kinds(kept) == ["executed"]
    # Rewriting made the newest one old; it was not due when planned, and goes with the next run.
    now = ("--now", "2026-12-01T00:00:00Z")
    assert jobs.run(expire_snapshots, "--topic", str(bench.name), *now) == ExitCode.DONE
    assert newest not in snapshots(bench)
