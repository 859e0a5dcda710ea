"""Random logs whose replica is fed now and then: it ends with the values that its primary has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from ebbtide.columns.headers import open_transactions
from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.jobs.unfinished import settle
from ebbtide.numbers import MAX_OFFSET
from ebbtide.settings.names import TopicName
from tests.fresh_seed import seeds
from tests.jobs.replicate_log.replicas import assert_sound, replica_of, set_replicas
from tests.kafka.random_logs import DAY_MS, random_topic
from tests.kafka.scenarios import Topic
from tests.lake_sandbox import LakeSandbox
from tests.nights.spark_replay import TOPIC, configure, grow_source
from tests.tables.headers import read_headers
from tests.tables.nights import ingest, mark
from tests.tables.truth import Truth

pytestmark = pytest.mark.long

PARTITIONS = 12
ATTEMPTS = 10
Values = dict[tuple[int, bytes], bytes]


@pytest.mark.parametrize("seed", seeds(__file__, 853830, 411176))
def test_a_replica_ends_with_its_primarys_values(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, seed: int
) -> None:
    for attempt in range(ATTEMPTS):
        name = TopicName(f"{cluster}_{attempt}", TOPIC)
        topic = random_topic(seed + attempt, PARTITIONS, rounds=4, merges_by_size=False)
        try:
            _feed(sandbox, name, topic, tmp_path / str(attempt), random.Random(seed))
        except NotCoveredError:
            continue  # Kafka stops cleaning a log of this topic too, so another one is drawn
        if _end_alike(sandbox, name, topic.rounds[-1].now_ms):
            return
    pytest.fail(
        f"none of {ATTEMPTS} topics from seed {seed} on could be cleaned to its end and then held "
        "a value"
    )


def _feed(
    sandbox: LakeSandbox, name: TopicName, topic: Topic, home: Path, rng: random.Random
) -> None:
    """All rounds of the primary; the replica is fed, and cleaned by itself, after some of them."""
    spark = sandbox.session
    for number in range(len(topic.rounds)):
        grow_source(home, topic, number, range(PARTITIONS))
        ingest(spark, str(name), home, topic.rounds[number].now_ms, accept_gap=True)
        configure(spark, name, topic.config_at(number))
        set_replicas(sandbox, name, f"other.{name.cluster}")
        _night(spark, name, topic, number)
        if rng.random() < 0.6:
            _replicate(spark, name)
            _clean(spark, replica_of(name), topic.rounds[number].now_ms + rng.randint(0, 2))


def _end_alike(sandbox: LakeSandbox, name: TopicName, now_ms: int) -> int:
    """How many values both hold once they have been cleaned of all that may go: the same ones."""
    spark = sandbox.session
    last = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    last |= {"min.compaction.lag.ms": "0", "delete.retention.ms": "0"}
    configure(spark, name, last)
    _replicate(spark, name)
    for days in (10, 20):
        for topic in (name, replica_of(name)):
            _clean(spark, topic, now_ms + days * DAY_MS)
    assert_sound(sandbox, replica_of(name))
    primary, replica = (load(spark, topic).partitions for topic in (name, replica_of(name)))
    assert {p: (s.log_start_offset, s.log_end_offset) for p, s in replica.items()} == {
        p: (s.log_start_offset, s.log_end_offset) for p, s in primary.items()
    }
    # Kafka's last stable offset is then the log start. A replica that was outrun begins anew
    # without that transaction, as Kafka's follower does: its readers see what follows, and its
    # cleaner may remove of that what the primary's may not yet.
    blocked = _open_below_start(spark, name)
    aborted = Truth.nothing().read_again(spark, name).aborted() if blocked else set()
    for p in blocked:
        theirs, ours = _records(spark, name, p), _records(spark, replica_of(name), p)
        assert [row for row in theirs if row in ours] == ours
        committed = (
            [row for row in rows if (p, row["batch"]) not in aborted] for rows in (theirs, ours)
        )
        of_primary, of_replica = map(_newest_values, committed)
        assert of_replica == of_primary
    primary_values, replica_values = _values(spark, name), _values(spark, replica_of(name))
    assert {at: v for at, v in replica_values.items() if at[0] not in blocked} == primary_values
    return len(primary_values)


def _newest_values(rows: list[Row]) -> dict[bytes, Row]:
    """The newest record of each key, where that is no tombstone."""
    newest = {bytes(row["key"]): row for row in rows if row["key"] is not None}
    return {key: row for key, row in newest.items() if not row["is_tombstone"]}


def _open_below_start(spark: SparkSession, name: TopicName) -> set[int]:
    """Partitions with a transaction that began below the log start and is undecided still."""
    states = load(spark, name).partitions
    headers = read_headers(spark, name.batches_table, states)
    return {
        partition
        for partition, state in states.items()
        if min(open_transactions(headers[partition]).first_offsets.values(), default=MAX_OFFSET)
        < state.log_start_offset
    }


def _records(spark: SparkSession, name: TopicName, partition: int) -> list[Row]:
    rows = spark.table(name.records_table).where(F.col("partition") == partition)
    return (
        rows.orderBy("offset").select("offset", "batch", "key", "value", "is_tombstone").collect()
    )


def _night(spark: SparkSession, name: TopicName, topic: Topic, number: int) -> None:
    """A night of the primary, with the requests and files that a random topic meets elsewhere."""
    now_ms = topic.rounds[number].now_ms
    requested = {
        p: offset
        for p, partition in enumerate(topic.partitions)
        if (offset := partition.delete_records[number]) is not None
    }
    if requested:
        # The replica is behind or not there yet: that it is not waited for is no matter here.
        execute_delete(plan_delete(load(spark, name), requested, now_ms, timeout_ms=0))
    _clean(spark, name, now_ms)
    if topic.rounds[number].retention:
        execute_expire(plan_expire(settle(load(spark, name), "expire_segments"), now_ms))
    if number % 2:
        merge_segments(load(spark, name), at_least=2)


def _clean(spark: SparkSession, name: TopicName, now_ms: int) -> None:
    mark(spark, str(name))
    plan = plan_clean(settle(load(spark, name), "expire_segments"), now_ms)
    if plan.refused:
        raise NotCoveredError(str(plan.refused))
    execute_clean(plan)


def _replicate(spark: SparkSession, name: TopicName) -> None:
    outcome = execute_replicate(plan_replicate(load(spark, name)), 0)
    assert outcome.error is None


def _values(spark: SparkSession, name: TopicName) -> Values:
    """The latest committed value of each key; a tombstone is none, and so is what has no key."""
    rows = spark.table(name.committed_view).where("key IS NOT NULL").orderBy("offset").collect()
    values = {(row["partition"], bytes(row["key"])): row["value"] for row in rows}
    return {key: bytes(value) for key, value in values.items() if value is not None}
