"""erase_keys on a closed archive: tombstones appended once, and the values gone with the round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ConfigurationError,
    ForeignLogError,
    RequestError,
    SourceError,
)
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures_table import hash_of
from ebbtide.iceberg.schema import ERASURES_TABLE
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.log.requests.erase_request import Erasure
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import APPEND, to_properties
from ebbtide.records.consumer_record import read_topic
from ebbtide.records.v2_writer import BatchFields, Record, write_batch
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.erase_keys.stage import erase_keys, execute_erase, plan_erase, prepare_erase
from ebbtide.stages.expire_snapshots.stage import execute_expire_snapshots
from ebbtide.stages.export_segments.stage import Export, execute_export, plan_export
from tests.kafka.oracle import SourceLog, run_oracle
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark
from tests.tables.partition_log import T0, write_segments

DOCS = Path(__file__).resolve().parents[3] / "docs" / "erase_keys.md"
CONFIG = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.delete.retention.ms": str(DAY_MS),
    "ebbtide.source": "",
}
ERASED_MS = T0 + 10 * DAY_MS
APPEND_STEPS = [step for step in Step if step.name.startswith("APPEND_")]


def batch(first: int, *pairs: tuple[str, str | None]) -> bytes:
    records = [
        Record(first + i, T0 + first + i, key.encode(), value and value.encode())
        for i, (key, value) in enumerate(pairs)
    ]
    return write_batch(BatchFields(leader_epoch=3), records)


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Key a in both partitions, b and d in one; c is a tombstone; 0 has no empty segment."""
    write_segments(
        tmp_path,
        {
            0: [batch(0, ("a", "1"), ("b", "1")), batch(2, ("a", "2"), ("c", "1"))],
            4: [batch(4, ("c", None), ("d", "1"))],
        },
    )
    return write_segments(tmp_path, {0: [batch(0, ("a", "3"))], 1: []}, partition=1)


@pytest.fixture
def name(spark: SparkSession, cluster: str, source: Path) -> TopicName:
    """The topic once its last source is closed and a first round was run."""
    name = TopicName(cluster, "t")
    ingest(spark, str(name), source, T0 + HOUR_MS)
    configure(spark, name, CONFIG)
    return name


def configure(spark: SparkSession, name: TopicName, properties: dict[str, str | None]) -> None:
    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: properties)


def erasure_of(*keys: str, **fields: Any) -> Erasure:
    ordinary = {
        "run_id": "erase-1",
        "now_ms": ERASED_MS,
        "requested_by": "privacy office",
        "reason": "request 17",
        "appends": True,
    }
    return Erasure(keys=tuple(key.encode() for key in keys), **{**ordinary, **fields})


def erase(spark: SparkSession, name: TopicName, erasure: Erasure) -> JobOutcome:
    return erase_keys(spark, name, erasure)


def records(spark: SparkSession, name: TopicName) -> list[tuple[int, int, str, str | None]]:
    rows = spark.table(name.records_table).orderBy("partition", "offset").collect()
    return [
        (r["partition"], r["offset"], r["key"].decode(), r["value"] and r["value"].decode())
        for r in rows
    ]


def batches(spark: SparkSession, name: TopicName) -> list[dict[str, Any]]:
    table = spark.table(name.batches_table).orderBy("partition", "base_offset")
    rows: list[dict[str, Any]] = table.toArrow().to_pylist()
    return rows


def erasures(spark: SparkSession, name: TopicName, status: str) -> dict[Any, dict[str, Any]]:
    rows = spark.table(ERASURES_TABLE).where(f"topic = '{name}' AND status = '{status}'")
    found = rows.toArrow().to_pylist()
    assert len({(r["partition"], r["key_sha256"]) for r in found}) == len(found)
    return {(row["partition"], row["key_sha256"]): row for row in found}


def erased(spark: SparkSession, name: TopicName) -> None:
    """Assert what an erasure of a, c and x leaves, each tombstone once."""
    found = records(spark, name)
    assert found == [
        (0, 1, "b", "1"),
        (0, 4, "c", None),
        (0, 5, "d", "1"),
        (0, 6, "a", None),
        (1, 1, "a", None),
    ]
    by_place = [(b["partition"], b["base_offset"], b["record_count"]) for b in batches(spark, name)]
    assert [place for place in by_place if place[2]] == [(0, 0, 1), (0, 4, 2), (0, 6, 1), (1, 1, 1)]
    states = load(spark, name).partitions
    assert {p: (s.log_end_offset, s.first_appended_offset) for p, s in states.items()} == {
        0: (7, 6),
        1: (2, 1),
    }
    assert APPEND not in load(spark, name).properties


def test_tombstones_are_appended_and_the_round_takes_the_values(
    spark: SparkSession, name: TopicName
) -> None:
    outcome = erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)
    assert outcome.error is None
    assert outcome.rows_removed == 4
    numbers = outcome.partitions[0]
    assert (numbers["log_end_offset"], numbers["keys"], numbers["found"]) == (7, 2, 3)
    assert (numbers["tombstones"], numbers["superseded"], numbers["left"]) == (1, 3, 0)
    assert numbers["last_horizon_ms"] == ERASED_MS + DAY_MS
    assert "note" not in numbers
    topic = outcome.topic
    assert (topic["keys"], topic["not_found"], topic["way"]) == (3, 1, "appended")
    assert topic["out_of_table_ms"] > 0
    assert topic["off_disk_from_ms"] is None
    # Beside the four values, three tombstones have left their files: a mark writes a row anew.
    assert topic["note"].startswith(
        "3 keys, 1 of them not found; 4 superseded records have left the table, 0 have not; they "
        "are on the disk still: 7 deleted rows stay in files that the next expire_snapshots "
        "rewrites; their tombstones may leave from 2023-11-25 22:14 UTC on. "
    )
    states = load(spark, name).partitions
    assert states[0].segments[-1] == (7, ERASED_MS)
    assert states[1].segments[-1] == (2, ERASED_MS)


def test_a_tombstone_says_who_asked_when_why_and_where(
    spark: SparkSession, name: TopicName
) -> None:
    erase(spark, name, erasure_of("b"))
    row = spark.table(name.records_table).where("offset = 6").collect()[0]
    assert {h["key"]: h["value"].decode() for h in row["headers"]} == {
        "ebbtide.erase.requested_by": "privacy office",
        "ebbtide.erase.requested_at": "2023-11-24T22:13:20+00:00",
        "ebbtide.erase.reason": "request 17",
        "ebbtide.erase.run_id": "erase-1",
    }
    assert row["is_tombstone"]
    assert row["attributes"] == 0x20
    assert row["timestamp"].timestamp() * 1000 == ERASED_MS
    (of_tombstone,) = (b for b in batches(spark, name) if b["base_offset"] == 6)
    assert (of_tombstone["leader_epoch"], of_tombstone["magic"]) == (3, 2)
    assert of_tombstone["attributes"] == 0x40


def test_a_request_makes_no_event_old(spark: SparkSession, name: TopicName) -> None:
    before = load(spark, name).partitions
    erase(spark, name, erasure_of("a", "b"))
    after = load(spark, name).partitions
    assert after[0].max_event_time_ms == before[0].max_event_time_ms == T0 + 5
    assert {b["max_event_time_ms"] for b in batches(spark, name) if b["base_offset"] > 5} == {
        T0 + 5
    }


def test_the_report_key_by_key(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a", "c", "x"))
    a, c, x = (hash_of(key) for key in (b"a", b"c", b"x"))
    reported = erasures(spark, name, "reported")
    assert reported.keys() == {(0, a), (1, a), (0, c), (None, x)}
    said = {
        at: (r["found"], r["superseded"], r["left"], r["tombstone_offset"], r["way"])
        for at, r in reported.items()
    }
    assert said == {
        (0, a): (2, 2, 0, 6, "appended"),
        (1, a): (1, 1, 0, 1, "appended"),
        (0, c): (1, 1, 0, 4, None),
        (None, x): (0, None, None, None, None),
    }
    row = reported[0, a]
    assert row["horizon"].timestamp() * 1000 == ERASED_MS + DAY_MS
    assert row["out_of_table_at"] is not None
    assert row["off_disk_from"] is None
    assert (row["requested_by"], row["reason"]) == ("privacy office", "request 17")
    assert erasures(spark, name, "logged").keys() == reported.keys() - {(None, x)}
    (sql,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.S)
    asked = sql.replace("log.people", str(name)).replace("alice@example.org", "a")
    assert [(r["partition"], r["found"], r["left"]) for r in spark.sql(asked).collect()] == [
        (0, 2, 0),
        (1, 1, 0),
    ]


def test_the_tombstones_leave_after_their_horizon(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a", "b", "c", "d"))
    clean(spark, str(name), ERASED_MS + DAY_MS - 1)
    assert [key for _, _, key, _ in records(spark, name)] == ["c", "a", "b", "d", "a"]
    clean(spark, str(name), ERASED_MS + DAY_MS)
    assert records(spark, name) == []


def test_again_is_no_second_tombstone(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a"))
    again = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert {p: n["tombstones"] for p, n in again.partitions.items()} == {0: 0, 1: 0}
    assert load(spark, name).partitions[0].log_end_offset == 7
    assert again.topic["superseded"] == again.topic["left"] == 0


@pytest.mark.parametrize("step", [*APPEND_STEPS, Step.ERASURE_ROWS, Step.MARK_STATE])
def test_a_killed_erasure_is_finished_by_the_same_request(
    spark: SparkSession, name: TopicName, kill_at: list[Step], step: Step
) -> None:
    mark(spark, str(name))
    kill_at.append(step)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a", "c", "x"))
    erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)


@pytest.mark.parametrize("step", APPEND_STEPS)
def test_a_killed_erasure_is_finished_by_another_request(
    spark: SparkSession, name: TopicName, kill_at: list[Step], step: Step
) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a"))
    erase(spark, name, erasure_of("b", run_id="erase-2", now_ms=ERASED_MS + 1))
    keys = [key for _, _, key, value in records(spark, name) if value is None]
    was_appended = step in (Step.APPEND_BATCHES, Step.APPEND_STATE)
    assert sorted(keys) == (["a", "a", "b", "c"] if was_appended else ["b", "c"])
    state = load(spark, name).partitions[1]
    assert state.first_appended_offset == (1 if was_appended else -1)
    assert APPEND not in load(spark, name).properties


@pytest.mark.parametrize("step", [Step.APPEND_STARTED, Step.APPEND_RECORDS])
def test_of_two_at_a_time_each_key_gets_one_tombstone(
    spark: SparkSession, name: TopicName, meanwhile: Meanwhile, step: Step
) -> None:
    other = erasure_of("a", "b", run_id="erase-2")
    meanwhile(step, lambda: erase(spark, name, other))
    with pytest.raises(CommitConflictError):
        erase(spark, name, erasure_of("a"))
    erase(spark, name, erasure_of("a"))
    found = [(p, key) for p, _, key, value in records(spark, name) if value is None]
    assert found == [(0, "c"), (0, "a"), (0, "b"), (1, "a")]
    counts = [b["record_count"] for b in batches(spark, name) if b["base_offset"] >= 6]
    assert counts == [2]


def test_many_keys_are_batches_of_at_most_max_message_bytes(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    name = TopicName(cluster, "t")
    keys = [f"key {i}" for i in range(100)]
    write_segments(tmp_path, {0: [batch(0, *((key, "v") for key in keys))], 100: []})
    ingest(spark, str(name), tmp_path, T0 + HOUR_MS)
    configure(spark, name, {**CONFIG, "kafka.max.message.bytes": "1000"})
    erase(spark, name, erasure_of(*keys))
    appended = [b for b in batches(spark, name) if b["base_offset"] >= 100]
    assert len(appended) > 10
    assert all(b["size_bytes"] <= 1061 for b in appended)
    assert {b["segment"] for b in appended} == {100}
    assert [key for *_, key, _ in records(spark, name)] == sorted(keys)
    assert load(spark, name).partitions[0].log_end_offset == 200


def test_once_their_files_are_rewritten_the_same_request_has_the_date(
    spark: SparkSession, name: TopicName
) -> None:
    erase(spark, name, erasure_of("a"))
    table = java_table(spark, name.records_table)
    replaced_ms = int(table.currentSnapshot().timestampMillis())
    assert execute_expire_snapshots(load(spark, name)).topic["files_rewritten"] > 0
    outcome = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert outcome.topic["off_disk_from_ms"] == replaced_ms + 5 * DAY_MS
    assert "; they leave the disk with the first expire_snapshots after " in outcome.topic["note"]


def test_a_tag_that_keeps_old_files_is_named(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"ALTER TABLE {name.records_table} CREATE TAG audit")
    erase(spark, name, erasure_of("a"))
    execute_expire_snapshots(load(spark, name))
    outcome = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert outcome.topic["off_disk_from_ms"] is None
    assert "the tag audit of the records table keeps old files" in outcome.topic["note"]


def test_what_keeps_a_round_away_is_said(spark: SparkSession, name: TopicName) -> None:
    mark(spark, str(name))
    clean(spark, str(name), T0 + DAY_MS)
    configure(spark, name, {"kafka.min.cleanable.dirty.ratio": "0.99"})
    outcome = erase(spark, name, erasure_of("a"))
    assert outcome.partitions[0]["left"] == 1
    note = outcome.partitions[0]["note"]
    assert note.startswith("1 records of the keys wait for a cleaner round: dirty ratio 0.")
    assert note.endswith("kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms decides")
    row = erasures(spark, name, "reported")[0, hash_of(b"a")]
    assert (row["superseded"], row["left"], row["out_of_table_at"]) == (0, 1, None)
    assert outcome.topic["off_disk_from_ms"] is None


def test_the_next_round_takes_what_this_one_could_not(spark: SparkSession, name: TopicName) -> None:
    configure(spark, name, {"kafka.min.compaction.lag.ms": str(HOUR_MS)})
    outcome = erase(spark, name, erasure_of("a"))
    assert outcome.topic["left"] == 2
    assert outcome.partitions[0]["note"].endswith("is not closed yet, or not old enough")
    clean(spark, str(name), ERASED_MS + HOUR_MS)
    assert [key for _, _, key, value in records(spark, name) if value] == ["b", "d"]


def test_keys_in_a_file(spark: SparkSession, name: TopicName, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("YQ==\n\nYg==\nYQ==\n")
    erase(spark, name, erasure_of(keys_file=str(file), encoding="base64"))
    assert [key for _, _, key, value in records(spark, name) if value] == ["d"]


@pytest.mark.parametrize(("keys", "file"), [([], None), (["a"], "/keys")])
def test_keys_are_typed_in_or_in_a_file(
    spark: SparkSession, name: TopicName, keys: list[str], file: str | None
) -> None:
    with pytest.raises(RequestError, match=r"^expected keys "):
        plan_erase(load(spark, name), erasure_of(*keys, keys_file=file))
    with pytest.raises(SourceError, match=r"^expected a text file of keys .* at /none, found"):
        plan_erase(load(spark, name), erasure_of(keys_file="/none"))


def test_a_plan_changes_nothing(spark: SparkSession, name: TopicName) -> None:
    before = records(spark, name), load(spark, name).properties
    outcome = plan_erase(load(spark, name), erasure_of("a", "x")).outcome()
    assert outcome.partitions[0]["tombstones"] == outcome.partitions[1]["tombstones"] == 1
    assert outcome.topic["not_found"] == 1
    assert (records(spark, name), load(spark, name).properties) == before


def refused(
    spark: SparkSession, name: TopicName, changes: dict[str, str | None], **fields: Any
) -> str:
    configure(spark, name, changes)
    with pytest.raises((ConfigurationError, RequestError)) as raised:
        erase(spark, name, erasure_of("a", **fields))
    assert load(spark, name).partitions[0].log_end_offset == 6
    return str(raised.value)


def test_a_topic_that_is_not_compacted_is_refused(spark: SparkSession, name: TopicName) -> None:
    said = refused(spark, name, {"kafka.cleanup.policy": "delete"})
    assert "expected kafka.cleanup.policy of" in said
    assert "to hold compact, found delete" in said


@pytest.mark.parametrize(
    "writer",
    [{"ebbtide.source": "segments:/logs"}, {"ebbtide.replicas": "kafka:main"}],
)
def test_a_topic_that_somebody_writes_gets_none_directly(
    spark: SparkSession, name: TopicName, writer: dict[str, str | None]
) -> None:
    assert "expected a topic without an upstream to append to" in refused(spark, name, writer)


def test_a_topic_without_a_connection_gets_none_by_its_writer(
    spark: SparkSession, name: TopicName
) -> None:
    said = refused(spark, name, {"ebbtide.source": "segments:/logs"}, appends=False)
    assert "expected a Kafka connection to the live topic of" in said
    assert "ebbtide.source (segments:/logs)" in said


def test_a_replica_gets_none(spark: SparkSession, name: TopicName) -> None:
    said = refused(spark, name, {"ebbtide.replica.of": "the primary's id"})
    assert "expected a topic that is no replica" in said


def test_an_ingest_takes_no_offsets_that_were_appended(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, ERASED_MS)
    erase(spark, name, erasure_of("a"))
    ingest(spark, str(name), source, ERASED_MS + 1)
    write_segments(source, {6: [batch(6, ("e", "1"))], 7: []})
    with pytest.raises(ForeignLogError, match="from which on"):
        ingest(spark, str(name), source, ERASED_MS + 2)
    erased_keys = [key for _, _, key, value in records(spark, name) if value is None]
    assert erased_keys == ["c", "a", "a"]


def test_what_a_killed_ingest_left_is_not_passed_over(
    spark: SparkSession, name: TopicName, source: Path, kill_at: list[Step]
) -> None:
    write_segments(source, {6: [batch(6, ("e", "1"))], 7: []})
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, ERASED_MS)
    with pytest.raises(ForeignLogError, match="an ingest was killed"):
        erase(spark, name, erasure_of("a"))


def test_what_another_erasure_left_beyond_the_end_is_taken_in(
    spark: SparkSession, name: TopicName, kill_at: list[Step]
) -> None:
    """Nothing says any more that it was in flight: its tombstones do."""
    kill_at.append(Step.APPEND_BATCHES)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a", "c", "x"))
    before = {p: s.moved(first_appended_offset=-1) for p, s in load(spark, name).partitions.items()}
    changes: dict[str, str | None] = {APPEND: None}
    for partition, state in before.items():
        changes |= to_properties(partition, state)
    configure(spark, name, changes)
    erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)


def test_an_export_holds_them_and_a_broker_takes_it(
    spark: SparkSession, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    erase(spark, name, erasure_of("a"))
    target = str(tmp_path / "export")
    execute_export(plan_export(load(spark, name), Export(target, "export-1", ())))
    found = [(r.partition, r.offset, r.key, r.is_tombstone) for r in read_topic(target, "t")]
    assert found[-2:] == [(0, 6, b"a", True), (1, 1, b"a", True)]
    logs = [
        SourceLog(directory=Path(target, f"t-{p}"), config={"cleanup.policy": "compact"}, rounds=[])
        for p in (0, 1)
    ]
    ends = [result.initial.log_end_offset for result in run_oracle(logs, kafka_jars)]
    assert ends == [7, 2]


def test_a_plan_made_before_another_appended_is_made_again(
    spark: SparkSession, name: TopicName, kill_at: list[Step]
) -> None:
    mine = erasure_of("a", "b")
    topic, done = prepare_erase(spark, name, mine)
    plan = plan_erase(topic, mine)
    kill_at.append(Step.APPEND_STATE)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a", run_id="erase-2"))
    with pytest.raises(CommitConflictError, match="found that another erasure appends to it"):
        execute_erase(plan, done)
    erase(spark, name, mine)
    found = [(p, key) for p, _, key, value in records(spark, name) if value is None]
    assert found == [(0, "c"), (0, "a"), (0, "b"), (1, "a")]
