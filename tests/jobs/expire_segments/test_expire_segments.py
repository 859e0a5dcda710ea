"""expire_segments on tables; its decisions are tested in tests/log and against Kafka."""

from pathlib import Path

import pytest

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.jobs.expire_segments import plan_expire
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import AtOffset, TopicRequest
from tests.lake_sandbox import LakeSandbox
from tests.tables.bench import Bench
from tests.tables.kafka_view import offsets
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, ingest

NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Four segments of two records, a day apart in event time.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]


def topic_with(bench: Bench, config: dict[str, str]) -> None:
    bench.log(MESSAGES, {"cleanup.policy": "delete", **config}, NIGHT_MS)


def truncate(bench: Bench, offset: int) -> None:
    bench.answer(TopicRequest({0: AtOffset(offset)}), NIGHT_MS)


@pytest.mark.long(but="older than retention.ms")
@pytest.mark.parametrize(
    ("config", "start", "rule"),
    [
        pytest.param({"retention.ms": str(8 * DAY_MS)}, 4, "time", id="older than retention.ms"),
        pytest.param({"retention.bytes": "158"}, 4, "size", id="beyond retention.bytes"),
        pytest.param(
            {"retention.max.eventtime.ms": str(2 * DAY_MS - 1)},
            4,
            "event_time",
            id="behind the max event time, however old by the clock",
        ),
        pytest.param({"retention.ms": str(DAY_MS)}, 8, "time", id="the active segment too"),
    ],
)
def test_whole_segments_go(bench: Bench, config: dict[str, str], start: int, rule: str) -> None:
    topic_with(bench, config)
    outcome = bench.expire(NIGHT_MS)
    view = bench.view()
    assert view.log_start_offset == start
    assert offsets(view) == list(range(start, 8))
    assert [batch["base_offset"] for batch in view.batches] == list(range(start, 8, 2))
    assert outcome.partitions[0]["by_rule"][rule] == outcome.partitions[0]["segments_expired"]
    assert outcome.partitions[0]["records_removed"] == outcome.rows_removed == start
    if start == 8:
        assert view.segments == [(8, NIGHT_MS)]


def test_a_record_of_the_future_that_holds_back_retention_is_named(bench: Bench) -> None:
    future_ms = 4_102_444_800_000
    config = {"cleanup.policy": "delete", "retention.ms": str(DAY_MS)}
    messages = [[Message("a", "1", 0), Message("a", "1", future_ms - FIRST_MS)], *MESSAGES]
    bench.log(messages, config, NIGHT_MS)
    plan = plan_expire(bench.load(), NIGHT_MS)
    words = (
        "segment 0 blocks 3 later segments past a time limit: its newest record is of 2100-01-01 "
        "00:00 UTC, which is in the future, and segments are removed in order. To remove it, "
        "run delete_records with offset 2"
    )
    assert plan.summary()[0]["stays"] == [
        {"reason": "within the limits", "records": 4},
        {"reason": words, "records": 6},
    ]
    numbers = bench.expire(NIGHT_MS).partitions[0]
    assert (numbers["segments_expired"], numbers["segments_held_back"]) == (0, 3)
    assert numbers["note"] == words
    truncate(bench, 2)
    numbers = bench.expire(NIGHT_MS).partitions[0]
    assert numbers["log_start_offset"] == 10
    assert not numbers.keys() & {"note", "segments_held_back"}


def test_segments_leave_as_metadata_and_a_second_run_commits_nothing(bench: Bench) -> None:
    topic_with(bench, {"retention.ms": str(8 * DAY_MS)})
    bench.expire(NIGHT_MS)
    for table in bench.tables:
        summary = dict(java_table(bench.spark, table).currentSnapshot().summary())
        assert summary["deleted-data-files"] == "2"
        assert "added-data-files" not in summary
        assert "added-dvs" not in summary
    before = [current_snapshot(bench.spark, t) for t in bench.tables]
    again = bench.expire(NIGHT_MS)
    assert again.rows_removed == 0
    after = [current_snapshot(bench.spark, t) for t in bench.tables]
    assert after == before


@pytest.mark.long
def test_no_data_file_is_read_when_segments_leave(bench: Bench) -> None:
    """The records' files may be anywhere: what leaves is known from manifests and batch headers."""
    topic_with(bench, {"retention.ms": str(8 * DAY_MS)})
    location = java_table(bench.spark, bench.name.records_table).location()
    data = Path(location.removeprefix("file:")) / "data"
    assert list(data.rglob("*.parquet"))
    data.rename(data.with_name("away"))
    outcome = bench.expire(NIGHT_MS)
    assert outcome.rows_removed == 4
    data.with_name("away").rename(data)
    assert bench.left() == [4, 5, 6, 7]


def test_without_explicit_settings_nothing_is_removed(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    write_log(tmp_path / "log", "t", MESSAGES, {})
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    topic = load(sandbox.session, TopicName(cluster, "t"))
    plan = plan_expire(topic, NIGHT_MS + 10_000 * DAY_MS)
    assert plan.expiries[0].removed == []


def test_a_row_that_marking_rewrote_is_counted_once(bench: Bench) -> None:
    config = {"cleanup.policy": "delete", "retention.ms": str(8 * DAY_MS)}
    messages = [[Message("a", None), Message("b", "1")], *MESSAGES[1:]]
    bench.log(messages, config, NIGHT_MS)
    bench.mark()
    assert bench.expire(NIGHT_MS).rows_removed == 4


def test_what_an_ingest_is_writing_into_a_rolled_segment_stays(bench: Bench) -> None:
    topic_with(bench, {"retention.ms": str(DAY_MS)})
    bench.spark.sql(
        f"INSERT INTO {bench.name.batches_table} (`partition`, base_offset, last_offset, segment, "
        "attributes, producer_id, record_count, size_bytes) VALUES (0, 8, 9, 6, 0, -1, 2, 79)"
    )
    bench.expire(NIGHT_MS)
    rows = bench.spark.table(bench.name.batches_table).collect()
    assert [row["base_offset"] for row in rows] == [8]
