"""Every number that a job reports of random nights, against what the tables hold before and after.

A live ingest needs a broker: test_random_slices.py has its numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.erase_keys.stage import erase_keys
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.jobs.unfinished import settle
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure, FromOffset
from ebbtide.state.topic_state import max_snapshot_age_ms
from tests.fresh_seed import seeds
from tests.jobs.mark_tombstones.tombstones import NIGHT_MS, forbidden_topic
from tests.kafka.random_logs import DAY_MS, TIMES_MS, random_topic
from tests.kafka.scenarios import Topic
from tests.lake_sandbox import LakeSandbox
from tests.nights import expected_numbers as expected
from tests.nights.job_numbers import EVENT_TIME, TIMED_KEY_BYTES, Nights, check, is_missing
from tests.nights.spark_replay import TOPIC, configure, grow_source
from tests.tables.bench import Bench
from tests.tables.nights import ANY_SHARE, at, expire, mark, set_properties
from tests.tables.partition_log import T0, append, batch, write_segments
from tests.tables.truth import Change, Truth, size_bytes

pytestmark = pytest.mark.long

FIXED_SEED = 56
PARTITIONS = 6
ROUNDS = 3
# What the nights of the fixed seed have to show; they are chosen for it.
TOLD = {
    "mark_tombstones marked",
    "mark_tombstones unmarked",
    "mark_tombstones quarantined",
    "delete_records records_removed",
    "clean_log superseded",
    "clean_log aborted",
    "clean_log keyless",
    "clean_log tombstones_kept",
    "clean_log tombstones_removed",
    "clean_log markers_kept",
    "clean_log markers_removed",
    "clean_log next_horizon_ms",
    "expire_segments segments_expired",
    "erase_keys remaining",
    "replicate_log records",
    "replicate_log batches",
    "replicate_log records_removed",
}
TOMBSTONE_RULES = [
    {},
    {"ebbtide.tombstone.predicate": "string(value) = ''"},
    {
        "ebbtide.tombstone.explicit": "true",
        "ebbtide.tombstone.predicate": f"length(key) = {TIMED_KEY_BYTES}",
    },
]


def check_ingest(nights: Nights, directory: Path, now_ms: int) -> None:
    """Take what the source holds; records come with an event time only where EVENT_TIME says it."""
    settings = ANY_SHARE | {"ebbtide.event.time": EVENT_TIME}
    source = Source.of_uri(str(directory), at(now_ms), accept_gap=True, settings=settings)
    outcome, change = nights.run(
        "ingest_segments", lambda: ingest_segments(nights.spark, nights.name, source)
    )
    wanted = {p: expected.of_ingest(change, p, is_missing) for p in change.after.states}
    check(outcome, change, wanted, bytes_removed=0)


def check_mark(nights: Nights, now_ms: int, again: Sequence[FromOffset] = ()) -> None:
    outcome, change = nights.run(
        "mark_tombstones", lambda: mark(nights.spark, str(nights.name), again, now_ms)
    )
    wanted = {p: expected.of_mark(change, p) for p in change.after.states}
    check(outcome, change, wanted, bytes_removed=0)


def check_mark_again(nights: Nights, now_ms: int, rule: Mapping[str, str]) -> None:
    """Mark all that no round has cleaned by another rule."""
    names = {name for other in TOMBSTONE_RULES for name in other}
    set_properties(nights.spark, str(nights.name), {name: rule.get(name) for name in names})
    again = [
        FromOffset(p, max(state.log_start_offset, state.first_dirty_offset))
        for p, state in nights.before.states.items()
    ]
    check_mark(nights, now_ms, again)


def check_delete(nights: Nights, requested: Mapping[int, int], now_ms: int) -> None:
    """No batch leaves the log before its segment; the bytes of files have a name of their own."""
    topic = load(nights.spark, nights.name)
    outcome, change = nights.run(
        "delete_records", lambda: execute_delete(plan_delete(topic, requested, now_ms))
    )
    wanted = {p: expected.of_delete_records(change, p, at) for p, at in requested.items()}
    check(outcome, change, wanted, bytes_removed=0)
    assert outcome.topic.get("file_bytes_removed", 0) == sum(change.files_gone)


def check_clean(nights: Nights, now_ms: int) -> None:
    """Bytes are those of headers; where Kafka would stop cleaning too, the partition stays."""
    plan = plan_clean(settle(load(nights.spark, nights.name), "clean_log"), now_ms)
    outcome, change = nights.run("clean_log", lambda: execute_clean(plan))
    parts = plan.round.partitions if plan.round is not None else {}
    wanted = {p: expected.of_clean(change, p, parts.get(p)) for p in change.after.states}
    for partition, ratio in plan.dirty_ratios.items():
        if partition not in parts:
            wanted[partition]["dirty_ratio"] = round(ratio, 4)
            told = [f"dirty ratio {ratio:.2f} is too low", *plan.refused.values()]
            told += [transaction.in_words(now_ms) for transaction in plan.blockers.values()]
            assert plan.reasons[partition] in told
    for partition, blocker in plan.blockers.items():
        assert blocker.first_offset == change.before.first_undecided(partition)
        wanted[partition]["open_transaction"] = blocker._asdict()
    for partition in plan.refused:
        wanted[partition]["uncleanable"] = True
    went = (n["bytes_before"] - n["bytes_after"] for n in wanted.values() if n["picked"])
    check(outcome, change, wanted, bytes_removed=sum(went))


def check_expire(nights: Nights, now_ms: int) -> None:
    """Bytes are those of the headers of whole segments."""
    config = load(nights.spark, nights.name).config
    outcome, change = nights.run(
        "expire_segments", lambda: expire(nights.spark, str(nights.name), now_ms)
    )
    wanted = {p: expected.of_expire(change, p, config, now_ms) for p in change.after.states}
    went = sum(numbers["bytes_removed"] for numbers in wanted.values())
    check(outcome, change, wanted, bytes_removed=went)
    assert outcome.topic["delete_ratio"] == expected.delete_ratio(change, wanted)


def check_erase(nights: Nights, keys: Sequence[bytes], now_ms: int) -> None:
    """Erase keys of a topic whose source is closed; bytes are those that its round takes."""
    spark, name = nights.spark, nights.name
    set_properties(spark, str(name), {"ebbtide.source": ""})
    erasure = Erasure(
        run_id="erase", now_ms=now_ms, requested_by="a", reason="b", keys=tuple(keys), appends=True
    )
    outcome, change = nights.run("erase_keys", lambda: erase_keys(spark, name, erasure))
    dates = disk_dates(spark, name)
    held = {p: tombstones(change, p, keys) for p in change.after.states}
    wanted = {p: expected.of_erased_keys(change, p, found, dates) for p, found in held.items()}
    before, after = (sum(size_bytes(truth.retained(p)) for p in held) for truth in change)
    went = before + appended_bytes(spark, name, change) - after
    check(outcome, change, wanted, bytes_removed=went)
    assert outcome.topic["keys"] == len(keys)
    assert outcome.topic["not_found"] == len(set(keys).difference(*held.values()))
    for number in ("superseded", "remaining"):
        assert outcome.topic[number] == sum(numbers[number] for numbers in wanted.values())


def check_replicate(nights: Nights, replica: Nights, now_ms: int) -> None:
    """Copy what the replica lacks; it is named only for that, so no other job waits for it."""
    spark, name = nights.spark, nights.name
    set_properties(spark, str(name), {"ebbtide.replicas": f"lake.{replica.name.cluster}"})
    outcome, change = nights.run(
        "replicate_log", lambda: execute_replicate(plan_replicate(load(spark, name)), now_ms)
    )
    set_properties(spark, str(name), {"ebbtide.replicas": None})
    copied = Change(replica.before, replica.before.read_again(spark, replica.name))
    replica.before = copied.after
    wanted = {
        p: expected.of_replicate(change.after, copied.after, p, str(replica.name))
        for p in change.after.states
    }
    assert set(outcome.snapshot_ids) <= set(copied.new_snapshots)
    check(replace(outcome, snapshot_ids=[]), change, wanted, bytes_removed=0)
    numbers = outcome.topic["replicas"].get(str(replica.name), {"emptied": []})
    counts = dict.fromkeys(("records", "batches", "records_removed"), 0) | numbers
    assert counts == expected.of_copies(change.after, copied)
    nights.reported |= {f"replicate_log {number}" for number, value in counts.items() if value}


def tombstones(change: Change, partition: int, keys: Iterable[bytes]) -> dict[bytes, int]:
    """Where the tombstone of each key that the partition held is: the latest record, or new."""
    held = {row["key"] for (p, _), row in change.before.records.items() if p == partition}
    added = {row["key"]: row["offset"] for row in change.added(partition)}
    offsets_by_key = {}
    for key in held.intersection(keys):
        offset = change.before.tombstone_above(partition, key)
        assert (offset is None) is (key in added)
        offsets_by_key[key] = added[key] if offset is None else offset
    return offsets_by_key


def disk_dates(spark: SparkSession, name: TopicName) -> expected.DiskDates:
    """As Iceberg's metadata tables say; no date while a current file has deleted rows."""
    table = name.records_table
    snapshots = spark.table(f"{table}.snapshots").orderBy("committed_at").collect()
    made_ms = {row["snapshot_id"]: ms_of(row["committed_at"]) for row in snapshots}
    current = snapshots[-1]["snapshot_id"]
    changed_ms = made_ms[current]
    if spark.table(f"{table}.delete_files").count():
        return expected.DiskDates(changed_ms, None)
    files = {snapshot_id: files_of(spark, table, snapshot_id) for snapshot_id in made_ms}
    old_ms = [
        made_ms[snapshot_id] for snapshot_id, paths in files.items() if paths - files[current]
    ]
    age_ms = max_snapshot_age_ms(load(spark, name).properties)
    off_from_ms = max([changed_ms, *(at_ms + age_ms for at_ms in old_ms)])
    return expected.DiskDates(changed_ms, off_from_ms)


def files_of(spark: SparkSession, table: str, snapshot: int) -> set[str]:
    rows = spark.sql(f"SELECT file_path FROM {table}.data_files VERSION AS OF {snapshot}").collect()
    return {row["file_path"] for row in rows}


def ms_of(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def appended_bytes(spark: SparkSession, name: TopicName, change: Change) -> int:
    """The bytes of the batches that an erasure appended, as they were before its round."""
    table = name.batches_table
    new = [s for s in change.after.snapshots[table] if s in change.new_snapshots]
    if not any(change.added_batches(p) for p in change.after.states):
        return 0
    rows = spark.sql(f"SELECT * FROM {table} VERSION AS OF {new[0]}").toArrow().to_pylist()
    return size_bytes(
        row for row in rows if (row["partition"], row["base_offset"]) not in change.before.batches
    )


def topic_of(seed: int) -> Topic:
    """The first topic of a seed that is compacted and that retention may cut."""
    topics = (
        random_topic(seed * 1_000 + i, PARTITIONS, rounds=ROUNDS, merges_by_size=False)
        for i in count()
    )
    return next(topic for topic in topics if topic.config["cleanup.policy"] == "compact,delete")


def other_settings(rng: random.Random) -> dict[str, str | None]:
    """Settings of which some let single records go, and most let the cleaner begin."""
    return {
        "kafka.min.cleanable.dirty.ratio": rng.choice(["0", "0", "0.3"]),
        "kafka.retention.max.eventtime.ms": str(rng.choice([-1, *TIMES_MS[3:]])),
        "ebbtide.retention.granularity": rng.choice(["segment", "record", "record"]),
    }


def run_nights(nights: Nights, topic: Topic, directory: Path, rng: random.Random) -> None:
    """Let the topic grow and go through all jobs; then erase keys of it, and let more time pass."""
    replica = Nights(nights.spark, nights.name._replace(cluster=f"{nights.name.cluster}_copy"))
    for number, a_round in enumerate(topic.rounds):
        now_ms = a_round.now_ms
        grow_source(directory, topic, number, range(PARTITIONS))
        check_ingest(nights, directory, now_ms)
        configure(nights.spark, nights.name, topic.config_at(number))
        set_properties(nights.spark, str(nights.name), other_settings(rng))
        if number:
            check_mark_again(nights, now_ms, rng.choice(TOMBSTONE_RULES))
        else:
            check_mark(nights, now_ms)
        asked = {
            p: partition.delete_records[number] for p, partition in enumerate(topic.partitions)
        }
        requested = {p: offset for p, offset in asked.items() if offset is not None}
        check_delete(nights, requested, now_ms)
        check_clean(nights, now_ms)
        check_expire(nights, now_ms)
        if number % 2 == 0:  # the replica misses a night
            check_replicate(nights, replica, now_ms)
    check_erase(nights, some_keys(nights.before, rng), now_ms + 1)
    check_clean(nights, now_ms + 10 * DAY_MS)
    check_expire(nights, now_ms + 10 * DAY_MS)
    check_replicate(nights, replica, now_ms + 10 * DAY_MS)


def some_keys(truth: Truth, rng: random.Random) -> list[bytes]:
    """A few keys that the log holds and one that it does not."""
    held = sorted({row["key"] for row in truth.records.values() if row["key"]})
    return [*rng.sample(held, min(3, len(held))), b"no such key"]


@pytest.mark.parametrize("seed", seeds(__file__, FIXED_SEED))
def test_each_number_of_random_nights_is_what_the_tables_say(
    seed: int, sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    nights, rng = Nights(sandbox.session, TopicName(cluster, TOPIC)), random.Random(seed)
    run_nights(nights, topic_of(rng.randrange(10**6)), tmp_path / "log", rng)
    assert nights.reported >= (TOLD if seed == FIXED_SEED else {"ingest_segments records"})


def test_single_records_that_leave_count_beside_the_headers_which_stay(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    nights = Nights(sandbox.session, TopicName(cluster, TOPIC))
    check_ingest(nights, write_segments(tmp_path, {0: [batch(0, 10)], 10: []}), T0)
    limits = {"kafka.cleanup.policy": "delete", "ebbtide.retention.granularity": "record"}
    for limit_ms in (6, 3):
        limits["kafka.retention.max.eventtime.ms"] = str(limit_ms)
        set_properties(nights.spark, str(nights.name), limits)
        check_expire(nights, T0)
    assert sorted(offset for _, offset in nights.before.records) == [6, 7, 8, 9]


def test_a_file_that_leaves_whole_counts_in_a_segment_of_which_more_stays(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    nights = Nights(sandbox.session, TopicName(cluster, TOPIC))
    write_segments(tmp_path, {0: [batch(0, 2)]})
    check_ingest(nights, tmp_path, T0)
    append(tmp_path, 0, batch(2, 2))
    check_ingest(nights, tmp_path, T0)
    set_properties(nights.spark, str(nights.name), {"kafka.cleanup.policy": "delete"})
    check_delete(nights, {0: 2}, T0)


def test_an_erasure_counts_what_it_quarantines_too(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path
) -> None:
    nights = Nights(sandbox.session, TopicName(cluster, TOPIC))
    forbidden_topic(Bench(sandbox, nights.name, tmp_path))
    nights.before = nights.before.read_again(nights.spark, nights.name)
    check_erase(nights, [b"k0", b"k7"], NIGHT_MS)
