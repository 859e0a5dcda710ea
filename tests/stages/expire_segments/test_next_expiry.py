"""Nights start expire_segments where it may find something, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.topics import load
from ebbtide.lake.reader import open_lake
from ebbtide.log.settings.names import TopicName
from ebbtide.orchestration.night import nothing_to_do
from ebbtide.stages.delete_records.stage import execute_delete, plan_delete
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import clean, expire, ingest, mark, set_properties

HOUR_MS = 3_600_000
LIMITS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": str(10 * HOUR_MS),
}
LOG = [[Message("a", "1"), Message("b", "1")], [Message("c", "1", HOUR_MS)], []]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A topic whose first segment expires ten hours after its newest record."""
    write_log(tmp_path / "old", "t", LOG, LIMITS)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "old", FIRST_MS)
    set_properties(sandbox.session, f"{cluster}.t", {"ebbtide.max.delete.ratio": "1"})
    return TopicName(cluster, "t")


def is_idle(sandbox: LakeSandbox, name: TopicName, now_ms: int) -> bool:
    """Whether Airflow's side would start no Spark."""
    with open_lake(sandbox.home / "conf" / "spark-defaults.conf") as lake:
        return nothing_to_do("expire_segments", lake.topic(str(name)), now_ms) is not None


def next_ms(sandbox: LakeSandbox, name: TopicName) -> int:
    return load(sandbox.session, name).partitions[0].next_expiry_ms


def test_until_a_segment_reaches_its_limit_no_night_starts_spark(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    assert not is_idle(sandbox, name, FIRST_MS)
    assert expire(sandbox.session, str(name), FIRST_MS).rows_removed == 0
    due_ms = next_ms(sandbox, name)
    assert is_idle(sandbox, name, due_ms - 1)
    assert not is_idle(sandbox, name, due_ms)
    assert expire(sandbox.session, str(name), due_ms - 1).rows_removed == 0
    assert expire(sandbox.session, str(name), due_ms).rows_removed == 2
    assert next_ms(sandbox, name) > due_ms
    assert not is_idle(sandbox, name, due_ms)  # as if the job was killed before it counted rows
    count_own(load(sandbox.session, name))
    assert is_idle(sandbox, name, due_ms)


def test_a_look_that_finds_nothing_new_writes_nothing(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    expire(sandbox.session, str(name), FIRST_MS)
    before = load(sandbox.session, name).properties
    expire(sandbox.session, str(name), FIRST_MS + 1)
    assert load(sandbox.session, name).properties == before


def test_whatever_changes_the_log_or_its_limits_has_to_be_looked_at(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    spark = sandbox.session
    expire(spark, str(name), FIRST_MS)
    assert is_idle(sandbox, name, FIRST_MS)
    set_properties(spark, str(name), {"kafka.retention.bytes": "1"})
    assert not is_idle(sandbox, name, FIRST_MS)
    set_properties(spark, str(name), {"kafka.retention.bytes": "-1"})
    expire(spark, str(name), FIRST_MS)
    write_log(tmp_path / "new", "t", [*LOG[:2], [Message("a", "2", HOUR_MS)], []], LIMITS)
    ingest(spark, str(name), tmp_path / "new", FIRST_MS)
    assert not is_idle(sandbox, name, FIRST_MS)
    expire(spark, str(name), FIRST_MS)
    assert is_idle(sandbox, name, FIRST_MS)
    mark(spark, str(name))
    assert is_idle(sandbox, name, FIRST_MS)
    clean(spark, str(name), FIRST_MS + 1)  # which takes the record that was a segment's newest
    assert not is_idle(sandbox, name, FIRST_MS + 1)


def test_what_one_run_has_noted_does_not_hold_after_a_delete_records(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    expire(sandbox.session, str(name), FIRST_MS)
    execute_delete(plan_delete(load(sandbox.session, name), {0: 1}, FIRST_MS))
    assert not is_idle(sandbox, name, FIRST_MS)
