"""What the log must not hold: null values that nothing marks where tombstones are explicit."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from ebbtide.errors import CommitConflictError, SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.log.settings.names import TopicName
from ebbtide.records.v2_writer import BatchFields, write_batch
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.segment_merge import merge_segments
from ebbtide.stages.configure_topic.stage import plan_configure
from ebbtide.stages.delete_records.primary import execute_delete, plan_delete
from ebbtide.stages.expire_snapshots.stage import execute_expire_snapshots
from ebbtide.stages.mark_tombstones.changed_marks import find_changes
from ebbtide.stages.mark_tombstones.stage import plan_mark
from ebbtide.stages.mark_tombstones.tombstones import tombstone_rule
from ebbtide.stages.replicate_log.stage import execute_replicate, plan_replicate
from tests.lake_sandbox import LakeSandbox
from tests.stages.export_segments.exports import export, kafkas_states, states_of_each
from tests.stages.mark_tombstones.tombstones import (
    BY_HEADER,
    COMPACT,
    EXPLICIT,
    FORBIDDEN,
    FORBIDDEN_OFFSETS,
    NIGHT_MS,
    PREDICATE,
    configure,
    forbidden_topic,
    left,
    marks,
    quarantine,
    record,
    topic_of,
)
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets, view_of_kafka, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, expire, ingest, mark
from tests.tables.partition_log import write_segments

GOLDEN = Path(__file__).parents[2] / "records" / "golden"


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


@pytest.mark.long
def test_a_null_value_that_nothing_marks_leaves_the_log(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    before = view_of_table(sandbox.session, name, 0)
    plan = plan_mark(load(sandbox.session, name)).outcome()
    assert left(sandbox, name) == list(range(8))
    note = (
        "3 records have a null value that nothing marks as a tombstone, which "
        f"ebbtide.tombstone.explicit=true forbids: they go to {name.quarantine_table}"
    )
    assert (plan.partitions[0]["quarantined"], plan.topic["note"]) == (3, note)

    outcome = mark(sandbox.session, str(name), now_ms=NIGHT_MS)
    warned = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert warned == [note]
    assert outcome.topic == {"note": note, "quarantine": name.quarantine_table}
    assert (outcome.rows_removed, outcome.partitions[0]["quarantined"]) == (3, 3)
    assert outcome.partitions[0]["by"] == {"flag": 1, "header": 2}
    assert marks(sandbox, name) == {2: "flag", 3: "header", 6: "header"}
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == [0, 2, 3, 6, 7]
    assert view.batches == before.batches
    held = quarantine(sandbox, name)
    assert [row["offset"] for row in held] == FORBIDDEN_OFFSETS
    first = held[0]
    assert (first["partition"], first["batch"], first["key"], first["value"]) == (0, 0, b"k1", None)
    assert first["headers"] == [{"key": "trace", "value": b"7"}]
    assert (first["reason"], first["run_id"]) == ("unmarked_null_value", "run")
    assert first["quarantined_at"].timestamp() * 1000 == NIGHT_MS
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 8
    again = mark(sandbox.session, str(name))
    assert (again.rows_removed, again.topic) == (0, {})


QUARANTINE_STEPS = [
    *(Step.QUARANTINE_TABLE, Step.QUARANTINE_RECORDS, Step.QUARANTINE_STATE),
    *(Step.MARK_RECORDS, Step.MARK_STATE),
]


@pytest.mark.parametrize("is_exported", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_marking_that_is_killed_at_each_commit_quarantines_each_record_once(
    sandbox: LakeSandbox,
    name: TopicName,
    tmp_path: Path,
    kafka_jars: Path,
    kill_at: list[Step],
    is_exported: bool,
) -> None:
    """And at no time is the log one that an export refuses."""
    forbidden_topic(sandbox, name, tmp_path / "log")
    kill_at += QUARANTINE_STEPS
    exported, expected = list[Path](), list[list[int]]()
    while kill_at:
        with pytest.raises(KilledError):
            mark(sandbox.session, str(name))
        expected.append(left(sandbox, name))
        if is_exported:
            exported.append(tmp_path / f"killed-{len(kill_at)}")
            export(sandbox.session, name, exported[-1])
    if is_exported:
        states = states_of_each(exported, kafka_jars)
        assert [offsets(view_of_kafka(state["t-0"])) for state in states] == expected
    assert len(expected) == len(QUARANTINE_STEPS)
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == FORBIDDEN_OFFSETS
    assert left(sandbox, name) == [0, 2, 3, 6, 7]
    assert marks(sandbox, name) == {2: "flag", 3: "header", 6: "header"}
    assert load(sandbox.session, name).partitions[0].first_unmarked_offset == 8


@pytest.mark.long
def test_the_other_jobs_go_on_with_what_is_left(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    """Segment 4 has lost all of its records, and its batch stays until a round."""
    forbidden_topic(sandbox, name, tmp_path / "log")
    configure(sandbox, name, {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    clean(sandbox.session, str(name), NIGHT_MS)
    assert left(sandbox, name) == [0, 2, 3, 6, 7]
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    view = view_of_table(sandbox.session, name, 0)
    assert offsets(view) == [0, 7]
    merge_segments(load(sandbox.session, name), at_least=2)
    execute_expire_snapshots(load(sandbox.session, name))
    assert view_of_table(sandbox.session, name, 0) == view
    export(sandbox.session, name, tmp_path / "out")
    states = kafkas_states(tmp_path / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 7]
    records = [*FORBIDDEN, record(8, None), record(9, "v")]
    topic_of(sandbox, name, tmp_path / "log", records)
    assert mark(sandbox.session, str(name)).rows_removed == 1
    assert left(sandbox, name) == [0, 7, 9]


@pytest.mark.long
def test_what_its_owner_deletes_from_the_quarantine_leaves_the_disk(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    configure(sandbox, name, {"history.expire.max-snapshot-age-ms": "0"})
    mark(sandbox.session, str(name))
    table = name.quarantine_table
    sandbox.session.sql(f"DELETE FROM {table} WHERE offset = 4")
    execute_expire_snapshots(load(sandbox.session, name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == [1, 5]
    on_disk = sandbox.session.sql(f"SELECT record_count FROM {table}.all_files").collect()
    assert [row[0] for row in on_disk] == [2]


@pytest.mark.long
def test_a_log_that_begins_anew_shares_no_place_with_the_one_before(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """Its offsets are in the quarantine already, as those of other records."""
    forbidden_topic(sandbox, name, tmp_path / "1")
    mark(sandbox.session, str(name))
    for table in (name.records_table, name.batches_table):
        sandbox.session.sql(f"DROP TABLE {table}")
    sandbox.session.sql(f"DROP VIEW {name.committed_view}")
    forbidden_topic(sandbox, name, tmp_path / "2")
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == sorted(2 * FORBIDDEN_OFFSETS)
    assert left(sandbox, name) == [0, 2, 3, 6, 7]


@pytest.mark.long
def test_what_delete_records_hides_is_not_quarantined(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    configure(sandbox, name, {"ebbtide.state.0.log-start-offset": "5"})
    mark(sandbox.session, str(name))
    assert [row["offset"] for row in quarantine(sandbox, name)] == [5]


@pytest.mark.long(but="1")
@pytest.mark.parametrize("magic", [0, 1])
def test_before_magic_2_a_null_value_is_always_a_tombstone(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, magic: int
) -> None:
    case = f"magic-{magic}"
    write_log(tmp_path, "t", [[]], {"cleanup.policy": "compact"})
    first = f"{0:020}.log"
    shutil.copy(GOLDEN / case / first, tmp_path / "t-0" / first)
    ingest(sandbox.session, str(name), tmp_path, NIGHT_MS)
    configure(sandbox, name, EXPLICIT | {PREDICATE: "value IS NULL"})
    batches = json.loads((GOLDEN / case / "kafka.json").read_text())
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    assert len(nulls) > 2
    outcome = mark(sandbox.session, str(name))
    assert marks(sandbox, name) == dict.fromkeys(nulls, "null_value")
    assert outcome.rows_removed == 0


@pytest.mark.long
def test_formats_are_told_apart_in_one_log(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    """By batch, wherever the rows of records and batches lie."""
    write_log(tmp_path, "t", [[]], {"cleanup.policy": "compact"})
    old = (GOLDEN / "magic-1" / f"{0:020}.log").read_bytes()
    batches = json.loads((GOLDEN / "magic-1" / "kafka.json").read_text())
    end = batches[-1]["last_offset"] + 1
    new = [write_batch(BatchFields(), [record(end, None), record(end + 1, "v")])]
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(old + new[0])
    write_segments(tmp_path, {end + 2: [write_batch(BatchFields(), [record(end + 2, None)])]})
    ingest(sandbox.session, str(name), tmp_path, NIGHT_MS)
    configure(sandbox, name, EXPLICIT)
    nulls = [r["offset"] for b in batches for r in b["records"] if r["value"] is None]
    mark(sandbox.session, str(name))
    assert marks(sandbox, name) == dict.fromkeys(nulls, "null_value")
    assert [row["offset"] for row in quarantine(sandbox, name)] == [end, end + 2]


@pytest.mark.long
def test_configuring_shows_how_many_would_go(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    topic_of(sandbox, name, tmp_path, FORBIDDEN, COMPACT)
    plan = plan_configure(load(sandbox.session, name), EXPLICIT | BY_HEADER, NIGHT_MS)
    shown: JobOutcome = plan.outcome()
    assert shown.partitions[0]["next_run"]["mark_tombstones"] == {
        "marked": 3,
        "by": {"flag": 1, "header": 2},
        "unmarked": 0,
        "quarantined": 3,
    }
    assert "; 3 records have a null value that nothing marks" in shown.topic["note"]
    other = {"kafka.retention.ms": "7"}
    unmarked = plan_configure(load(sandbox.session, name), other, NIGHT_MS).outcome()
    by_value = {"marked": 5, "by": {"null_value": 5}, "unmarked": 0, "quarantined": 0}
    assert unmarked.partitions[0]["next_run"]["mark_tombstones"] == by_value
    mark(sandbox.session, str(name))
    marked = plan_configure(load(sandbox.session, name), other, NIGHT_MS).outcome()
    assert "mark_tombstones" not in marked.partitions[0]["next_run"]


@pytest.mark.long
def test_a_message_with_an_empty_value_is_no_tombstone(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    write_log(tmp_path, "t", [[Message("a", ""), Message("b", None)]], {})
    ingest(sandbox.session, str(name), tmp_path, FIRST_MS)
    configure(sandbox, name, EXPLICIT)
    assert mark(sandbox.session, str(name)).partitions[0]["quarantined"] == 1
    assert left(sandbox, name) == [0]


@pytest.mark.long
def test_a_replica_marks_and_quarantines_by_itself(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    """What the primary lost before, it never gets; what it got before, it takes out itself."""
    spark = sandbox.session
    replica = TopicName(f"{name.cluster[:40]}_copy", "t")
    topic_of(sandbox, name, tmp_path / "log", FORBIDDEN[:4], COMPACT, EXPLICIT, BY_HEADER)
    configure(sandbox, name, {"ebbtide.replicas": f"lake.{replica.cluster}"})
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    mark(spark, str(name))
    topic_of(sandbox, name, tmp_path / "log", FORBIDDEN)
    mark(spark, str(name))
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    assert left(sandbox, replica) == [0, 1, 2, 3, 6, 7]
    mark(spark, str(replica))
    for of in (name, replica):
        assert left(sandbox, of) == [0, 2, 3, 6, 7]
        assert marks(sandbox, of) == {2: "flag", 3: "header", 6: "header"}
    assert [row["offset"] for row in quarantine(sandbox, name)] == FORBIDDEN_OFFSETS
    assert [row["offset"] for row in quarantine(sandbox, replica)] == [1]
    export(spark, replica, tmp_path / "out")
    states = kafkas_states(tmp_path / "out", kafka_jars)
    assert offsets(view_of_kafka(states["t-0"])) == [0, 2, 3, 6, 7]
    execute_replicate(plan_replicate(load(spark, name)), NIGHT_MS)
    assert not plan_replicate(load(spark, name)).behind


def test_a_batch_that_left_since_its_records_were_looked_up_is_a_conflict(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    topic = load(sandbox.session, name)
    snapshot = current_snapshot(sandbox.session, name.records_table)
    assert snapshot is not None
    configure(sandbox, name, {"kafka.cleanup.policy": "delete"})
    execute_delete(plan_delete(load(sandbox.session, name), {0: 4}, NIGHT_MS))
    expire(sandbox.session, str(name), NIGHT_MS)
    rule = tombstone_rule(sandbox.session, topic.config)
    with pytest.raises(CommitConflictError, match="found none for the batch at 0: its segment"):
        find_changes(topic, rule, {0: (0, 8)}, snapshot)
    mark(sandbox.session, str(name), now_ms=NIGHT_MS)
    assert [row["offset"] for row in quarantine(sandbox, name)] == [4, 5]


def test_a_batch_that_is_lost_is_named(
    sandbox: LakeSandbox, name: TopicName, tmp_path: Path
) -> None:
    forbidden_topic(sandbox, name, tmp_path)
    sandbox.session.sql(f"DELETE FROM {name.batches_table} WHERE base_offset = 4")
    with pytest.raises(SafetyError, match="found none for the batch at 4; roll the tables back"):
        plan_mark(load(sandbox.session, name))
