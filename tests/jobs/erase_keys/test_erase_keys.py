"""erase_keys on a closed archive: tombstones appended once, and the values gone with the round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.export_segments import Export, execute_export, plan_export
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.records.consumer_record import read_topic
from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.closed_archive import (
    CONFIG,
    ERASED_MS,
    batch,
    batches,
    configure,
    erase,
    erased,
    erasure_of,
    erasures,
    records,
)
from tests.kafka.oracle import SourceLog, run_oracle
from tests.log.log_files import data_batch, transactional
from tests.tables.bench import Bench
from tests.tables.fixtures import Meanwhile
from tests.tables.logs import Message, batch_of, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, clean, ingest, mark
from tests.tables.partition_log import T0, write_segments

DOCS = Path(__file__).resolve().parents[3] / "docs" / "erase_keys.md"


def test_tombstones_are_appended_and_the_round_takes_the_values(
    spark: SparkSession, name: TopicName
) -> None:
    outcome = erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)
    assert outcome.error is None
    assert outcome.rows_removed == 4
    numbers = outcome.partitions[0]
    assert (numbers["log_end_offset"], numbers["keys"], numbers["found"]) == (7, 2, 3)
    assert (numbers["tombstones"], numbers["superseded"], numbers["remaining"]) == (1, 3, 0)
    assert numbers["last_horizon_ms"] == ERASED_MS + DAY_MS
    assert "note" not in numbers
    topic = outcome.topic
    assert (topic["keys"], topic["not_found"], topic["method"]) == (3, 1, "appended")
    assert topic["out_of_table_ms"] > 0
    assert topic["off_disk_from_ms"] is None
    # Beside the four values, three tombstones have left their files: a mark writes a row anew.
    assert topic["note"].startswith(
        "3 keys, 1 of them not found; 4 superseded records removed from the table, 0 still in it; "
        "their bytes are still on the disk: 7 deleted rows are in files that the next "
        "expire_snapshots rewrites; the last of their tombstones is due at 2023-11-25 22:14 UTC. "
    )
    states = load(spark, name).partitions
    assert states[0].segments[-1] == (7, ERASED_MS)
    assert states[1].segments[-1] == (2, ERASED_MS)


def test_a_record_above_an_open_transaction_needs_a_tombstone(empty: Bench) -> None:
    """No reader of committed records sees it yet; an undecided tombstone may be aborted."""
    first = [
        data_batch(0, ("a", "1"), at_ms=T0),
        data_batch(1, ("a", None), at_ms=T0),
        transactional(2, "b", producer=7, at_ms=T0),
        data_batch(3, ("a", "2"), ("c", "1"), at_ms=T0),
    ]
    write_log(empty.home / "log", "t", [], {"cleanup.policy": "compact"})
    write_segments(empty.home / "log", {0: first, 5: []})
    empty.ingest(empty.home / "log", T0)
    configure(empty.spark, empty.name, {**CONFIG})
    numbers = erase(empty.spark, empty.name, erasure_of("a", "b", "c")).partitions[0]
    assert (numbers["found"], numbers["tombstones"]) == (5, 3)
    again = erase(empty.spark, empty.name, erasure_of("a", "b", "c", run_id="again"))
    assert again.partitions[0]["tombstones"] == 0


def test_an_older_record_that_arrives_during_an_erasure_is_told(
    empty: Bench, meanwhile: Meanwhile
) -> None:
    """The key was not found, and the ingest began before the key was in the table of erasures."""
    log = [[Message("a", "1")], [Message("late", "1")], []]
    directory = write_log(empty.home / "log", "t", [*log[:1], []], {"cleanup.policy": "compact"})
    empty.ingest(directory, T0)
    configure(empty.spark, empty.name, {**CONFIG})
    (directory / "t-0" / f"{1:020}.log").write_bytes(batch_of(log[1], 1))
    meanwhile(Step.ERASURE_ROWS, lambda: empty.ingest(directory, T0))
    topic = erase(empty.spark, empty.name, erasure_of("late")).topic
    assert (topic["not_found"], topic["arrived"]) == (1, 1)
    assert (
        "1 of the keys that were not found have records now: run erase_keys again"
        in (topic["note"])
    )
    logged = erasures(empty.spark, empty.name, "logged")
    assert list(logged) == [(None, secret_of(str(empty.name)).name(b"late"))]


@pytest.mark.long
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


@pytest.mark.long
def test_a_request_makes_no_event_old(spark: SparkSession, name: TopicName) -> None:
    before = load(spark, name).partitions
    erase(spark, name, erasure_of("a", "b"))
    after = load(spark, name).partitions
    assert after[0].max_event_time_ms == before[0].max_event_time_ms == T0 + 5
    assert {b["max_event_time_ms"] for b in batches(spark, name) if b["base_offset"] > 5} == {
        T0 + 5
    }


@pytest.mark.long
def test_the_report_key_by_key(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a", "c", "x"))
    a, c, x = (secret_of(str(name)).name(key) for key in (b"a", b"c", b"x"))
    reported = erasures(spark, name, "reported")
    assert reported.keys() == {(0, a), (1, a), (0, c), (None, x)}
    numbers = {
        at: (r["found"], r["superseded"], r["left"], r["tombstone_offset"], r["way"])
        for at, r in reported.items()
    }
    assert numbers == {
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
    assert erasures(spark, name, "logged").keys() == reported.keys()
    (sql,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.S)
    asked = re.sub("manual__[^']*", row["run_id"], sql.replace("log.people", str(name)))
    rows = [(r["partition"], r["found"], r["left"]) for r in spark.sql(asked).collect()]
    assert rows[0] == (None, 0, None)
    assert sorted(rows[1:]) == [(0, 1, 0), (0, 2, 0), (1, 1, 0)]


@pytest.mark.long
def test_the_tombstones_leave_after_their_horizon(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a", "b", "c", "d"))
    clean(spark, str(name), ERASED_MS + DAY_MS - 1)
    assert [key for _, _, key, _ in records(spark, name)] == ["c", "a", "b", "d", "a"]
    clean(spark, str(name), ERASED_MS + DAY_MS)
    assert records(spark, name) == []


@pytest.mark.long
def test_again_is_no_second_tombstone(spark: SparkSession, name: TopicName) -> None:
    erase(spark, name, erasure_of("a"))
    again = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert {p: n["tombstones"] for p, n in again.partitions.items()} == {0: 0, 1: 0}
    assert load(spark, name).partitions[0].log_end_offset == 7
    assert again.topic["superseded"] == again.topic["remaining"] == 0


@pytest.mark.long
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


@pytest.mark.long
def test_once_their_files_are_rewritten_the_same_request_has_the_date(
    spark: SparkSession, name: TopicName
) -> None:
    erase(spark, name, erasure_of("a"))
    table = java_table(spark, name.records_table)
    replaced_ms = int(table.currentSnapshot().timestampMillis())
    assert execute_expire_snapshots(load(spark, name)).topic["files_rewritten"] > 0
    outcome = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert outcome.topic["off_disk_from_ms"] == replaced_ms + 5 * DAY_MS
    assert re.search(
        r"; the first expire_snapshots after [-0-9]+ [0-9:]+ UTC frees their bytes",
        outcome.topic["note"],
    )


@pytest.mark.long
def test_a_tag_that_keeps_old_files_is_named(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"ALTER TABLE {name.records_table} CREATE TAG audit")
    erase(spark, name, erasure_of("a"))
    execute_expire_snapshots(load(spark, name))
    outcome = erase(spark, name, erasure_of("a", run_id="erase-2", now_ms=ERASED_MS + 1))
    assert outcome.topic["off_disk_from_ms"] is None
    assert "the tag audit of the records table needs old files" in outcome.topic["note"]


@pytest.mark.long
def test_what_keeps_a_round_away_is_said(spark: SparkSession, name: TopicName) -> None:
    mark(spark, str(name))
    clean(spark, str(name), T0 + DAY_MS)
    configure(spark, name, {"kafka.min.cleanable.dirty.ratio": "0.99"})
    outcome = erase(spark, name, erasure_of("a"))
    assert outcome.partitions[0]["remaining"] == 1
    note = outcome.partitions[0]["note"]
    assert note.startswith("1 records of the keys wait for a cleaner round: dirty ratio 0.")
    assert note.endswith("lower kafka.min.cleanable.dirty.ratio or kafka.max.compaction.lag.ms")
    row = erasures(spark, name, "reported")[0, secret_of(str(name)).name(b"a")]
    assert (row["superseded"], row["left"], row["out_of_table_at"]) == (0, 1, None)
    assert outcome.topic["off_disk_from_ms"] is None


@pytest.mark.long
def test_the_next_round_takes_what_this_one_could_not(spark: SparkSession, name: TopicName) -> None:
    configure(spark, name, {"kafka.min.compaction.lag.ms": str(HOUR_MS)})
    outcome = erase(spark, name, erasure_of("a"))
    assert outcome.topic["remaining"] == 2
    note = outcome.partitions[0]["note"]
    assert note.endswith("in a segment that is not closed yet or not old enough")
    clean(spark, str(name), ERASED_MS + HOUR_MS)
    assert [key for _, _, key, value in records(spark, name) if value] == ["b", "d"]


@pytest.mark.long
def test_keys_in_a_file(spark: SparkSession, name: TopicName, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("YQ==\n\nYg==\nYQ==\n")
    erase(spark, name, erasure_of(keys_file=str(file), encoding="base64"))
    assert [key for _, _, key, value in records(spark, name) if value] == ["d"]


@pytest.mark.long
def test_an_export_holds_them_and_a_broker_takes_it(
    spark: SparkSession, name: TopicName, tmp_path: Path, kafka_jars: Path
) -> None:
    erase(spark, name, erasure_of("a"))
    target = str(tmp_path / "export")
    execute_export(plan_export(load(spark, name), Export(target, "export-1", ())))
    exported = [(r.partition, r.offset, r.key, r.is_tombstone) for r in read_topic(target, "t")]
    assert exported[-2:] == [(0, 6, b"a", True), (1, 1, b"a", True)]
    logs = [
        SourceLog(directory=Path(target, f"t-{p}"), config={"cleanup.policy": "compact"}, rounds=[])
        for p in (0, 1)
    ]
    ends = [result.initial.log_end_offset for result in run_oracle(logs, kafka_jars)]
    assert ends == [7, 2]
