"""Rows of the table of holds that somebody deleted, and tables that somebody dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import HoldError
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.topics import set_properties
from ebbtide.ledger import holds
from ebbtide.runner.holds import ACCEPTED, drop_unheld, read_holds
from ebbtide.settings.names import TopicName
from tests.jobs.hold_records.builders import NIGHT_MS, HeldTopic
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import Message, write_log
from tests.tables.nights import DAY_MS, expire, ingest
from tests.tables.planned import Jobs

MESSAGES = [[Message("a", "1", day * DAY_MS)] for day in range(3)]
HOLDS = holds.HOLDS.in_catalog()


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, jobs: Jobs, tmp_path: Path) -> HeldTopic:
    off = {"max.delete.ratio": "1"}
    config = {"cleanup.policy": "delete", "retention.ms": str(9 * DAY_MS)}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    name = TopicName(cluster, "t")
    set_properties(sandbox.session, name.records_table, {f"ebbtide.{n}": v for n, v in off.items()})
    return HeldTopic(sandbox, jobs, name)


def test_rows_of_holds_that_were_deleted_stop_removals(topic: HeldTopic) -> None:
    topic.hold("gone")
    topic.hold("left", partition=7)
    before = open_table(topic.spark, HOLDS).current
    topic.spark.sql(f"DELETE FROM {HOLDS} WHERE hold_id = 'gone'")
    after = open_table(topic.spark, HOLDS).current
    assert before is not None
    assert after is not None
    with pytest.raises(HoldError, match=f"found rows deleted in snapshot {after.id}: a hold"):
        expire(topic.spark, str(topic.name), NIGHT_MS)
    topic.spark.sql(f"CALL lake.system.set_current_snapshot('ebbtide.holds', {before.id})")
    assert {hold.hold_id for hold in read_holds(topic.spark, topic.name)} == {"gone", "left"}
    # An event that is rolled back is missed too, until that is accepted.
    topic.hold("third")
    third = open_table(topic.spark, HOLDS).current
    assert third is not None
    topic.spark.sql(f"CALL lake.system.set_current_snapshot('ebbtide.holds', {before.id})")
    with pytest.raises(HoldError, match=f"found a rollback of snapshot {third.id}: a hold"):
        read_holds(topic.spark, topic.name)
    set_properties(topic.spark, HOLDS, {ACCEPTED: str(third.id)})
    assert {hold.hold_id for hold in read_holds(topic.spark, topic.name)} == {"gone", "left"}


def test_a_table_of_holds_that_was_dropped_is_named(topic: HeldTopic) -> None:
    topic.hold()
    expire(topic.spark, str(topic.name), NIGHT_MS)
    assert topic.kept() == {"h-1": [0]}
    topic.spark.sql(f"DROP TABLE {HOLDS}")
    with pytest.raises(HoldError, match="found no such table, but "):
        expire(topic.spark, str(topic.name), NIGHT_MS + DAY_MS)
    topic.spark.sql(f"DROP TABLE {topic.name.held_table}")
    assert read_holds(topic.spark, topic.name) == []


def test_held_records_whose_table_was_dropped_are_missed(topic: HeldTopic) -> None:
    """The hold is ended and made again: what snapshots still have is copied again."""
    topic.hold()
    expire(topic.spark, str(topic.name), NIGHT_MS)
    assert topic.kept() == {"h-1": [0]}
    topic.spark.sql(f"DROP TABLE {topic.name.held_table}")
    missed = "the table was dropped with its copies"
    with pytest.raises(HoldError, match=missed):
        drop_unheld(topic.topic())
    with pytest.raises(HoldError, match=missed):
        expire(topic.spark, str(topic.name), NIGHT_MS + DAY_MS)
    topic.end("h-1")
    topic.make()
    ((_, offsets),) = topic.kept().items()
    assert offsets[0] == 0
