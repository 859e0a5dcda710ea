"""Run random topics through Kafka's cleaner and through rounds on adopted tables."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState
from tests.jobs.clean_adopted.random_logs import (
    NIGHTS,
    Left,
    RandomTopic,
    left_by_kafka,
    random_topic,
    source_of,
)
from tests.kafka.oracle import run_oracle
from tests.tables.adopted import Record, adopt, clean
from tests.tables.adopted_layouts import TableLayout


class Case(NamedTuple):
    """A table of a layout with random logs, one a partition."""

    layout: TableLayout
    seed: int
    logs: int
    version: int
    nights: int = NIGHTS

    @property
    def topic(self) -> RandomTopic:
        """Its logs; without tombstones where such a writer leaves them out."""
        has_tombstones = bool(self.layout.tombstone)
        return random_topic(self.seed, self.logs, self.nights, has_tombstones=has_tombstones)


def differences(
    spark: SparkSession, cases: Sequence[Case], prefix: str, scratch: Path, jars: Path
) -> list[str]:
    """Each log and night after which Kafka and a table differ in offsets or horizons."""
    topics = [case.topic for case in cases]
    sources = [
        source_of(topic, p, scratch / f"{number}" / f"t-{p}")
        for number, topic in enumerate(topics)
        for p in range(len(topic.logs))
    ]
    results = iter(run_oracle(sources, jars))
    found = []
    for number, (case, topic) in enumerate(zip(cases, topics, strict=True)):
        by_kafka = [[left_by_kafka(state) for state in next(results).rounds] for _ in topic.logs]
        found += _differences(spark, f"{prefix}{number}", case, topic, by_kafka)
    return found


def _differences(
    spark: SparkSession, name: str, case: Case, topic: RandomTopic, by_kafka: list[list[Left]]
) -> Iterator[str]:
    horizons = [horizon for log in by_kafka for night in log for horizon in night.values()]
    assert any(horizons) or not case.layout.tombstone
    for night, ours in enumerate(_nights(spark, name, case, topic)):
        for partition, log in enumerate(by_kafka):
            if ours[partition] != log[night]:
                yield (
                    f"{case.layout.name}, seed {case.seed}, log {partition}, night {night}: "
                    f"{ours[partition]}, Kafka {log[night]}"
                )


def _nights(
    spark: SparkSession, name: str, case: Case, topic: RandomTopic
) -> Iterator[dict[int, Left]]:
    """Yield what each night leaves in the table, by partition."""
    rng, layout = random.Random(f"order {case.seed}"), case.layout
    layout.create(spark, name, case.version)
    settings = {f"kafka.{setting}": value for setting, value in topic.config.items()}
    for number, now_ms in enumerate(topic.nights_ms):
        night = list(chain.from_iterable(log[number] for log in topic.logs))
        layout.append(spark, name, _as_written(rng, night))
        if not number:
            choices, of_topic = layout.choices, {**settings, "kafka.segment.ms": "1"}
            adopt(spark, name, of_topic, choices, now_ms=now_ms - 1)
        clean(spark, name, now_ms)
        yield _left(spark, name, layout, len(topic.logs))


def _as_written(rng: random.Random, night: list[Record]) -> list[Record]:
    """Return the records out of order, and some of them twice, as a writer may write them."""
    twice = [record for record in night if rng.random() < 0.1]
    written = [*night, *twice]
    rng.shuffle(written)
    return written


def _left(spark: SparkSession, name: str, layout: TableLayout, partitions: int) -> dict[int, Left]:
    states = load(spark, TopicName.parse(name)).partitions
    left: dict[int, Left] = {partition: {} for partition in range(partitions)}
    for partition, offset, is_tombstone in layout.live(spark, name):
        horizon = _horizon_ms(states[partition], offset) if is_tombstone else None
        left[partition][offset] = horizon
    return left


def _horizon_ms(state: PartitionState, offset: int) -> int | None:
    place = bisect_right([horizon.end_offset for horizon in state.horizons], offset)
    return state.horizons[place].horizon_ms if place < len(state.horizons) else None
