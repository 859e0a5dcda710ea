"""Random logs whose replica is fed now and then: it ends with the values that its primary has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import NotCoveredError
from ebbtide.log.names import TopicName
from ebbtide.tables.stages.clean import execute_clean, finish_round, plan_clean
from ebbtide.tables.stages.delete_records import execute_delete, plan_delete
from ebbtide.tables.stages.expire import execute_expire, plan_expire
from ebbtide.tables.stages.mark import execute_mark, plan_mark
from ebbtide.tables.stages.merge import merge_segments
from ebbtide.tables.stages.replicate import execute_replicate, plan_replicate
from ebbtide.tables.topics import load
from tests.kafka.random_logs import DAY_MS, random_topic
from tests.kafka.scenarios import Topic
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import ingest
from tests.tables.spark_replay import TOPIC, configure, grow_source
from tests.tables.test_replicate_log import assert_sound, replica_of, sandbox, set_replicas

__all__ = ["sandbox"]

PARTITIONS = 12
FRESH_SEED = random.SystemRandom().randrange(10**6)
Values = dict[tuple[int, bytes], bytes]


@pytest.mark.parametrize("seed", [1, FRESH_SEED])
def test_a_replica_ends_with_its_primarys_values(
    sandbox: LakeSandbox, cluster: str, tmp_path: Path, seed: int
) -> None:
    topic = random_topic(seed, PARTITIONS, rounds=4, merges_by_size=False)
    name, rng = TopicName(cluster, TOPIC), random.Random(seed)
    spark = sandbox.session
    for number in range(len(topic.rounds)):
        grow_source(tmp_path, topic, number, range(PARTITIONS))
        ingest(spark, str(name), tmp_path, topic.rounds[number].now_ms, accept_gap=True)
        configure(spark, name, topic.config_at(number))
        set_replicas(sandbox, name, f"other.{cluster}")
        try:
            _night(spark, name, topic, number)
            if rng.random() < 0.6:
                _replicate(spark, name)
                _clean(spark, replica_of(name), topic.rounds[number].now_ms + rng.randint(0, 2))
        except NotCoveredError:
            pytest.skip("Kafka stops cleaning such a log too")
    last = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    last |= {"min.compaction.lag.ms": "0", "delete.retention.ms": "0"}
    configure(spark, name, last)
    _replicate(spark, name)
    for days in (10, 20):
        for of in (name, replica_of(name)):
            _clean(spark, of, topic.rounds[-1].now_ms + days * DAY_MS)
    assert_sound(sandbox, replica_of(name))
    primary, replica = (load(spark, of).partitions for of in (name, replica_of(name)))
    assert {p: (s.log_start_offset, s.log_end_offset) for p, s in replica.items()} == {
        p: (s.log_start_offset, s.log_end_offset) for p, s in primary.items()
    }
    assert _values(spark, replica_of(name)) == _values(spark, name)


def _night(spark: SparkSession, name: TopicName, topic: Topic, number: int) -> None:
    """A night of the primary, with the requests and files that a random topic meets elsewhere."""
    now_ms = topic.rounds[number].now_ms
    requested = {
        p: offset
        for p, of in enumerate(topic.partitions)
        if (offset := of.delete_records[number]) is not None
    }
    if requested:
        # The replica is behind or not there yet: that it is not waited for is no matter here.
        execute_delete(plan_delete(load(spark, name), requested, now_ms), timeout_ms=0)
    _clean(spark, name, now_ms)
    if topic.rounds[number].retention:
        execute_expire(plan_expire(finish_round(load(spark, name)), now_ms))
    if number % 2:
        merge_segments(load(spark, name), at_least=2)


def _clean(spark: SparkSession, name: TopicName, now_ms: int) -> None:
    execute_mark(plan_mark(load(spark, name)))
    execute_clean(plan_clean(finish_round(load(spark, name)), now_ms))


def _replicate(spark: SparkSession, name: TopicName) -> None:
    outcome = execute_replicate(plan_replicate(load(spark, name)), 0)
    assert outcome.error is None


def _values(spark: SparkSession, name: TopicName) -> Values:
    """The latest committed value of each key; a tombstone is none, and so is what has no key."""
    rows = spark.table(name.committed_view).where("key IS NOT NULL").orderBy("offset").collect()
    found = {(row["partition"], bytes(row["key"])): row["value"] for row in rows}
    return {key: bytes(value) for key, value in found.items() if value is not None}
