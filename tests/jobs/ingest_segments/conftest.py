"""Small log directories to ingest, and what the tables hold of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic, compare_and_set, load
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import Contents, contents
from tests.tables.fixtures import KilledError
from tests.tables.nights import HOUR_MS, ingest, source_of
from tests.tables.partition_log import T0, Segments, append, batch, segment_path, write_segments

NOW_MS = T0 + HOUR_MS
# Of ten offsets, the last two have no record any more.
CLEANED = batch(0, 8, codec=4, last_offset=9)


@dataclass(frozen=True)
class SmallLog:
    """A log directory, and the topic that it is ingested to."""

    spark: SparkSession
    name: TopicName
    source: Path

    def ingest(self, now_ms: int = NOW_MS, **more: bool) -> JobOutcome:
        """Ingest what is new; raises what a job would report."""
        return ingest(self.spark, str(self.name), self.source, now_ms, **more)

    def outcome(self) -> JobOutcome:
        """Ingest what is new, with an error for what was refused."""
        return ingest_segments(self.spark, self.name, source_of(self.source, NOW_MS))

    def killed(self, kill_at: list[Step], *steps: Step) -> None:
        """Kill an ingest at each of these steps."""
        for step in steps:
            kill_at.append(step)
            with pytest.raises(KilledError):
                self.ingest()

    def write(self, segments: Segments, partition: int = 0, topic: str = "t") -> None:
        write_segments(self.source, segments, partition=partition, topic=topic)

    def append(self, base: int, *batches: bytes) -> None:
        append(self.source, base, *batches)

    def path(self, base: int, partition: int = 0) -> Path:
        return segment_path(self.source, base, partition)

    def write_small(self) -> None:
        """Two partitions of ten offsets in two segments; the second's active one is empty."""
        self.write({0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)]})
        self.write({0: [CLEANED], 10: []}, partition=1)

    def grow(self) -> None:
        """Let partition 0 grow in its active segment and by one more."""
        self.append(5, batch(10, 2))
        self.write({12: [batch(12, 3)]})

    def set(self, changes: dict[str, Any]) -> None:
        compare_and_set(self.topic(), Step.CONFIGURE_TOPIC, lambda _: changes)

    def topic(self) -> Topic:
        return load(self.spark, self.name)

    def contents(self) -> Contents:
        return contents(self.spark, self.name)

    def offsets(self, partition: int = 0) -> list[int]:
        return [r["offset"] for r in self.contents().records if r["partition"] == partition]


@pytest.fixture
def empty(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> SmallLog:
    """A log directory without a file yet."""
    return SmallLog(sandbox.session, TopicName(cluster, "t"), tmp_path / "source")


@pytest.fixture
def log(empty: SmallLog) -> SmallLog:
    """Two partitions of ten offsets each."""
    empty.write_small()
    return empty


@pytest.fixture(scope="module")
def unbroken(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """What one ingest makes of a source that has grown already."""
    source = tmp_path_factory.mktemp("unbroken") / "source"
    log = SmallLog(sandbox.session, TopicName("unbroken", "t"), source)
    log.write_small()
    log.grow()
    log.ingest()
    return log.contents()
