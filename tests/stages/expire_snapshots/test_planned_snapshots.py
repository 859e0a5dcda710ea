"""Snapshots and files are planned by name: what becomes due later is not the plan's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from ebbtide.log.settings.names import TopicName
from jobs import expire_snapshots
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, ingest, mark, set_properties
from tests.tables.planned import Jobs

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
MESSAGES = [[Message("a", "1"), Message("b", "1")], [Message("a", "2")], [Message("c", "1")]]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    name = TopicName(cluster, "t")
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    set_properties(sandbox.session, str(name), {"history.expire.max-snapshot-age-ms": "0"})
    return name


def snapshots(sandbox: LakeSandbox, name: TopicName) -> list[int]:
    table = java_table(sandbox.session, name.records_table)
    return [int(snapshot.snapshotId()) for snapshot in table.snapshots()]


def test_only_what_was_due_when_planned_leaves_the_disk(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    clean(sandbox.session, str(name), FIRST_MS + DAY_MS)
    before = snapshots(sandbox, name)
    kept = jobs.plan(expire_snapshots, FIRST_MS, "--topic", str(name))
    due = kept.parameters["snapshots"]["records"]
    assert due == sorted(before[:-1])
    assert len(kept.parameters["files"]) == 1
    assert kept.removes == {}
    assert "snapshots expired: " in kept.text
    newest = before[-1]
    assert jobs.run(expire_snapshots, "--plan", kept.plan_id) == ExitCode.DONE
    left = snapshots(sandbox, name)
    assert newest in left
    assert not set(due) & set(left)
    row = jobs.last_run()
    assert row.topic_result["files_rewritten"] == 1
    assert jobs.kinds(kept) == ["executed"]
    # Rewriting made the newest one old; it was not due when planned, and goes with the next run.
    now = ("--now", "2026-12-01T00:00:00Z")
    assert jobs.run(expire_snapshots, "--topic", str(name), *now) == ExitCode.DONE
    assert newest not in snapshots(sandbox, name)
