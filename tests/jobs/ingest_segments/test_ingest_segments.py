"""ingest_segments on real tables: what grows is added, whatever stops an ingest in between."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, OffsetGapError
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, exists
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState
from tests.jobs.ingest_segments.conftest import CLEANED, NOW_MS, SmallLog
from tests.log.log_files import marker, transactional
from tests.tables.contents import Contents
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError, Meanwhile, kill
from tests.tables.logs import write_log
from tests.tables.nights import HOUR_MS, ingest, source_of
from tests.tables.partition_log import (
    MODIFIED_MS,
    T0,
    batch,
    checkpoint,
    write_segments,
)

STEPS = (
    *(Step.CREATE_TOPIC, Step.FILES_SLICE, Step.INGEST_RECORDS, Step.INGEST_BATCHES),
    *(Step.FOLLOW_SETTINGS, Step.INGEST_STATE),
)


def snapshots(spark: SparkSession, name: TopicName) -> list[int | None]:
    return [current_snapshot(spark, table) for table in (name.records_table, name.batches_table)]


@pytest.mark.long
def test_what_only_a_round_can_change_is_in_the_header_yet(unbroken: Contents) -> None:
    for row in unbroken.batches:
        assert row["header_base_offset"] is None
        assert row["producer_timestamp_ms"] is None


def test_a_source_that_grew_adds_the_new_part_and_nothing_twice(
    log: SmallLog, unbroken: Contents
) -> None:
    first = log.ingest()
    assert len(first.snapshot_ids) == 2
    assert first.partitions[1] == {
        "log_start_offset": 0,
        "low_watermark": 0,
        "log_end_offset": 10,
        "records": 8,
        "batches": 1,
        "bytes": len(CLEANED),
        "segments": 1,
        "skipped": [],
        "accepted_gaps": [],
        "timestamps_in_headers": 0,
        "event_times_missing": 0,
    }
    assert log.topic().partitions[1] == PartitionState(
        log_start_offset=0,
        log_end_offset=10,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=((0, MODIFIED_MS), (10, MODIFIED_MS + 10)),
        max_event_time_ms=T0 + 7,
    )

    before, properties = snapshots(log.spark, log.name), log.topic().properties
    again = log.ingest(NOW_MS + HOUR_MS)
    assert again.snapshot_ids == []
    assert snapshots(log.spark, log.name) == before
    assert log.topic().properties == properties
    assert again.partitions[0]["skipped"] == ["2 segments without new batches"]

    log.grow()
    grown = log.ingest()
    assert [grown.partitions[p]["records"] for p in (0, 1)] == [5, 0]
    assert [grown.partitions[p]["segments"] for p in (0, 1)] == [2, 0]
    assert log.contents() == unbroken


@pytest.mark.parametrize(
    ("step", "has_state"),
    [
        *(pytest.param(step, False, id=f"first-{step}") for step in STEPS),
        # Where the log is from was said by the first.
        *(pytest.param(s, True, id=f"later-{s}") for s in STEPS[1:] if s != Step.FOLLOW_SETTINGS),
    ],
)
def test_an_ingest_killed_anywhere_is_finished_by_the_next_also_of_a_source_that_grew(
    log: SmallLog, unbroken: Contents, kill_at: list[Step], step: Step, has_state: bool
) -> None:
    if has_state:
        held = log.source.parent / "held"
        write_segments(held, {0: [batch(0, 2)]})
        ingest(log.spark, str(log.name), held, NOW_MS)
    log.killed(kill_at, step)
    log.grow()
    outcome = log.ingest()
    assert log.contents() == unbroken
    assert outcome.partitions[0]["records"] == (13 if has_state else 15)


AT_WORK = [s for s in STEPS if s not in (Step.CREATE_TOPIC, Step.FOLLOW_SETTINGS)]


@pytest.mark.long(but="-ingest_batches")
@pytest.mark.parametrize("step", AT_WORK)
@pytest.mark.parametrize("has_grown", [False, True], ids=["", "of a source that grew"])
def test_of_two_ingests_at_a_time_one_fails_and_each_record_is_there_once(
    log: SmallLog, unbroken: Contents, meanwhile: Meanwhile, step: Step, has_grown: bool
) -> None:
    """The second runs whole when the first has come to a commit, as if its machine had paused."""

    def second() -> None:
        if has_grown:
            log.grow()
        log.ingest()

    meanwhile(step, second)
    with pytest.raises(CommitConflictError):
        log.ingest()
    if not has_grown:
        log.grow()
    log.ingest()
    assert log.contents() == unbroken
    assert_counted(log.spark, log.name)


def test_an_ingest_whose_work_was_taken_over_moves_nothing(
    log: SmallLog, unbroken: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is killed once it has removed what the first had appended."""
    steps: list[Step] = []

    def before_commit(step: Step) -> None:
        steps.append(step)
        if step is Step.INGEST_BATCHES and steps.count(step) == 1:
            with pytest.raises(KilledError):
                log.ingest()
        if step is Step.LEFT_STATE and steps.count(step) == 1:
            kill(step)

    monkeypatch.setattr(commits, "before_commit", before_commit)
    with pytest.raises(CommitConflictError, match="found that of another ingest"):
        log.ingest()
    log.grow()
    log.ingest()
    assert log.contents() == unbroken


def test_these_are_all_steps_of_an_ingest(log: SmallLog, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = []
    monkeypatch.setattr(commits, "before_commit", steps.append)
    log.ingest()
    # A catalog is probed once, before its first topic.
    assert tuple(step for step in steps if step is not Step.PROBE) == STEPS
    assert {step for step in Step if step.startswith("ingest")} < set(STEPS)


def test_a_view_that_a_killed_create_did_not_reach_is_made(log: SmallLog) -> None:
    log.ingest()
    for view in (log.name.latest_view, log.name.null_tombstones_view, log.name.committed_view):
        log.spark.sql(f"DROP VIEW {view}")
    log.ingest()
    assert log.spark.table(log.name.committed_view).count() == 18
    assert log.spark.table(log.name.null_tombstones_view).count() == 18
    assert log.spark.table(log.name.latest_view).count() == 6


def test_a_plan_creates_nothing(log: SmallLog) -> None:
    outcome = ingest_segments(log.spark, log.name, source_of(log.source, NOW_MS), is_plan_only=True)
    assert {p: numbers["records"] for p, numbers in outcome.partitions.items()} == {0: 10, 1: 8}
    assert not exists(log.spark, log.name)


def test_a_new_partition_begins_where_its_log_does(log: SmallLog) -> None:
    """Records below the log start offset are not seen; the batches of their segment are there."""
    log.ingest()
    log.write({0: [batch(0, 2), batch(2, 2), batch(4, 2)], 6: []}, partition=2)
    checkpoint(log.source, "log-start-offset-checkpoint", {2: 3})
    checkpoint(log.source, "replication-offset-checkpoint", {0: 10, 1: 10, 2: 6})
    outcome = log.ingest()
    assert [outcome.partitions[p]["records"] for p in range(3)] == [0, 0, 3]
    tables = log.contents()
    assert log.offsets(2) == [3, 4, 5]
    batches = [row for row in tables.batches if row["partition"] == 2]
    assert [(row["base_offset"], row["max_event_time_ms"] - T0) for row in batches] == [
        (0, 1),
        (2, 3),
        (4, 5),
    ]
    assert tables.states[2].log_start_offset == 3
    assert tables.states[2].max_event_time_ms == T0 + 5


def test_times_are_kept_as_the_log_has_them(empty: SmallLog) -> None:
    """The broker's clock beside the producer's, one in the future, and two no column holds."""
    stamped = BatchFields(attributes=LOG_APPEND_TIME, max_timestamp_ms=T0 + 70)
    future_ms = NOW_MS + HOUR_MS + 1
    batches = [
        write_batch(stamped, [Record(0, T0 - 5, None, b"v"), Record(1, T0 - 9, None, b"v")]),
        write_batch(BatchFields(), [Record(2, NOW_MS + HOUR_MS, None, b"v")]),
        write_batch(BatchFields(), [Record(3, future_ms, None, b"v")]),
        write_batch(BatchFields(), [Record(i, 2**62, None, b"v") for i in (4, 5)]),
        write_batch(BatchFields(), [Record(6, -1, None, b"v", [(b"h", None)])]),
    ]
    empty.write({0: batches})
    outcome = empty.ingest()
    rows = (
        empty.spark.table(empty.name.records_table)
        .selectExpr(
            "unix_millis(timestamp)", "unix_millis(event_time)", "unix_millis(append_time)",
            "transform(headers, h -> concat(h.key, '=', coalesce(string(h.value), '')))",
        )
        .orderBy("offset")
        .collect()
    )  # fmt: skip
    kept = [f"ebbtide.timestamp={2**62}"]
    assert [tuple(row) for row in rows] == [
        (T0 + 70, T0 - 5, T0 + 70, []),
        (T0 + 70, T0 - 9, T0 + 70, []),
        (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, NOW_MS, []),
        (future_ms, future_ms, NOW_MS, []),
        (None, None, NOW_MS, kept),
        (None, None, NOW_MS, kept),
        (None, None, NOW_MS, ["h="]),
    ]
    assert outcome.partitions[0]["timestamps_in_headers"] == 2
    tables = empty.contents()
    times = [row["max_event_time_ms"] for row in tables.batches]
    assert times == [T0 - 5, NOW_MS + HOUR_MS, NOW_MS, -1, -1]
    assert [row["append_time_ms"] for row in tables.batches] == [T0 + 70, *[NOW_MS] * 4]
    assert tables.states[0].max_event_time_ms == NOW_MS + HOUR_MS


def test_timestamps_in_another_unit_are_told(empty: SmallLog) -> None:
    for partition, at_ms in enumerate((NOW_MS, NOW_MS // 1000, NOW_MS * 1000)):
        data = write_batch(BatchFields(), [Record(0, at_ms, b"k", b"v")])
        empty.write({0: [data]}, partition=partition)
    outcome = empty.ingest()
    units = [numbers.get("timestamp_unit") for _, numbers in sorted(outcome.partitions.items())]
    assert units == [None, "seconds", "microseconds"]
    assert "note" not in outcome.partitions[0]
    assert outcome.partitions[1]["note"].startswith(
        "timestamps look like seconds: Kafka and all time limits read the largest, "
    )


def test_the_source_tells_that_a_topic_has_a_remote_tier(empty: SmallLog) -> None:
    config = {"cleanup.policy": "delete", "remote.storage.enable": "true"}
    write_log(empty.source, empty.name.topic, [], config)
    empty.write({10: [batch(10)], 11: []})
    with pytest.raises(OffsetGapError, match="offsets 0 to 9 are in the remote tier"):
        empty.ingest()
    outcome = empty.ingest(accept_gap=True)
    assert outcome.partitions[0]["accepted_gaps"] == [(0, 10)]
    empty.write({20: [batch(20)]})
    for base in (10, 11):
        empty.path(base).unlink()
    with pytest.raises(OffsetGapError, match="offsets 11 to 19 are in the remote tier"):
        empty.ingest()


@pytest.mark.long
def test_a_transaction_that_is_open_between_two_ingests(empty: SmallLog) -> None:
    batches = [
        batch(0),
        transactional(1, "a", producer=7, at_ms=T0),
        transactional(2, "b", producer=8, at_ms=T0),
        batch(3),
    ]
    empty.write({0: batches})
    empty.ingest()
    assert committed(empty.spark, empty.name) == [0]
    ended = [marker(4, "ABORT", producer=7, at_ms=T0), marker(5, "COMMIT", producer=8, at_ms=T0)]
    empty.append(0, *ended)
    empty.ingest()
    tables = empty.contents()
    firsts = {row["control_type"]: row["txn_first_offset"] for row in tables.batches[4:]}
    assert firsts == {"ABORT": 1, "COMMIT": 2}
    assert committed(empty.spark, empty.name) == [0, 2, 3]
    assert empty.offsets() == [0, 1, 2, 3]


def committed(spark: SparkSession, name: TopicName) -> list[int]:
    rows = spark.table(name.committed_view).orderBy("offset").collect()
    return [row["offset"] for row in rows]
