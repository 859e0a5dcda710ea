"""The share of a topic's bytes that retention would remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.configure_topic.stage import plan_configure
from ebbtide.stages.delete_records.primary import execute_delete, plan_delete
from ebbtide.stages.expire_segments.plan import ExpirePlan, plan_expire
from tests.lake_sandbox import LakeSandbox
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, expire, ingest

NIGHT_MS = FIRST_MS + 10 * DAY_MS
RATIO = "ebbtide.max.delete.ratio"
# Two partitions, each of four segments of two records and of the same bytes, a day apart.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]


def days(count: float) -> str:
    return str(int(count * DAY_MS))


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    for partition in (0, 1):
        write_log(
            tmp_path / "log", "t", MESSAGES, {"cleanup.policy": "delete"}, partition=partition
        )
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    return TopicName(cluster, "t")


def plan(sandbox: LakeSandbox, name: TopicName, **settings: str) -> ExpirePlan:
    """The plan with these settings, _ for each dot."""
    listed = ", ".join(f"'{key.replace('_', '.')}' = '{v}'" for key, v in settings.items())
    sandbox.session.sql(f"ALTER TABLE {name.records_table} SET TBLPROPERTIES ({listed})")
    return plan_expire(load(sandbox.session, name), NIGHT_MS)


def test_what_limits_remove_is_measured_over_all_partitions(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    assert plan(sandbox, name, kafka_retention_ms=days(7.5)).delete_ratio == 0.75
    assert plan(sandbox, name, kafka_retention_ms=days(8)).delete_ratio == 0.5
    assert plan(sandbox, name, kafka_retention_ms="-1").delete_ratio == 0
    by_size = plan(sandbox, name, kafka_retention_bytes="79")
    assert by_size.delete_ratio == 0.75
    by_event = {"kafka_retention_bytes": "-1", "kafka_retention_max_eventtime_ms": days(2)}
    assert plan(sandbox, name, **by_event).delete_ratio == 0.25
    single = plan(sandbox, name, **by_event, ebbtide_retention_granularity="record")
    assert single.delete_ratio == 0.25  # each of them went with its segment


def test_single_records_count_with_their_own_bytes(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    messages = [[Message("a", "1" * 100, 5 * DAY_MS), Message("b", "1" * 100)]]
    write_log(tmp_path / "log", "t", messages, {"cleanup.policy": "delete"})
    ingest(sandbox.session, str(name), tmp_path / "log", NIGHT_MS)
    planned = plan(
        sandbox,
        name,
        kafka_retention_max_eventtime_ms=days(1),
        ebbtide_retention_granularity="record",
    )
    size_bytes = sum(segment.size_bytes for segment in planned.expiries[0].kept)
    assert planned.delete_ratio == (2 + 1 + 2 + 100 - 1 + 1) / size_bytes


def test_what_lies_below_the_log_start_offset_does_not_count(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    """DeleteRecords said exactly what it wanted; what it left is what a share is taken of."""
    execute_delete(plan_delete(load(sandbox.session, name), {0: 6, 1: 6}, NIGHT_MS))
    planned = plan(sandbox, name, ebbtide_max_delete_ratio="0", kafka_retention_ms="-1")
    assert planned.delete_ratio == 0
    assert expire(sandbox.session, str(name), NIGHT_MS).partitions[0]["segments_expired"] == 3
    assert plan(sandbox, name, kafka_retention_ms=days(6.5)).delete_ratio == 1


def test_a_plan_and_a_preview_say_the_ratio(sandbox: LakeSandbox, name: TopicName) -> None:
    changes = {"kafka.retention.ms": days(7.5), RATIO: "0"}
    preview = plan_configure(load(sandbox.session, name), changes, NIGHT_MS).outcome()
    planned = plan(sandbox, name, kafka_retention_ms=days(7.5), ebbtide_max_delete_ratio="0")
    assert planned.outcome().topic == {"delete_ratio": 0.75}
    assert preview.topic["next_run"] == planned.outcome().topic
