"""clean_log, as far as the comparison with Kafka does not show it: kills, idleness, refusals."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ebbtide.columns import segment_cleaning
from ebbtide.columns.headers import BatchHeaders
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.jobs.clean_log import cleaner
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.configure_topic import plan_configure
from ebbtide.kafka.reasons import Reason
from ebbtide.records.compression import Codec
from ebbtide.spark import tasks
from ebbtide.spark.tasks import map_shares
from ebbtide.specs.delete_request import AtOffset, TopicRequest
from ebbtide.state.topic_state import ROUND
from tests.kafka.oracle import Round, SourceLog, run_oracle
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import data_batch, marker, transactional
from tests.records.test_legacy import message_set
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark
from tests.tables.partition_log import write_segments

NIGHT_MS = 1_000 * DAY_MS
ROUND_STEPS = tuple(step for step in Step if step.name.startswith("ROUND"))
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
# Two segments that supersede each other, with a tombstone, and an active one.
MESSAGES = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1")],
]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A small compacted topic, ingested and marked."""
    empty.log(MESSAGES, COMPACT, NIGHT_MS)
    empty.mark()
    return empty


def test_a_round_keeps_the_newest_of_each_key_and_the_tombstone(bench: Bench) -> None:
    outcome = bench.clean(NIGHT_MS)
    view = bench.view()
    assert offsets(view) == [2, 3, 4, 5]
    assert outcome.partitions[0]["superseded"] == 2
    assert outcome.partitions[0]["tombstones_kept"] == 1
    assert outcome.partitions[0]["next_horizon_ms"] == NIGHT_MS + DAY_MS
    assert bench.load().partitions[0].horizon_ms == NIGHT_MS + DAY_MS


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "driver_rows"), [(1, tasks.LITTLE_ROWS), (2, tasks.LITTLE_ROWS), (4, 0)]
)
def test_an_offset_map_too_large_to_be_sent_is_made_in_shares(
    bench: Bench, sent: int, driver_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "MAP_BYTES", sent * cleaner.RECORD_BYTES)
    bench.spark.conf.set(tasks.DRIVER_ROWS_SETTING, driver_rows)
    outcome = bench.clean(NIGHT_MS)
    bench.spark.conf.unset(tasks.DRIVER_ROWS_SETTING)
    view = bench.view()
    assert offsets(view) == [2, 3, 4, 5]
    assert [b["record_count"] for b in view.batches] == [1, 2, 1]
    assert outcome.partitions[0]["superseded"] == 2


def test_a_segment_without_a_key_has_no_share(
    empty: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed, keyless = [Message("a", "1"), Message("a", "2")], [Message(None, "1")]
    empty.log([keyed, keyless, [Message("active", "1")]], COMPACT, NIGHT_MS)
    empty.mark()
    monkeypatch.setattr(cleaner, "MAP_BYTES", cleaner.RECORD_BYTES)
    outcome = empty.clean(NIGHT_MS)
    assert outcome.partitions[0]["superseded"] == 1
    assert outcome.partitions[0]["keyless"] == 1


def test_long_keys_count_in_the_size_of_the_offset_map(
    empty: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = empty.spark
    long = [Message(f"{n}" * 4_000, "1") for n in range(4)]
    empty.log([long, long[:2], [Message("active", "1")]], COMPACT, NIGHT_MS)
    empty.mark()
    shares: list[int] = []
    monkeypatch.setattr(
        cleaner,
        "map_shares",
        lambda *arguments: shares.append(arguments[4]) or map_shares(*arguments),
    )
    spark.conf.set(cleaner.MAP_BYTES_SETTING, 6 * cleaner.RECORD_BYTES + 30_000)
    try:
        outcome = empty.clean(NIGHT_MS)
    finally:
        spark.conf.unset(cleaner.MAP_BYTES_SETTING)
    # Six keys of 4,000 bytes, four times each, for each of two cores.
    assert min(shares) >= 2 * 3
    assert outcome.partitions[0]["superseded"] == 2


@pytest.mark.parametrize("rows_at_once", [1, 2, 3])
def test_a_segment_judged_in_parts_ends_as_one_judged_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    at_once = plan_clean(bench.load(), NIGHT_MS).effect
    monkeypatch.setattr(segment_cleaning, "ROWS_AT_ONCE", rows_at_once)
    in_parts = plan_clean(bench.load(), NIGHT_MS).effect
    assert at_once is not None
    assert in_parts is not None
    assert in_parts.changes == at_once.changes
    assert in_parts.deletions == at_once.deletions
    assert in_parts.numbers == at_once.numbers


def test_a_round_that_is_killed_at_each_commit_ends_as_an_unbroken_one(
    bench: Bench, kill_at: list[Step]
) -> None:
    kill_at += ROUND_STEPS
    now_ms = NIGHT_MS
    while kill_at:
        with pytest.raises(KilledError):
            bench.clean(now_ms)
        now_ms += HOUR_MS
    # Each run has another clock: what the second has begun is finished with the one it began with.
    bench.clean(now_ms)
    view = bench.view()
    horizons = [b["delete_horizon_ms"] for b in view.batches]
    assert offsets(view) == [2, 3, 4, 5]
    assert [b["record_count"] for b in view.batches] == [1, 2, 1]
    assert horizons == [None, NIGHT_MS + HOUR_MS + DAY_MS, None]
    assert ROUND not in bench.load().properties
    assert bench.load().partitions[0].first_dirty_offset == 5


def test_two_owners_of_one_round_end_as_one(bench: Bench) -> None:
    plan = plan_clean(bench.load(), NIGHT_MS)
    execute_clean(plan)
    after = [current_snapshot(bench.spark, t) for t in (bench.name.records_table,)]
    # The second owner planned before the first was done, and executes after it.
    records_before = bench.view()
    execute_clean(plan_clean(bench.load(), NIGHT_MS))
    assert bench.view() == records_before
    assert [current_snapshot(bench.spark, t) for t in (bench.name.records_table,)] == after


def test_the_horizon_is_reached_at_its_very_millisecond(bench: Bench) -> None:
    bench.clean(NIGHT_MS)
    early = bench.clean(NIGHT_MS + DAY_MS - 1)
    assert early.partitions[0]["picked"] is False
    on_time = bench.clean(NIGHT_MS + DAY_MS)
    assert on_time.partitions[0]["tombstones_removed"] == 1
    assert bench.left() == [2, 3, 5]
    later = bench.clean(NIGHT_MS + 2 * DAY_MS)
    assert later.partitions[0]["picked"] is False
    assert later.partitions[0]["reason"] == Reason.CLEAN


def test_a_clock_that_stands_still_cleans_nothing(bench: Bench) -> None:
    bench.clean(NIGHT_MS)
    again = bench.clean(NIGHT_MS)
    assert again.partitions[0]["reason"].startswith(
        "`now` is not later than that of the last round"
    )


def test_a_topic_without_compact_is_left_alone(empty: Bench) -> None:
    empty.log(MESSAGES, {}, NIGHT_MS)
    empty.mark()
    outcome = empty.clean(NIGHT_MS)
    assert outcome.partitions[0]["reason"] == "cleanup.policy has no compact"
    view = empty.view()
    assert offsets(view) == [0, 1, 2, 3, 4, 5]


def test_unmarked_records_are_not_cleaned(empty: Bench) -> None:
    empty.log(MESSAGES, COMPACT, NIGHT_MS)
    outcome = empty.clean(NIGHT_MS)
    assert outcome.partitions[0]["picked"] is False


def test_a_deleted_key_does_not_come_back_by_rounds_for_what_is_due(empty: Bench) -> None:
    """A dirty tombstone has superseded nothing yet: it goes by no idle round, whatever its age."""
    old = [Message(f"k{n}", "1" * 50) for n in range(30)]
    empty.log([old, [Message("k1", None)], []], COMPACT)
    empty.mark()
    assert empty.clean(FIRST_MS).partitions[0]["picked"]  # its horizon is a day later
    empty.set({"kafka.min.cleanable.dirty.ratio": "0.9"})
    empty.log([old, [Message("k1", None)], [Message("k2", None)], []], COMPACT, folder="more")
    empty.mark()
    left = [offset for offset in range(32) if offset not in (1, 30)]
    for days in (1, 3, 5):
        assert empty.clean(FIRST_MS + days * DAY_MS).partitions[0]["picked"] is (days == 1)
        assert empty.left() == left  # k2 and its tombstone
    empty.set({"kafka.min.cleanable.dirty.ratio": "0"})
    assert empty.clean(FIRST_MS + 6 * DAY_MS).partitions[0]["picked"]
    assert empty.left() == [offset for offset in left if offset != 2]
    empty.clean(FIRST_MS + 7 * DAY_MS)
    assert empty.left() == [offset for offset in left if offset not in (2, 31)]


def test_an_open_transaction_that_holds_a_log_back_is_named(empty: Bench) -> None:
    now_ms = FIRST_MS + 30 * DAY_MS
    write_log(empty.home / "log", "t", [], {**COMPACT, "min.cleanable.dirty.ratio": "0.5"})
    first = [
        data_batch(0, ("a", "1"), at_ms=FIRST_MS),
        transactional(1, "b", producer=7, at_ms=FIRST_MS + 60_000),
        transactional(2, "c", producer=8, at_ms=FIRST_MS + 70_000),
    ]
    closed = {3: [data_batch(3, ("a", "2"), at_ms=FIRST_MS)]}
    write_segments(empty.home / "log", {0: first, **closed, 4: []})
    empty.ingest(empty.home / "log", now_ms)
    empty.mark()
    numbers = empty.clean(now_ms).partitions[0]
    words = (
        "an open transaction of producer 7 blocks the log from offset 1 since "
        "1970-01-01 00:17 UTC (29 days)"
    )
    assert (numbers["picked"], numbers["reason"]) == (False, words)
    assert numbers["open_transaction"] == {
        "producer_id": 7, "first_offset": 1, "since_ms": FIRST_MS + 60_000,
    }  # fmt: skip
    assert numbers["note"] == (
        f"{words}; if this producer has stopped, abort its transaction: kafka-transactions.sh "
        "abort --topic t --partition 0 --start-offset 1"
    )

    ends = [marker(offset, "ABORT", producer=3 + offset, at_ms=now_ms) for offset in (4, 5)]
    write_segments(empty.home / "log", {4: ends, 6: []})
    empty.ingest(empty.home / "log", now_ms)
    numbers = empty.clean(now_ms).partitions[0]
    assert numbers["picked"]
    assert "open_transaction" not in numbers
    assert empty.left() == [3]


def test_a_transaction_that_is_open_in_the_active_segment_holds_nothing_back(empty: Bench) -> None:
    write_log(empty.home / "log", "t", [], COMPACT)
    segments = {
        0: [data_batch(0, ("a", "1"), ("a", "2"), at_ms=FIRST_MS)],
        2: [transactional(2, "b", producer=7, at_ms=FIRST_MS)],
    }
    write_segments(empty.home / "log", segments)
    empty.ingest(empty.home / "log", NIGHT_MS)
    empty.mark()
    numbers = empty.clean(NIGHT_MS).partitions[0]
    assert numbers["picked"]
    assert not numbers.keys() & {"open_transaction", "note"}


def test_what_delete_records_hides_counts_as_cleaned_after_a_round(
    empty: Bench, kafka_jars: Path
) -> None:
    """Kafka's cleaner goes on below the log start; here all of that is superseded."""
    first = [data_batch(offset, (f"k{offset % 3}", "1"), at_ms=FIRST_MS) for offset in range(20)]
    second = [data_batch(20 + i, (f"k{i}", "2"), at_ms=FIRST_MS) for i in range(3)]
    config = {**COMPACT, "cleanup.policy": "compact,delete"}
    source = write_log(empty.home / "log", "t", [], config)
    write_segments(source, {0: first, 20: second, 23: []})
    empty.ingest(source, NIGHT_MS)
    empty.mark()
    empty.answer(TopicRequest({0: AtOffset(17)}), NIGHT_MS)
    outcome = empty.clean(NIGHT_MS)
    rounds = [Round(now_ms=NIGHT_MS, delete_records=17)]
    (result,) = run_oracle(
        [SourceLog(directory=source / "t-0", config=config, rounds=rounds)], kafka_jars
    )
    kafkas = sum(segment.size_bytes for segment in result.rounds[-1].segments)
    assert outcome.partitions[0]["bytes_after"] == kafkas == sum(map(len, second))
    numbers = outcome.partitions[0]
    assert (numbers["records_before"], numbers["records_after"]) == (6, 3)
    sizes = [batch["size_bytes"] for batch in empty.view().batches]
    assert sum(sizes) == kafkas
    assert len(sizes) > 3  # the rows of hidden batches are there still


def old_and_new(directory: Path, topic: str) -> Path:
    """Two partitions with a superseded record; in the first its batch is the last, of magic 1."""
    write_log(directory, topic, [], COMPACT)
    old = message_set(1, Codec.NONE, [(0, FIRST_MS, b"a", b"1")], 0)
    new = data_batch(0, ("a", "1"), at_ms=FIRST_MS)
    for partition, first in enumerate((old, new)):
        # The record in the middle supersedes the first one, and the log grows past both.
        segments = {0: [first], 1: [message_set(1, Codec.NONE, [(1, FIRST_MS, None, b"2")], 1)]}
        if partition:
            segments[1] = [data_batch(1, ("a", "2"), at_ms=FIRST_MS)]
        write_segments(directory, {**segments, 2: []}, partition=partition, topic=topic)
    return directory


def test_a_partition_that_cannot_be_cleaned_stops_no_other(empty: Bench) -> None:
    """Its last batch is of magic 1 and would be emptied, as its record has no key."""
    empty.ingest(old_and_new(empty.home / "log", "t"), NIGHT_MS)
    empty.mark()
    outcome = empty.clean(NIGHT_MS)
    assert outcome.partitions[0]["picked"] is False
    assert outcome.partitions[0]["uncleanable"] is True
    assert "magic 1 has no empty batch" in outcome.partitions[0]["reason"]
    assert outcome.partitions[0]["note"].startswith(
        "cannot be cleaned: expected a retained record in "
    )
    assert (outcome.partitions[1]["picked"], outcome.partitions[1]["superseded"]) == (True, 1)
    assert [empty.left(p) for p in (0, 1)] == [[0, 1], [1]]
    assert ROUND not in empty.load().properties
    again = empty.clean(NIGHT_MS + DAY_MS)
    assert again.partitions[0]["uncleanable"] is True
    settings = plan_configure(empty.load(), {"kafka.segment.ms": "5"}, NIGHT_MS + 2 * DAY_MS)
    next_run = settings.outcome().partitions[0]["next_run"]["clean_log"]
    assert next_run["uncleanable"] is True


def in_transactions(directory: Path, batches: int) -> Path:
    """A log directory of three segments, each of so many batches by two producers in turn.

    Each of them ends its transaction after every second batch. No key comes twice.
    """
    segments: list[list[bytes]] = [[], [], []]
    offset = 0
    for segment in segments:
        for number in range(batches):
            producer = 7 + number % 2
            segment.append(
                transactional(offset, f"k{offset}", producer=producer, at_ms=FIRST_MS)
                if number % 4 < 2
                else marker(offset, "COMMIT", producer=producer, at_ms=FIRST_MS)
            )
            offset += 1
    write_log(directory, "t", [], COMPACT)
    for number, segment in enumerate(segments):
        path = directory / "t-0" / f"{number * batches:020}.log"
        path.write_bytes(b"".join(segment))
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    return directory


def rows_in(value: object) -> int:
    """How many rows of tables the value holds."""
    if isinstance(value, pa.Table):
        return int(value.num_rows)
    if isinstance(value, BatchHeaders):
        return len(value)
    if isinstance(value, dict):
        return sum(map(rows_in, value.values()))
    return sum(map(rows_in, value)) if isinstance(value, list | tuple) else 0


@pytest.mark.long
def test_the_driver_gets_no_more_rows_from_a_segment_with_more_transactions(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, in_threads = sandbox.session, tasks.in_threads
    rows: Counter[str] = Counter()

    def counted(spark: SparkSession, work: Any, units: Any, doing: str, fold: Any) -> list[Any]:
        results = in_threads(spark, work, units, doing, fold)
        rows[doing] += rows_in(results)
        return results

    by_size = []
    for batches in (40, 400):
        name = f"{cluster}{batches}.t"
        ingest(spark, name, in_transactions(tmp_path / str(batches), batches), NIGHT_MS)
        mark(spark, name)
        rows.clear()
        with monkeypatch.context() as patched:
            patched.setattr(tasks, "in_threads", counted)
            outcome = clean(spark, name, NIGHT_MS)
        assert outcome.partitions[0]["markers_kept"] == batches
        del rows["mapping keys of"]  # the offset map
        by_size.append(dict(rows))
    assert by_size[0] == by_size[1]
    assert by_size[0]["reads headers of"] > 0
