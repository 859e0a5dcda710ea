"""Small log directories to ingest, and what the tables hold of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.log.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import Contents, contents
from tests.tables.nights import HOUR_MS, ingest
from tests.tables.partition_log import (
    T0,
    append,
    batch,
    write_segments,
)

NOW_MS = T0 + HOUR_MS
# Of ten offsets, the last two have no record any more.
CLEANED = batch(0, 8, codec=4, last_offset=9)


def offsets(base_offsets: Contents, partition: int = 0) -> list[int]:
    return [row["offset"] for row in base_offsets.records if row["partition"] == partition]


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName(cluster, "t")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two partitions of ten offsets in two segments each; the second's active one is empty."""
    source = tmp_path / "source"
    write_segments(source, {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)]})
    write_segments(source, {0: [CLEANED], 10: []}, partition=1)
    return source


def grow(source: Path) -> None:
    """Let partition 0 grow in its active segment and by one more."""
    append(source, 5, batch(10, 2))
    write_segments(source, {12: [batch(12, 3)]})


@pytest.fixture(scope="module")
def unbroken(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """What one ingest makes of a source that has grown already."""
    source = tmp_path_factory.mktemp("unbroken") / "source"
    write_segments(source, {0: [batch(0, 2), batch(2, 3)], 5: [batch(5, 5)]})
    write_segments(source, {0: [CLEANED], 10: []}, partition=1)
    grow(source)
    ingest(sandbox.session, "unbroken.t", source, NOW_MS)
    return contents(sandbox.session, TopicName("unbroken", "t"))
