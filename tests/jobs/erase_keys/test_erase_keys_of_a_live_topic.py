"""erase_keys where a real broker has the topic: produced, ingested, marked, cleaned, gone."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from ebbtide.brokers.live_producer import produce_tombstones
from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import ConfigurationError, EbbtideError, ForeignLogError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.erase_keys.stage import erase_keys
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS
from ebbtide.specs.erase_request import Erasure
from tests.jobs.erase_keys.closed_archive import configure, erasures
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import consume
from tests.kafka.delete_broker import SETTINGS, create, lines_of
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import Meanwhile
from tests.tables.nights import DAY_MS, clean, ingest, mark
from tests.waiting import PATIENCE_S, wait_for_clock, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

TOPIC = "people"
SEGMENT_MS = 1_000
USERS = {"writer": "hush-writer", "reader": "hush-reader"}
HELD = {(0, b"a"): "1", (0, b"b"): "1", (1, b"a"): "2", (1, b"c"): "1"}


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    work = tmp_path_factory.mktemp("broker")
    with KafkaBroker(kafka_jars, work, users=USERS, **SETTINGS) as started:
        config = {"cleanup.policy": "compact", "segment.ms": str(SEGMENT_MS)}
        create(started, [NewTopic(TOPIC, num_partitions=2, replication_factor=1, config=config)])
        yield started


@pytest.fixture(scope="module", autouse=True)
def connections(broker: KafkaBroker) -> Iterator[None]:
    """A connection of type kafka for each user, and one to where no broker is."""
    known: dict[str, Any] = {user: broker.client(user) for user in USERS}
    known["nobody"] = {"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": "1000"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONNECTIONS, json.dumps(known))
        yield


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


def write(broker: KafkaBroker, records: Mapping[tuple[int, bytes], str]) -> None:
    """Produce to chosen partitions; segments older than SEGMENT_MS are rolled by that."""
    producer = Producer(broker.client())
    for (partition, key), value in records.items():
        producer.produce(TOPIC, value.encode(), key, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def log_ends(broker: KafkaBroker) -> dict[int, int]:
    return {p: r[-1].offset + 1 for (_, p), r in read(broker).items()}


def read(broker: KafkaBroker) -> dict[tuple[str, int], list[Any]]:
    return consume(broker.client(), [(TOPIC, 0), (TOPIC, 1)], "read_uncommitted")


def take_in(broker: KafkaBroker, spark: SparkSession, name: TopicName) -> None:
    """Ingest the broker's log directory once it says that all of it is below the high watermark."""
    ends = {f"{TOPIC} {partition} {end}" for partition, end in log_ends(broker).items()}
    checkpoint = broker.log_dir / "replication-offset-checkpoint"
    wait_until(lambda: ends <= lines_of(checkpoint), f"{ends} in {checkpoint.name}")
    ingest(spark, str(name), broker.log_dir, now_ms())


def live(connection: str) -> LiveTopic:
    return LiveTopic.connect(connection, TOPIC, answer_ms=10_000)


def now_ms() -> int:
    return int(time.time() * 1000)


def erase(spark: SparkSession, name: TopicName, *keys: bytes, **fields: Any) -> JobOutcome:
    ordinary = {"run_id": "erase-1", "requested_by": "privacy office", "reason": "request 17"}
    erasure = Erasure(keys=keys, now_ms=now_ms(), **{**ordinary, "timeout_ms": 3_600_000, **fields})
    return erase_keys(spark, name, erasure)


@pytest.mark.long
def test_produced_ingested_marked_cleaned_gone(
    broker: KafkaBroker, spark: SparkSession, cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = TopicName(cluster, TOPIC)
    write(broker, HELD)
    take_in(broker, spark, name)
    configure(
        spark,
        name,
        {
            "ebbtide.source": "kafka:writer",
            "kafka.cleanup.policy": "compact",
            "kafka.min.cleanable.dirty.ratio": "0",
            "kafka.delete.retention.ms": str(DAY_MS),
        },
    )
    late = pytest.raises(UnavailableError, match="log end offset 2 in partition 0, below 3")
    with late, caplog.at_level(logging.INFO, "ebbtide"):
        erase(spark, name, b"a", b"x", timeout_ms=2_000)
    (waits,) = [message for message in caplog.messages if "waiting up to" in message]
    assert "If none is scheduled soon, trigger ingest_topic for this topic" in waits
    before = read(broker)
    produced = {p: [(r.key, r.value) for r in rs[2:]] for (_, p), rs in before.items()}
    assert produced == {0: [(b"a", None)], 1: [(b"a", None)]}
    headers = {key: value.decode() for key, value in before[TOPIC, 0][-1].headers}
    assert headers.pop("ebbtide.erase.requested_at").endswith("+00:00")
    assert headers == {
        "ebbtide.erase.requested_by": "privacy office",
        "ebbtide.erase.reason": "request 17",
        "ebbtide.erase.run_id": "erase-1",
    }
    assert load(spark, name).partitions[0].first_appended_offset == -1

    caplog.clear()
    with ThreadPoolExecutor() as pool, caplog.at_level(logging.INFO, "ebbtide"):
        waiting = pool.submit(erase, spark, name, b"a", b"x")
        wait_until(
            lambda: any("waiting up to" in message for message in caplog.messages),
            "the job to wait for an ingest",
        )
        take_in(broker, spark, name)
        outcome = waiting.result(PATIENCE_S)
    assert read(broker) == before
    assert (outcome.topic["method"], outcome.topic["remaining"]) == ("produced", 2)
    assert "records of the keys wait for a cleaner round" in outcome.partitions[0]["note"]
    rows = erasures(spark, name, "reported")
    assert rows[0, secret_of(str(name)).name(b"a")]["tombstone_offset"] == 2
    assert (
        rows[1, secret_of(str(name)).name(b"a")]["way"],
        rows[1, secret_of(str(name)).name(b"a")]["found"],
    ) == ("produced", 1)
    assert rows[None, secret_of(str(name)).name(b"x")]["found"] == 0

    wait_for_clock(now_ms() + SEGMENT_MS)
    write(broker, {(0, b"z"): "1", (1, b"z"): "1"})
    take_in(broker, spark, name)
    mark(spark, str(name))
    clean(spark, str(name), now_ms())
    live = spark.table(name.records_table).where("NOT is_tombstone").orderBy("partition", "offset")
    keys = [(row["partition"], bytes(row["key"])) for row in live.collect()]
    assert keys == [(0, b"b"), (0, b"z"), (1, b"c"), (1, b"z")]
    again = erase(spark, name, b"a", run_id="erase-2")
    assert (again.topic["remaining"], again.topic["superseded"]) == (0, 0)
    assert {(_, p): r[:3] for (_, p), r in read(broker).items()} == before


@pytest.mark.long
def test_a_retry_after_a_kill_produces_no_tombstone_that_has_arrived(
    broker: KafkaBroker, spark: SparkSession, cluster: str, meanwhile: Meanwhile
) -> None:
    name = TopicName(cluster, TOPIC)
    write(broker, {(0, b"q"): "1"})
    take_in(broker, spark, name)
    configure(spark, name, {"kafka.cleanup.policy": "compact", "ebbtide.source": "kafka:writer"})

    def die() -> None:
        raise KeyboardInterrupt

    meanwhile(Step.ERASURE_ROWS, die)
    with pytest.raises(KeyboardInterrupt):
        erase(spark, name, b"q")
    take_in(broker, spark, name)
    ends = log_ends(broker)
    erase(spark, name, b"q")
    assert log_ends(broker) == ends


@pytest.mark.long
def test_a_topic_that_was_created_anew_gets_no_tombstones(
    broker: KafkaBroker, spark: SparkSession, cluster: str
) -> None:
    name = TopicName(cluster, TOPIC)
    write(broker, HELD)
    take_in(broker, spark, name)
    configure(
        spark,
        name,
        {
            "ebbtide.source": "kafka:writer",
            "kafka.cleanup.policy": "compact",
            "kafka.topic.id": "another-topic-id",
        },
    )
    before = log_ends(broker)
    with pytest.raises(ForeignLogError, match=r"expected topic id another-topic-id for"):
        erase(spark, name, b"a")
    assert log_ends(broker) == before


def test_who_may_not_write_is_told_so_without_a_secret(
    broker: KafkaBroker,
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        produce_tombstones(live("reader"), [(0, b"a")], (), 5_000)
    assert_harmless(refused.value)


def test_brokers_that_do_not_answer_may_answer_later(broker: KafkaBroker) -> None:
    with pytest.raises(UnavailableError) as missed:
        produce_tombstones(
            LiveTopic.connect("nobody", TOPIC, answer_ms=1_000), [(0, b"a")], (), 1_000
        )
    assert_harmless(missed.value)


def test_a_partition_that_is_not_there_is_no_transient_matter(broker: KafkaBroker) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("found 1 of them, and ")):
        produce_tombstones(live("writer"), [(0, b"k"), (7, b"k")], (), 5_000)


def test_many_are_acknowledged(broker: KafkaBroker) -> None:
    wanted = [(i % 2, b"many %d" % i) for i in range(20_000)]
    started_ms = now_ms()
    logged = produce_tombstones(
        LiveTopic.connect("writer", TOPIC), wanted, (("why", b"test"),), 60_000
    )
    assert logged.keys() == set(wanted)
    assert all(started_ms <= each.timestamp_ms <= now_ms() for each in logged.values())
    of_first = sorted(each.offset for (partition, _), each in logged.items() if partition == 0)
    assert of_first == list(range(of_first[0], of_first[0] + 10_000))


def assert_harmless(error: EbbtideError) -> None:
    assert "hush" not in str(error)
    assert "expected the brokers of connection" in str(error)
