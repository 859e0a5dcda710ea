"""The partition's max event time: what counts, that it stays, and what stands in where it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import marker, transactional
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.nights import HOUR_MS, clean, expire, ingest, mark, set_properties
from tests.tables.partition_log import (
    T0,
    append,
    write_segments,
)

NOW_MS = T0 + HOUR_MS
MISSING = "ebbtide.state.0.max-event-time-ms"
CONFIG = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0.01",
    "kafka.producer.id.expiration.ms": "1",
}


def data(offset: int, key: bytes, at_ms: int) -> bytes:
    return write_batch(BatchFields(), [Record(offset, at_ms, key, b"v")])


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The newest event is of an aborted transaction; its marker is newer still."""
    aborted = [
        transactional(1, "b", producer=1, at_ms=T0 + 500),
        marker(2, "ABORT", producer=1, at_ms=T0 + 900),
    ]
    segments = {0: [data(0, b"a", T0), *aborted], 3: [data(3, b"c", T0 + 300)], 4: []}
    return write_segments(tmp_path / "source", segments)


@pytest.fixture
def name(spark: SparkSession, cluster: str, source: Path) -> TopicName:
    """The topic after its ingest."""
    name = TopicName(cluster, "t")
    ingest(spark, str(name), source, NOW_MS)
    configure(spark, name, CONFIG)
    return name


def configure(spark: SparkSession, name: TopicName, settings: dict[str, str]) -> None:
    set_properties(spark, str(name), settings)


def newest_ms(spark: SparkSession, name: TopicName) -> int | None:
    max_event_time_ms = load(spark, name).partitions[0].max_event_time_ms
    return None if max_event_time_ms is None else max_event_time_ms - T0


def test_it_counts_aborted_data_and_no_markers_and_never_moves_back(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    assert newest_ms(spark, name) == 500
    mark(spark, str(name))
    clean(spark, str(name), NOW_MS)
    assert offsets(view_of_table(spark, name, 0)) == [0, 3]
    assert newest_ms(spark, name) == 500

    configure(spark, name, {"kafka.retention.max.eventtime.ms": "400"})
    expire(spark, str(name), NOW_MS)  # 300 lies 200 behind, and its segment is the merged one
    assert offsets(view_of_table(spark, name, 0)) == [0, 3]
    configure(spark, name, {"kafka.retention.max.eventtime.ms": "199"})
    expire(spark, str(name), NOW_MS)
    assert offsets(view_of_table(spark, name, 0)) == []
    assert newest_ms(spark, name) == 500

    append(source, 4, data(4, b"d", T0 + 100))
    ingest(spark, str(name), source, NOW_MS)
    assert newest_ms(spark, name) == 500
    append(source, 4, data(5, b"d", T0 + 501))
    ingest(spark, str(name), source, NOW_MS)
    assert newest_ms(spark, name) == 501
