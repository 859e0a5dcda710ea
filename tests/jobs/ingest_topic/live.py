"""A broker's topics, written by a producer and taken live as the job takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from ebbtide.jobs.ingest_topic import LiveSource, ingest_topic
from ebbtide.kafka.live_offsets import Isolation
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import ConsumedRecord
from tests.kafka.delete_broker import SETTINGS
from tests.tables.nights import at
from tests.waiting import PATIENCE_S

CONNECTION = "main"
FIRST_MS = 1_700_000_000_000
NOW_MS = FIRST_MS + 3_600_000
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)}


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), **SETTINGS) as broker:
        yield broker


def connect(monkeypatch: pytest.MonkeyPatch, broker: KafkaBroker, **settings: str) -> None:
    """Hand the broker's settings over as the driver gets them."""
    connection = {**broker.client(), **settings}
    monkeypatch.setenv(CONNECTIONS, json.dumps({CONNECTION: connection}))


def create(broker: KafkaBroker, topic: str, partitions: int = 1, **config: str) -> None:
    """A topic whose records do not expire, however old; `_` stands for the dots in names."""
    settings = KEPT | {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient(broker.client())
    for made in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        made.result(timeout=PATIENCE_S)


def take(
    spark: SparkSession,
    name: TopicName,
    *,
    now_ms: int = NOW_MS,
    isolation: Isolation = Isolation.READ_COMMITTED,
    accept_gap: bool = False,
    **sizes: int,
) -> JobOutcome:
    """Ingest the live topic; raises what a job would report."""
    source = LiveSource(CONNECTION, at(now_ms), isolation, accept_gap, **sizes)
    outcome = ingest_topic(spark, name, source)
    if outcome.error is not None:
        raise outcome.error
    return outcome


def records_of(spark: SparkSession, name: TopicName, partition: int = 0) -> list[ConsumedRecord]:
    """What the table holds, as a consumer would hand it over."""
    rows = (
        spark.table(name.committed_view)
        .where(f"`partition` = {partition}")
        .selectExpr(
            "offset", "coalesce(unix_millis(timestamp), -1) AS ms", "key", "value", "headers"
        )
        .orderBy("offset")
        .toArrow()
        .to_pylist()
    )
    return [
        ConsumedRecord(
            row["offset"],
            row["ms"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in rows
    ]


class Writer:
    """A producer for one partition, whose records follow each other by a millisecond."""

    def __init__(
        self,
        broker: KafkaBroker,
        topic: str,
        partition: int = 0,
        first_ms: int = FIRST_MS,
        **given: str,
    ) -> None:
        self._first_ms = first_ms
        settings = {name.replace("_", "."): value for name, value in given.items()}
        self._producer = Producer({**broker.client(), **settings})
        self._where = (topic, partition)
        if "transactional.id" in settings:
            self._producer.init_transactions(30)

    def write(self, count: int, key: str = "k", value: str | None = "v", step_ms: int = 1) -> Self:
        """Records whose keys and values are numbered; a value of None is a tombstone's."""
        topic, partition = self._where
        for i in range(count):
            self._producer.produce(
                topic,
                None if value is None else f"{value}{i}".encode(),
                f"{key}{i}".encode(),
                partition=partition,
                timestamp=self._first_ms + i * step_ms,
            )
        assert self._producer.flush(PATIENCE_S) == 0
        return self

    def begin(self) -> Self:
        """Begin a transaction."""
        self._producer.begin_transaction()
        return self

    def commit(self) -> Self:
        """Commit it."""
        self._producer.commit_transaction(30)
        return self

    def abort(self) -> Self:
        """Abort it."""
        self._producer.abort_transaction(30)
        return self
