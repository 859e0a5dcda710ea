"""Single records past the event-time limit, and what other jobs make of their batches after."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import ExitCode, SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from jobs import expire_segments
from tests.jobs.export_segments.exports import export, kafkas_states
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets, view_of_kafka
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS
from tests.tables.partition_log import T0, append, write_segments
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 100 * DAY_MS
RECORDS = {
    "ebbtide.retention.granularity": "record",
    "kafka.retention.max.eventtime.ms": str(5 * DAY_MS),
}
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
# By event time in days. The first segment is wholly past the limit; offsets 4, 6 and 9 are too.
MESSAGES = [
    [Message("a", "1", 1 * DAY_MS), Message("b", "1", 2 * DAY_MS)],
    [Message("a", "2", 8 * DAY_MS), Message("b", "2", 6 * DAY_MS), Message("c", "1", 0)],
    [Message("d", "1", 10 * DAY_MS), Message("e", "1", 3 * DAY_MS), Message("a", "3", 9 * DAY_MS)],
    [Message("f", "1", 5 * DAY_MS), Message("g", "1", 5 * DAY_MS - 1)],
]
LEFT = [2, 3, 5, 7, 8]


def topic_of(bench: Bench, **settings: str) -> None:
    """The log's topic with single records to expire; settings with _ for each dot."""
    bench.log(MESSAGES, COMPACT, NIGHT_MS)
    configure(bench, RECORDS | {k.replace("_", "."): v for k, v in settings.items()})


def configure(bench: Bench, settings: dict[str, str]) -> None:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
    bench.spark.sql(f"ALTER TABLE {bench.name.records_table} SET TBLPROPERTIES ({listed})")


def snapshots(bench: Bench) -> list[int | None]:
    tables = bench.tables
    return [current_snapshot(bench.spark, table) for table in tables]


def test_records_past_the_limit_go_wherever_they_lie(bench: Bench) -> None:
    topic_of(bench)
    before = bench.view()
    outcome = bench.expire(NIGHT_MS)
    view = bench.view()
    assert offsets(view) == LEFT
    assert view.batches == before.batches[1:]  # as they were written
    assert (view.log_start_offset, len(view.segments)) == (2, 3)
    numbers = outcome.partitions[0]
    assert (numbers["segments_expired"], numbers["by_rule"]["event_time"]) == (1, 1)
    assert (numbers["records_expired"], numbers["records_removed"]) == (3, 5)
    assert outcome.rows_removed == 5
    sizes = 3 * len(b"\x02c\x021\x00")  # a length and a byte of key, the same of value, no header
    assert numbers["record_bytes_expired"] == sizes
    assert bench.load().partitions[0].expired_end_offset == 10

    settled = snapshots(bench)
    again = bench.expire(NIGHT_MS)
    assert (again.rows_removed, snapshots(bench)) == (0, settled)
    assert len(outcome.snapshot_ids) == 3


@pytest.mark.long
def test_only_the_files_that_hold_such_records_are_read(bench: Bench) -> None:
    """Files are told apart by their least times; those without a match may be gone."""
    messages = [[Message("a", "1", day * DAY_MS)] for day in (10, 4, 9, 8)]
    bench.log(messages, COMPACT, NIGHT_MS)
    configure(bench, RECORDS)
    files = data_files(bench)
    hidden = [path for segment, path in files.items() if segment != 1]
    for path in hidden:
        path.rename(path.with_suffix(".away"))
    outcome = bench.expire(NIGHT_MS)
    for path in hidden:
        path.with_suffix(".away").rename(path)
    assert (outcome.rows_removed, outcome.files_removed) == (1, 1)
    assert bench.left() == [0, 2, 3]


def data_files(bench: Bench) -> dict[int, Path]:
    rows = bench.spark.sql(
        f"SELECT partition.segment, file_path FROM {bench.name.records_table}.data_files"
    ).collect()
    return {segment: Path(path.removeprefix("file:")) for segment, path in rows}


@pytest.mark.long
def test_both_times_must_say_so_where_all_is_asked_for(bench: Bench) -> None:
    """Records ingested on two days; retention.ms lets only the first day's go."""
    write_log(bench.home / "1", "t", MESSAGES[:1], COMPACT)
    bench.ingest(bench.home / "1", NIGHT_MS - DAY_MS - 1)
    write_log(bench.home / "2", "t", MESSAGES, COMPACT)
    bench.ingest(bench.home / "2", NIGHT_MS - DAY_MS)
    limits = {"kafka.retention.ms": str(DAY_MS), "ebbtide.retention.combine": "all"}
    configure(bench, RECORDS | limits)
    outcome = bench.expire(NIGHT_MS)
    assert outcome.partitions[0]["by_rule"]["time_and_event_time"] == 1
    assert bench.left() == [2, 3, 4, 5, 6, 7, 8, 9]
    outcome = bench.expire(NIGHT_MS + 1)
    assert outcome.partitions[0]["records_expired"] == 3
    assert bench.left() == LEFT


@pytest.mark.long
def test_a_future_event_time_counts_as_the_append_time(bench: Bench) -> None:
    """And a record without one is never past the limit."""
    hour_ms = 3_600_000
    first = [record_at(0, T0 + 1_000 * DAY_MS), record_at(1, -1)]
    write_segments(bench.home, {0: first})
    bench.ingest(bench.home, T0)
    append(bench.home, 0, record_at(2, T0 + hour_ms + 101))
    bench.ingest(bench.home, T0 + 101)
    assert bench.load().partitions[0].max_event_time_ms == T0 + hour_ms + 101
    limit = "kafka.retention.max.eventtime.ms"
    settings = {"kafka.cleanup.policy": "delete", limit: str(hour_ms + 101)}
    configure(bench, RECORDS | settings)
    assert bench.expire(NIGHT_MS).rows_removed == 0
    configure(bench, {limit: str(hour_ms + 100)})
    assert bench.expire(NIGHT_MS).rows_removed == 1
    assert bench.left() == [1, 2]


def record_at(offset: int, at_ms: int) -> bytes:
    return write_batch(BatchFields(), [Record(offset, at_ms, b"k", b"v")])


def test_an_expiry_that_is_killed_at_each_commit_is_finished_by_the_next(
    bench: Bench, kill_at: list[Step]
) -> None:
    topic_of(bench)
    kill_at += [Step.LOG_START_OFFSET, Step.TRUNCATE_RECORD_SEGMENTS]
    kill_at += [Step.TRUNCATE_BATCHES, Step.EXPIRE_RECORDS, Step.NEXT_EXPIRY]
    while kill_at:
        with pytest.raises(KilledError):
            bench.expire(NIGHT_MS)
    bench.expire(NIGHT_MS)
    view = bench.view()
    assert (view.log_start_offset, offsets(view)) == (2, LEFT)
    assert [batch["base_offset"] for batch in view.batches] == [2, 5, 8]


def test_what_is_left_of_a_killed_execution_is_within_its_plan(
    bench: Bench, jobs: Jobs, kill_at: list[Step]
) -> None:
    topic_of(bench, ebbtide_max_delete_ratio="0.01")
    kept = jobs.plan(expire_segments, NIGHT_MS, "--topic", str(bench.name))
    for step in (Step.LOG_START_OFFSET, Step.TRUNCATE_RECORD_SEGMENTS, Step.EXPIRE_RECORDS):
        kill_at.append(step)
        assert jobs.run(expire_segments, "--plan", kept.plan_id) == ExitCode.FAILED
    assert jobs.run(expire_segments, "--plan", kept.plan_id) == ExitCode.DONE
    view = bench.view()
    assert (view.log_start_offset, offsets(view)) == (2, LEFT)


@pytest.mark.long
def test_what_an_ingest_has_not_finished_stays(bench: Bench, kill_at: list[Step]) -> None:
    """Its records are counted when it is finished, so none of them may be missing by then."""
    write_log(bench.home / "1", "t", MESSAGES[:3], COMPACT)
    bench.ingest(bench.home / "1", NIGHT_MS)
    configure(bench, RECORDS)
    write_log(bench.home / "2", "t", MESSAGES, COMPACT)
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        bench.ingest(bench.home / "2", NIGHT_MS)
    bench.expire(NIGHT_MS)
    bench.ingest(bench.home / "2", NIGHT_MS)
    assert bench.expire(NIGHT_MS).partitions[0]["records_expired"] == 1
    assert bench.left() == LEFT


@pytest.mark.long
def test_the_other_jobs_go_on_with_what_is_left(bench: Bench, kafka_jars: Path) -> None:
    topic_of(bench)
    configure(bench, {"history.expire.max-snapshot-age-ms": "0"})
    bench.expire(NIGHT_MS)
    states = kafkas_states(exported(bench, bench.home / "expired"), kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == LEFT

    bench.mark()
    cleaned = bench.clean(NIGHT_MS)
    assert cleaned.partitions[0]["superseded"] == 1  # a, by offset 7
    view = bench.view()
    assert offsets(view) == [3, 5, 7, 8]
    counts = {batch["base_offset"]: batch["record_count"] for batch in view.batches}
    assert counts == {2: 1, 5: 3, 8: 2}  # a batch that loses nothing in the round stays as it is

    merge_segments(bench.load(), at_least=2)
    execute_expire_snapshots(bench.load())
    assert bench.view() == view
    assert bench.expire(NIGHT_MS).rows_removed == 0
    states = kafkas_states(exported(bench, bench.home / "cleaned"), kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [3, 5, 7, 8]


def exported(bench: Bench, target: Path) -> Path:
    export(bench.spark, bench.name, target)
    return target


@pytest.mark.long
def test_an_export_still_refuses_rows_that_others_deleted(bench: Bench) -> None:
    topic_of(bench)
    bench.expire(NIGHT_MS)
    write_log(bench.home / "grown", "t", [*MESSAGES, [Message("z", "1", 10 * DAY_MS)]], COMPACT)
    bench.ingest(bench.home / "grown", NIGHT_MS)
    bench.spark.sql(f"DELETE FROM {bench.name.records_table} WHERE offset = 10")
    with pytest.raises(SafetyError, match=r"expected 1 records in the batch \[10, 10\] of t-0"):
        export(bench.spark, bench.name, bench.home / "out")
