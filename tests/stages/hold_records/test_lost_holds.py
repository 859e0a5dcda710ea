"""Rows of the table of holds that somebody deleted, and tables that somebody dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.schema import holds_table
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.held.keeping import drop_unheld
from ebbtide.runs.holds_table import ACCEPTED, read_holds
from jobs import hold_records
from tests.lake_sandbox import LakeSandbox
from tests.stages.hold_records.builders import kept, make_hold
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, expire, ingest
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
MESSAGES = [[Message("a", "1", day * DAY_MS)] for day in range(3)]
HOLDS = holds_table("lake")


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    off = {"max.delete.ratio": "1"}
    config = {"cleanup.policy": "delete", "retention.ms": str(9 * DAY_MS)}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    name = TopicName(cluster, "t")
    set_properties(sandbox.session, name.records_table, {f"ebbtide.{n}": v for n, v in off.items()})
    return name


def test_rows_of_holds_that_were_deleted_stop_removals(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    make_hold(spark, name, "gone")
    make_hold(spark, name, "left", partition=7)
    before = open_table(spark, HOLDS).current
    spark.sql(f"DELETE FROM {HOLDS} WHERE hold_id = 'gone'")
    after = open_table(spark, HOLDS).current
    assert before is not None
    assert after is not None
    with pytest.raises(HoldError, match=f"somebody deleted rows in snapshot {after.id}: a hold"):
        expire(spark, str(name), NIGHT_MS)
    spark.sql(f"CALL lake.system.set_current_snapshot('ebbtide.holds', {before.id})")
    assert {hold.hold_id for hold in read_holds(spark, name)} == {"gone", "left"}
    # An event that is rolled back is missed too, until that is accepted.
    make_hold(spark, name, "third")
    third = open_table(spark, HOLDS).current
    assert third is not None
    spark.sql(f"CALL lake.system.set_current_snapshot('ebbtide.holds', {before.id})")
    with pytest.raises(HoldError, match=f"somebody rolled back snapshot {third.id}: a hold"):
        read_holds(spark, name)
    set_properties(spark, HOLDS, {ACCEPTED: str(third.id)})
    assert {hold.hold_id for hold in read_holds(spark, name)} == {"gone", "left"}


def test_a_table_of_holds_that_was_dropped_is_named(sandbox: LakeSandbox, name: TopicName) -> None:
    spark = sandbox.session
    make_hold(spark, name)
    expire(spark, str(name), NIGHT_MS)
    assert kept(spark, name) == {"h-1": [0]}
    spark.sql(f"DROP TABLE {HOLDS}")
    with pytest.raises(HoldError, match="found no such table beside"):
        expire(spark, str(name), NIGHT_MS + DAY_MS)
    spark.sql(f"DROP TABLE {name.held_table}")
    assert read_holds(spark, name) == []


def test_held_records_whose_table_was_dropped_are_missed(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    """The hold is ended and made again: what snapshots still have is copied again."""
    spark = sandbox.session
    make_hold(spark, name)
    expire(spark, str(name), NIGHT_MS)
    assert kept(spark, name) == {"h-1": [0]}
    spark.sql(f"DROP TABLE {name.held_table}")
    missed = "somebody dropped it, and what it kept is gone"
    with pytest.raises(HoldError, match=missed):
        drop_unheld(load(spark, name))
    with pytest.raises(HoldError, match=missed):
        expire(spark, str(name), NIGHT_MS + DAY_MS)
    topic = ("--topic", str(name), "--requested-by", "ann")
    plan = jobs.plan(hold_records, NIGHT_MS, *topic, "--action", "end", "--hold", "h-1")
    approved = ("--plan", plan.plan_id, "--approved-by", "bob")
    assert jobs.run(hold_records, *approved) == ExitCode.DONE, jobs.last_run().error
    why = ("--case-id", "7", "--reason", "court", "--owner", "legal")
    now = ("--now", at(NIGHT_MS).isoformat())
    made = jobs.run(hold_records, *topic, "--action", "make", *why, *now)
    assert made == ExitCode.DONE, jobs.last_run().error
    ((_, offsets),) = kept(spark, name).items()
    assert offsets[0] == 0
