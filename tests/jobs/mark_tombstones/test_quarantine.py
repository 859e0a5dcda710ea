"""What the log must not hold: null values that nothing marks where tombstones are explicit."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from ebbtide.errors import CommitConflictError, SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.configure_topic import plan_configure
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.mark_tombstones import find_changes, plan_mark, tombstone_rule
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.records.log_directory_writer import BatchFields, write_batch
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.jobs.export_segments.exports import export, kafkas_states, states_of_each
from tests.jobs.mark_tombstones.tombstones import (
    BY_HEADER,
    COMPACT,
    EXPLICIT,
    FORBIDDEN,
    FORBIDDEN_OFFSETS,
    NIGHT_MS,
    PREDICATE,
    forbidden_topic,
    marks,
    quarantine,
    record,
    topic_of,
)
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets, view_of_kafka
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS
from tests.tables.partition_log import write_segments

GOLDEN = Path(__file__).parents[2] / "records" / "golden"


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


@pytest.mark.long
def test_a_null_value_that_nothing_marks_leaves_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden_topic(bench)
    before = bench.view()
    plan = plan_mark(bench.load()).outcome()
    assert bench.left() == list(range(8))
    note = (
        "3 records have a null value but no tombstone mark, which ebbtide.tombstone.explicit=true "
        f"forbids: they are moved to {bench.name.quarantine_table}"
    )
    assert (plan.partitions[0]["quarantined"], plan.topic["note"]) == (3, note)

    outcome = bench.mark(now_ms=NIGHT_MS)
    warned = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert warned == [note]
    assert outcome.topic == {"note": note, "quarantine": bench.name.quarantine_table}
    assert (outcome.rows_removed, outcome.partitions[0]["quarantined"]) == (3, 3)
    assert outcome.partitions[0]["by_rule"] == {"flag": 1, "header": 2}
    assert marks(bench) == {2: "flag", 3: "header", 6: "header"}
    view = bench.view()
    assert offsets(view) == [0, 2, 3, 6, 7]
    assert view.batches == before.batches
    held = quarantine(bench)
    assert [row["offset"] for row in held] == FORBIDDEN_OFFSETS
    first = held[0]
    assert (first["partition"], first["batch"], first["key"], first["value"]) == (0, 0, b"k1", None)
    assert first["headers"] == [{"key": "trace", "value": b"7"}]
    assert (first["reason"], first["run_id"]) == ("unmarked_null_value", "run")
    assert first["quarantined_at"].timestamp() * 1000 == NIGHT_MS
    assert bench.load().partitions[0].first_unmarked_offset == 8
    again = bench.mark()
    assert (again.rows_removed, again.topic) == (0, {})


QUARANTINE_STEPS = [
    *(Step.QUARANTINE_TABLE, Step.QUARANTINE_RECORDS, Step.QUARANTINE_STATE),
    *(Step.MARK_RECORDS, Step.MARK_STATE),
]


@pytest.mark.parametrize("is_exported", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_marking_that_is_killed_at_each_commit_quarantines_each_record_once(
    bench: Bench, kafka_jars: Path, kill_at: list[Step], is_exported: bool
) -> None:
    """And at no time is the log one that an export refuses."""
    forbidden_topic(bench, "log")
    kill_at += QUARANTINE_STEPS
    exported, expected = list[Path](), list[list[int]]()
    while kill_at:
        with pytest.raises(KilledError):
            bench.mark()
        expected.append(bench.left())
        if is_exported:
            exported.append(bench.home / f"killed-{len(kill_at)}")
            export(bench.spark, bench.name, exported[-1])
    if is_exported:
        states = states_of_each(exported, kafka_jars)
        assert [offsets(view_of_kafka(state["t-0"])) for state in states] == expected
    assert len(expected) == len(QUARANTINE_STEPS)
    bench.mark()
    assert [row["offset"] for row in quarantine(bench)] == FORBIDDEN_OFFSETS
    assert bench.left() == [0, 2, 3, 6, 7]
    assert marks(bench) == {2: "flag", 3: "header", 6: "header"}
    assert bench.load().partitions[0].first_unmarked_offset == 8


@pytest.mark.long
def test_the_other_jobs_go_on_with_what_is_left(bench: Bench, kafka_jars: Path) -> None:
    """Segment 4 has lost all of its records, and its batch stays until a round."""
    forbidden_topic(bench, "log")
    bench.set({"history.expire.max-snapshot-age-ms": "0"})
    bench.mark()
    bench.clean(NIGHT_MS)
    assert bench.left() == [0, 2, 3, 6, 7]
    bench.clean(NIGHT_MS + DAY_MS)
    view = bench.view()
    assert offsets(view) == [0, 7]
    merge_segments(bench.load(), at_least=2)
    execute_expire_snapshots(bench.load())
    assert bench.view() == view
    export(bench.spark, bench.name, bench.home / "out")
    states = kafkas_states(bench.home / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 7]
    records = [*FORBIDDEN, record(8, None), record(9, "v")]
    topic_of(bench, records, folder="log")
    assert bench.mark().rows_removed == 1
    assert bench.left() == [0, 7, 9]


@pytest.mark.long
def test_what_its_owner_deletes_from_the_quarantine_leaves_the_disk(bench: Bench) -> None:
    forbidden_topic(bench)
    bench.set({"history.expire.max-snapshot-age-ms": "0"})
    bench.mark()
    table = bench.name.quarantine_table
    bench.spark.sql(f"DELETE FROM {table} WHERE offset = 4")
    execute_expire_snapshots(bench.load())
    assert [row["offset"] for row in quarantine(bench)] == [1, 5]
    on_disk = bench.spark.sql(f"SELECT record_count FROM {table}.all_files").collect()
    assert [row[0] for row in on_disk] == [2]


@pytest.mark.long
def test_a_log_that_begins_anew_shares_no_place_with_the_one_before(bench: Bench) -> None:
    """Its offsets are in the quarantine already, as those of other records."""
    forbidden_topic(bench, "1")
    bench.mark()
    for table in bench.tables:
        bench.spark.sql(f"DROP TABLE {table}")
    bench.spark.sql(f"DROP VIEW {bench.name.committed_view}")
    forbidden_topic(bench, "2")
    bench.mark()
    assert [row["offset"] for row in quarantine(bench)] == sorted(2 * FORBIDDEN_OFFSETS)
    assert bench.left() == [0, 2, 3, 6, 7]


@pytest.mark.long
def test_what_delete_records_hides_is_not_quarantined(bench: Bench) -> None:
    forbidden_topic(bench)
    bench.set({"ebbtide.state.0.log-start-offset": "5"})
    bench.mark()
    assert [row["offset"] for row in quarantine(bench)] == [5]


@pytest.mark.long(but="1")
@pytest.mark.parametrize("magic", [0, 1])
def test_before_magic_2_a_null_value_is_always_a_tombstone(bench: Bench, magic: int) -> None:
    case = f"magic-{magic}"
    write_log(bench.home, "t", [[]], {"cleanup.policy": "compact"})
    first = f"{0:020}.log"
    shutil.copy(GOLDEN / case / first, bench.home / "t-0" / first)
    bench.ingest(bench.home, NIGHT_MS)
    bench.set(EXPLICIT | {PREDICATE: "value IS NULL"})
    batches = json.loads((GOLDEN / case / "kafka.json").read_text())
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    assert len(nulls) > 2
    outcome = bench.mark()
    assert marks(bench) == dict.fromkeys(nulls, "null_value")
    assert outcome.rows_removed == 0


@pytest.mark.long
def test_formats_are_told_apart_in_one_log(bench: Bench) -> None:
    """By batch, wherever the rows of records and batches lie."""
    write_log(bench.home, "t", [[]], {"cleanup.policy": "compact"})
    old = (GOLDEN / "magic-1" / f"{0:020}.log").read_bytes()
    batches = json.loads((GOLDEN / "magic-1" / "kafka.json").read_text())
    end = batches[-1]["last_offset"] + 1
    new = [write_batch(BatchFields(), [record(end, None), record(end + 1, "v")])]
    (bench.home / "t-0" / f"{0:020}.log").write_bytes(old + new[0])
    write_segments(bench.home, {end + 2: [write_batch(BatchFields(), [record(end + 2, None)])]})
    bench.ingest(bench.home, NIGHT_MS)
    bench.set(EXPLICIT)
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    bench.mark()
    assert marks(bench) == dict.fromkeys(nulls, "null_value")
    assert [row["offset"] for row in quarantine(bench)] == [end, end + 2]


@pytest.mark.long
def test_configuring_shows_how_many_would_go(bench: Bench) -> None:
    topic_of(bench, FORBIDDEN, COMPACT)
    plan = plan_configure(bench.load(), EXPLICIT | BY_HEADER, NIGHT_MS)
    shown: JobOutcome = plan.outcome()
    assert shown.partitions[0]["next_run"]["mark_tombstones"] == {
        "marked": 3,
        "by_rule": {"flag": 1, "header": 2},
        "unmarked": 0,
        "quarantined": 3,
        "refused": 0,
    }
    assert "; 3 records have a null value but no tombstone mark" in shown.topic["note"]
    other = {"kafka.retention.ms": "7"}
    unmarked = plan_configure(bench.load(), other, NIGHT_MS).outcome()
    by_value = {
        "marked": 5,
        "by_rule": {"null_value": 5},
        "unmarked": 0,
        "quarantined": 0,
        "refused": 0,
    }
    assert unmarked.partitions[0]["next_run"]["mark_tombstones"] == by_value
    bench.mark()
    marked = plan_configure(bench.load(), other, NIGHT_MS).outcome()
    assert "mark_tombstones" not in marked.partitions[0]["next_run"]


@pytest.mark.long
def test_a_message_with_an_empty_value_is_no_tombstone(bench: Bench) -> None:
    write_log(bench.home, "t", [[Message("a", ""), Message("b", None)]], {})
    bench.ingest(bench.home, FIRST_MS)
    bench.set(EXPLICIT)
    assert bench.mark().partitions[0]["quarantined"] == 1
    assert bench.left() == [0]


@pytest.mark.long
def test_a_replica_marks_and_quarantines_by_itself(bench: Bench, kafka_jars: Path) -> None:
    """What the primary lost before, it never gets; what it got before, it takes out itself."""
    copy = Bench(bench.sandbox, TopicName(f"{bench.name.cluster[:40]}_copy", "t"), bench.home)
    topic_of(bench, FORBIDDEN[:4], COMPACT, EXPLICIT, BY_HEADER, folder="log")
    bench.set({"ebbtide.replicas": f"lake.{copy.name.cluster}"})
    execute_replicate(plan_replicate(bench.load()), NIGHT_MS)
    bench.mark()
    topic_of(bench, FORBIDDEN, folder="log")
    bench.mark()
    execute_replicate(plan_replicate(bench.load()), NIGHT_MS)
    assert copy.left() == [0, 1, 2, 3, 6, 7]
    copy.mark()
    for each in (bench, copy):
        assert each.left() == [0, 2, 3, 6, 7]
        assert marks(each) == {2: "flag", 3: "header", 6: "header"}
    assert [row["offset"] for row in quarantine(bench)] == FORBIDDEN_OFFSETS
    assert [row["offset"] for row in quarantine(copy)] == [1]
    export(copy.spark, copy.name, bench.home / "out")
    states = kafkas_states(bench.home / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 2, 3, 6, 7]
    execute_replicate(plan_replicate(bench.load()), NIGHT_MS)
    assert not plan_replicate(bench.load()).behind


def test_a_batch_that_left_since_its_records_were_looked_up_is_a_conflict(bench: Bench) -> None:
    forbidden_topic(bench)
    topic = bench.load()
    snapshot = current_snapshot(bench.spark, bench.name.records_table)
    assert snapshot is not None
    bench.set({"kafka.cleanup.policy": "delete"})
    bench.delete({0: 4}, NIGHT_MS)
    bench.expire(NIGHT_MS)
    rule = tombstone_rule(bench.spark, topic.config)
    with pytest.raises(CommitConflictError, match="none for the batch at offset 0: its segment"):
        find_changes(topic, rule, {0: (0, 8)}, snapshot)
    bench.mark(now_ms=NIGHT_MS)
    assert [row["offset"] for row in quarantine(bench)] == [4, 5]


def test_a_batch_that_is_lost_is_named(bench: Bench) -> None:
    forbidden_topic(bench)
    bench.spark.sql(f"DELETE FROM {bench.name.batches_table} WHERE base_offset = 4")
    with pytest.raises(SafetyError, match=r"found none for the batch at offset 4\. No record"):
        plan_mark(bench.load())
