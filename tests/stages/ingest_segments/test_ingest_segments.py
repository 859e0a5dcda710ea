"""ingest_segments on real tables: what grows is added, whatever stops an ingest in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, OffsetGapError
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, exists, load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.records.attributes import LOG_APPEND_TIME
from ebbtide.records.v2_writer import BatchFields, Record, write_batch
from ebbtide.stages.ingest_segments.stage import ingest_segments
from tests.log.log_files import marker, transactional
from tests.stages.ingest_segments.small_sources import (
    CLEANED,
    NOW_MS,
    grow,
    name,
    offsets,
    source,
    spark,
    unbroken,
)
from tests.tables.contents import Contents, contents
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError, Meanwhile, kill
from tests.tables.logs import write_log
from tests.tables.nights import HOUR_MS, ingest, source_of
from tests.tables.partition_log import (
    MODIFIED_MS,
    T0,
    append,
    batch,
    checkpoint,
    segment_path,
    write_segments,
)

__all__ = ["name", "source", "spark", "unbroken"]

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
    spark: SparkSession, name: TopicName, source: Path, unbroken: Contents
) -> None:
    first = ingest(spark, str(name), source, NOW_MS)
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
    assert load(spark, name).partitions[1] == PartitionState(
        log_start_offset=0,
        log_end_offset=10,
        first_dirty_offset=0,
        first_unmarked_offset=0,
        segments=((0, MODIFIED_MS), (10, MODIFIED_MS + 10)),
        max_event_time_ms=T0 + 7,
    )

    before, properties = snapshots(spark, name), load(spark, name).properties
    again = ingest(spark, str(name), source, NOW_MS + HOUR_MS)
    assert again.snapshot_ids == []
    assert snapshots(spark, name) == before
    assert load(spark, name).properties == properties
    assert again.partitions[0]["skipped"] == ["2 segments hold nothing new"]

    grow(source)
    grown = ingest(spark, str(name), source, NOW_MS)
    assert [grown.partitions[p]["records"] for p in (0, 1)] == [5, 0]
    assert [grown.partitions[p]["segments"] for p in (0, 1)] == [2, 0]
    assert contents(spark, name) == unbroken


@pytest.mark.parametrize(
    ("step", "has_state"),
    [
        *(pytest.param(step, False, id=f"first-{step}") for step in STEPS),
        # Where the log is from was said by the first.
        *(pytest.param(s, True, id=f"later-{s}") for s in STEPS[1:] if s != Step.FOLLOW_SETTINGS),
    ],
)
def test_an_ingest_killed_anywhere_is_finished_by_the_next_also_of_a_source_that_grew(
    spark: SparkSession,
    name: TopicName,
    source: Path,
    unbroken: Contents,
    kill_at: list[Step],
    step: Step,
    has_state: bool,
) -> None:
    if has_state:
        held = source.parent / "held"
        write_segments(held, {0: [batch(0, 2)]})
        ingest(spark, str(name), held, NOW_MS)
    kill_at.append(step)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, NOW_MS)
    grow(source)
    outcome = ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name) == unbroken
    assert outcome.partitions[0]["records"] == (13 if has_state else 15)


AT_WORK = [s for s in STEPS if s not in (Step.CREATE_TOPIC, Step.FOLLOW_SETTINGS)]


@pytest.mark.long(but="-ingest_batches")
@pytest.mark.parametrize("step", AT_WORK)
@pytest.mark.parametrize("has_grown", [False, True], ids=["", "of a source that grew"])
def test_of_two_ingests_at_a_time_one_fails_and_each_record_is_there_once(
    spark: SparkSession,
    name: TopicName,
    source: Path,
    unbroken: Contents,
    meanwhile: Meanwhile,
    step: Step,
    has_grown: bool,
) -> None:
    """The second runs whole when the first has come to a commit, as if its machine had paused."""

    def second() -> None:
        if has_grown:
            grow(source)
        ingest(spark, str(name), source, NOW_MS)

    meanwhile(step, second)
    with pytest.raises(CommitConflictError):
        ingest(spark, str(name), source, NOW_MS)
    if not has_grown:
        grow(source)
    ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name) == unbroken
    assert_counted(spark, name)


def test_an_ingest_whose_work_was_taken_over_moves_nothing(
    spark: SparkSession,
    name: TopicName,
    source: Path,
    unbroken: Contents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second is killed once it has removed what the first had appended."""
    steps: list[Step] = []

    def before_commit(step: Step) -> None:
        steps.append(step)
        if step is Step.INGEST_BATCHES and steps.count(step) == 1:
            with pytest.raises(KilledError):
                ingest(spark, str(name), source, NOW_MS)
        if step is Step.LEFT_STATE and steps.count(step) == 1:
            kill(step)

    monkeypatch.setattr(commits, "before_commit", before_commit)
    with pytest.raises(CommitConflictError, match="another ingest has taken the work over"):
        ingest(spark, str(name), source, NOW_MS)
    grow(source)
    ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name) == unbroken


def test_these_are_all_steps_of_an_ingest(
    spark: SparkSession, name: TopicName, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    monkeypatch.setattr(commits, "before_commit", steps.append)
    ingest(spark, str(name), source, NOW_MS)
    # A catalog is probed once, before its first topic.
    assert tuple(step for step in steps if step is not Step.PROBE) == STEPS
    assert {step for step in Step if step.startswith("ingest")} < set(STEPS)


def test_a_view_that_a_killed_create_did_not_reach_is_made(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, NOW_MS)
    for view in (name.table_view, name.v1_view, name.committed_view):
        spark.sql(f"DROP VIEW {view}")
    ingest(spark, str(name), source, NOW_MS)
    assert spark.table(name.committed_view).count() == 18
    assert spark.table(name.v1_view).count() == 18
    assert spark.table(name.table_view).count() == 6


def test_a_plan_creates_nothing(spark: SparkSession, name: TopicName, source: Path) -> None:
    outcome = ingest_segments(spark, name, source_of(source, NOW_MS), is_plan_only=True)
    assert {p: numbers["records"] for p, numbers in outcome.partitions.items()} == {0: 10, 1: 8}
    assert not exists(spark, name)


def test_a_new_partition_begins_where_its_log_does(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    """Records below the log start offset are not seen; the batches of their segment are there."""
    ingest(spark, str(name), source, NOW_MS)
    write_segments(source, {0: [batch(0, 2), batch(2, 2), batch(4, 2)], 6: []}, partition=2)
    checkpoint(source, "log-start-offset-checkpoint", {2: 3})
    checkpoint(source, "replication-offset-checkpoint", {0: 10, 1: 10, 2: 6})
    outcome = ingest(spark, str(name), source, NOW_MS)
    assert [outcome.partitions[p]["records"] for p in range(3)] == [0, 0, 3]
    tables = contents(spark, name)
    assert offsets(tables, 2) == [3, 4, 5]
    batches = [row for row in tables.batches if row["partition"] == 2]
    assert [(row["base_offset"], row["max_event_time_ms"] - T0) for row in batches] == [
        (0, 1),
        (2, 3),
        (4, 5),
    ]
    assert tables.states[2].log_start_offset == 3
    assert tables.states[2].max_event_time_ms == T0 + 5


def test_times_are_kept_as_the_log_has_them(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
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
    write_segments(tmp_path, {0: batches})
    outcome = ingest(spark, str(name), tmp_path, NOW_MS)
    rows = (
        spark.table(name.records_table)
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
    tables = contents(spark, name)
    times = [row["max_event_time_ms"] for row in tables.batches]
    assert times == [T0 - 5, NOW_MS + HOUR_MS, NOW_MS, -1, -1]
    assert [row["append_time_ms"] for row in tables.batches] == [T0 + 70, *[NOW_MS] * 4]
    assert tables.states[0].max_event_time_ms == NOW_MS + HOUR_MS


def test_timestamps_in_another_unit_are_told(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    for partition, at_ms in enumerate((NOW_MS, NOW_MS // 1000, NOW_MS * 1000)):
        data = write_batch(BatchFields(), [Record(0, at_ms, b"k", b"v")])
        write_segments(tmp_path, {0: [data]}, partition=partition, topic=name.topic)
    outcome = ingest(spark, str(name), tmp_path, NOW_MS)
    units = [of.get("timestamp_unit") for _, of in sorted(outcome.partitions.items())]
    assert units == [None, "seconds", "microseconds"]
    assert "note" not in outcome.partitions[0]
    assert outcome.partitions[1]["note"].startswith("timestamps look like seconds: the largest is ")


def test_the_source_tells_that_a_topic_has_a_remote_tier(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    config = {"cleanup.policy": "delete", "remote.storage.enable": "true"}
    write_log(tmp_path, name.topic, [], config)
    write_segments(tmp_path, {10: [batch(10)], 11: []}, topic=name.topic)
    with pytest.raises(OffsetGapError, match="offsets 0 to 9 are in the remote tier"):
        ingest(spark, str(name), tmp_path, NOW_MS)
    outcome = ingest(spark, str(name), tmp_path, NOW_MS, accept_gap=True)
    assert outcome.partitions[0]["accepted_gaps"] == [(0, 10)]
    write_segments(tmp_path, {20: [batch(20)]}, topic=name.topic)
    for base in (10, 11):
        segment_path(tmp_path, base, topic=name.topic).unlink()
    with pytest.raises(OffsetGapError, match="offsets 11 to 19 are in the remote tier"):
        ingest(spark, str(name), tmp_path, NOW_MS)


@pytest.mark.long
def test_a_transaction_that_is_open_between_two_ingests(
    spark: SparkSession, name: TopicName, tmp_path: Path
) -> None:
    batches = [
        batch(0),
        transactional(1, "a", producer=7, at_ms=T0),
        transactional(2, "b", producer=8, at_ms=T0),
        batch(3),
    ]
    write_segments(tmp_path, {0: batches})
    ingest(spark, str(name), tmp_path, NOW_MS)
    assert committed(spark, name) == [0]
    ended = [marker(4, "ABORT", producer=7, at_ms=T0), marker(5, "COMMIT", producer=8, at_ms=T0)]
    append(tmp_path, 0, *ended)
    ingest(spark, str(name), tmp_path, NOW_MS)
    tables = contents(spark, name)
    firsts = {row["control_type"]: row["txn_first_offset"] for row in tables.batches[4:]}
    assert firsts == {"ABORT": 1, "COMMIT": 2}
    assert committed(spark, name) == [0, 2, 3]
    assert offsets(tables) == [0, 1, 2, 3]


def committed(spark: SparkSession, name: TopicName) -> list[int]:
    rows = spark.table(name.committed_view).orderBy("offset").collect()
    return [row["offset"] for row in rows]
