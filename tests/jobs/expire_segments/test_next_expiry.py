"""Nights start expire_segments where it may find something, and only there."""

from __future__ import annotations

import pytest

from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.lake.reader import open_lake
from ebbtide.orchestration.night import nothing_to_do
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, write_log

HOUR_MS = 3_600_000
LIMITS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": str(10 * HOUR_MS),
}
LOG = [[Message("a", "1"), Message("b", "1")], [Message("c", "1", HOUR_MS)], []]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A topic whose first segment expires ten hours after its newest record."""
    write_log(empty.home / "old", "t", LOG, LIMITS)
    empty.ingest(empty.home / "old", FIRST_MS)
    empty.set({"ebbtide.max.delete.ratio": "1"})
    return empty


def is_idle(bench: Bench, now_ms: int) -> bool:
    """Whether Airflow's side would start no Spark."""
    with open_lake(bench.sandbox.home / "conf" / "spark-defaults.conf") as lake:
        return nothing_to_do("expire_segments", lake.topic(str(bench.name)), now_ms) is not None


def next_ms(bench: Bench) -> int:
    return bench.load().partitions[0].next_expiry_ms


def test_until_a_segment_reaches_its_limit_no_night_starts_spark(bench: Bench) -> None:
    assert not is_idle(bench, FIRST_MS)
    assert bench.expire(FIRST_MS).rows_removed == 0
    due_ms = next_ms(bench)
    assert is_idle(bench, due_ms - 1)
    assert not is_idle(bench, due_ms)
    assert bench.expire(due_ms - 1).rows_removed == 0
    assert bench.expire(due_ms).rows_removed == 2
    assert next_ms(bench) > due_ms
    assert not is_idle(bench, due_ms)  # as if the job was killed before it counted rows
    count_own(bench.load())
    assert is_idle(bench, due_ms)


def test_a_look_that_finds_nothing_new_writes_nothing(bench: Bench) -> None:
    bench.expire(FIRST_MS)
    before = bench.load().properties
    bench.expire(FIRST_MS + 1)
    assert bench.load().properties == before


def test_whatever_changes_the_log_or_its_limits_has_to_be_looked_at(bench: Bench) -> None:
    bench.expire(FIRST_MS)
    assert is_idle(bench, FIRST_MS)
    bench.set({"kafka.retention.bytes": "1"})
    assert not is_idle(bench, FIRST_MS)
    bench.set({"kafka.retention.bytes": "-1"})
    bench.expire(FIRST_MS)
    write_log(bench.home / "new", "t", [*LOG[:2], [Message("a", "2", HOUR_MS)], []], LIMITS)
    bench.ingest(bench.home / "new", FIRST_MS)
    assert not is_idle(bench, FIRST_MS)
    bench.expire(FIRST_MS)
    assert is_idle(bench, FIRST_MS)
    bench.mark()
    assert is_idle(bench, FIRST_MS)
    bench.clean(FIRST_MS + 1)  # which takes the record that was a segment's newest
    assert not is_idle(bench, FIRST_MS + 1)


def test_what_one_run_has_noted_does_not_hold_after_a_delete_records(bench: Bench) -> None:
    bench.expire(FIRST_MS)
    bench.delete({0: 1}, FIRST_MS)
    assert not is_idle(bench, FIRST_MS)


def test_each_night_is_told_of_the_segments_that_one_of_the_future_holds_back(empty: Bench) -> None:
    future_ms = 4_102_444_800_000
    log = [[Message("a", "1", future_ms - FIRST_MS)], *LOG]
    write_log(empty.home / "old", "t", log, LIMITS)
    empty.ingest(empty.home / "old", FIRST_MS)
    assert empty.expire(FIRST_MS).rows_removed == 0
    due_ms = next_ms(empty)
    assert due_ms == FIRST_MS + 10 * HOUR_MS + 1
    assert is_idle(empty, due_ms - 1)
    for now_ms, segments in ((due_ms, 1), (due_ms + HOUR_MS, 2), (due_ms + 24 * HOUR_MS, 2)):
        assert not is_idle(empty, now_ms)
        outcome = empty.expire(now_ms)
        assert outcome.rows_removed == 0
        assert outcome.partitions[0]["segments_held_back"] == segments
        assert f"segment 0 blocks {segments} later" in outcome.partitions[0]["note"]
    write_log(empty.home / "new", "t", [*log[:3], [Message("d", "1", HOUR_MS)], []], LIMITS)
    empty.ingest(empty.home / "new", FIRST_MS)
    empty.expire(due_ms + 24 * HOUR_MS)
    assert next_ms(empty) == 0
    assert not is_idle(empty, due_ms + 24 * HOUR_MS)
