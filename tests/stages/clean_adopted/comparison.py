"""Run random topics through Kafka's cleaner and through rounds on an adopted table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import PartitionState
from tests.kafka.oracle import run_oracle
from tests.stages.clean_adopted.random_logs import (
    Left,
    RandomTopic,
    left_by_kafka,
    random_topic,
    source_of,
)
from tests.tables.adopted import adopt, append, clean, spark_table


def differences(
    spark: SparkSession, name: str, seed: int, logs: int, scratch: Path, jars: Path, version: int
) -> list[str]:
    """Each log and night after which Kafka and the table differ in offsets or horizons."""
    topic = random_topic(seed, logs)
    sources = [source_of(topic, p, scratch / f"{seed}" / f"t-{p}") for p in range(logs)]
    by_kafka = [
        [left_by_kafka(state) for state in result.rounds] for result in run_oracle(sources, jars)
    ]
    assert any(horizon for log in by_kafka for night in log for horizon in night.values())
    found = []
    for night, ours in enumerate(_nights(spark, name, topic, version)):
        for partition in range(logs):
            theirs = by_kafka[partition][night]
            if ours[partition] != theirs:
                found.append(f"{seed}, {partition}, {night}: {ours[partition]}, Kafka {theirs}")
    return found


def _nights(
    spark: SparkSession, name: str, topic: RandomTopic, version: int
) -> Iterator[dict[int, Left]]:
    """Yield what each night leaves in the table, by partition."""
    spark_table(spark, name, version)
    settings = {f"kafka.{setting}": value for setting, value in topic.config.items()}
    for number, now_ms in enumerate(topic.nights_ms):
        append(spark, name, chain.from_iterable(log[number] for log in topic.logs))
        if not number:
            adopt(spark, name, {**settings, "kafka.segment.ms": "1"}, now_ms=now_ms - 1)
        clean(spark, name, now_ms)
        yield _left(spark, name, len(topic.logs))


def _left(spark: SparkSession, name: str, partitions: int) -> dict[int, Left]:
    of = TopicName.parse(name)
    states = load(spark, of).partitions
    rows = spark.table(of.records_table).selectExpr("`partition`", "offset", "value is null as t")
    left: dict[int, Left] = {partition: {} for partition in range(partitions)}
    for partition, offset, is_tombstone in rows.collect():
        horizon = _horizon_ms(states[partition], offset) if is_tombstone else None
        left[partition][offset] = horizon
    return left


def _horizon_ms(state: PartitionState, offset: int) -> int | None:
    place = bisect_right([of.end_offset for of in state.horizons], offset)
    return state.horizons[place].horizon_ms if place < len(state.horizons) else None
