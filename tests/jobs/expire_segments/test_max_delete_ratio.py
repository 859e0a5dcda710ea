"""The share of a topic's bytes that retention would remove."""

from __future__ import annotations

import pytest

from ebbtide.jobs.configure_topic import plan_configure
from ebbtide.jobs.expire_segments import ExpirePlan, plan_expire
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS

NIGHT_MS = FIRST_MS + 10 * DAY_MS
RATIO = "ebbtide.max.delete.ratio"
# Two partitions, each of four segments of two records and of the same bytes, a day apart.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]


def days(count: float) -> str:
    return str(int(count * DAY_MS))


@pytest.fixture
def bench(empty: Bench) -> Bench:
    for partition in (0, 1):
        write_log(
            empty.home / "log", "t", MESSAGES, {"cleanup.policy": "delete"}, partition=partition
        )
    empty.ingest(empty.home / "log", NIGHT_MS)
    return empty


def plan(bench: Bench, **settings: str) -> ExpirePlan:
    """The plan with these settings, _ for each dot."""
    listed = ", ".join(f"'{key.replace('_', '.')}' = '{v}'" for key, v in settings.items())
    bench.spark.sql(f"ALTER TABLE {bench.name.records_table} SET TBLPROPERTIES ({listed})")
    return plan_expire(bench.load(), NIGHT_MS)


def test_what_limits_remove_is_measured_over_all_partitions(bench: Bench) -> None:
    assert plan(bench, kafka_retention_ms=days(7.5)).delete_ratio == 0.75
    assert plan(bench, kafka_retention_ms=days(8)).delete_ratio == 0.5
    assert plan(bench, kafka_retention_ms="-1").delete_ratio == 0
    by_size = plan(bench, kafka_retention_bytes="79")
    assert by_size.delete_ratio == 0.75
    by_event = {"kafka_retention_bytes": "-1", "kafka_retention_max_eventtime_ms": days(2)}
    assert plan(bench, **by_event).delete_ratio == 0.25
    single = plan(bench, **by_event, ebbtide_retention_granularity="record")
    assert single.delete_ratio == 0.25  # each of them went with its segment


def test_single_records_count_with_their_own_bytes(empty: Bench) -> None:
    messages = [[Message("a", "1" * 100, 5 * DAY_MS), Message("b", "1" * 100)]]
    empty.log(messages, {"cleanup.policy": "delete"}, NIGHT_MS)
    planned = plan(
        empty, kafka_retention_max_eventtime_ms=days(1), ebbtide_retention_granularity="record"
    )
    size_bytes = sum(segment.size_bytes for segment in planned.expiries[0].kept)
    assert planned.delete_ratio == (2 + 1 + 2 + 100 - 1 + 1) / size_bytes


def test_what_lies_below_the_log_start_offset_does_not_count(bench: Bench) -> None:
    """DeleteRecords said exactly what it wanted; what it left is what a share is taken of."""
    bench.delete({0: 6, 1: 6}, NIGHT_MS)
    planned = plan(bench, ebbtide_max_delete_ratio="0", kafka_retention_ms="-1")
    assert planned.delete_ratio == 0
    assert bench.expire(NIGHT_MS).partitions[0]["segments_expired"] == 3
    assert plan(bench, kafka_retention_ms=days(6.5)).delete_ratio == 1


def test_a_plan_and_a_preview_say_the_ratio(bench: Bench) -> None:
    changes = {"kafka.retention.ms": days(7.5), RATIO: "0"}
    preview = plan_configure(bench.load(), changes, NIGHT_MS).outcome()
    planned = plan(bench, kafka_retention_ms=days(7.5), ebbtide_max_delete_ratio="0")
    assert planned.outcome().topic == {"delete_ratio": 0.75}
    assert preview.topic["next_run"] == planned.outcome().topic
