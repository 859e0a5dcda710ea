"""Fixtures of this folder's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.jobs.erase_keys.closed_archive import CONFIG, batch, configure
from tests.lake_sandbox import LakeSandbox
from tests.tables.nights import HOUR_MS, ingest
from tests.tables.partition_log import T0, write_segments


@pytest.fixture
def spark(sandbox: LakeSandbox) -> SparkSession:
    return sandbox.session


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Key a in both partitions, b and d in one; c is a tombstone; 0 has no empty segment."""
    write_segments(
        tmp_path,
        {
            0: [batch(0, ("a", "1"), ("b", "1")), batch(2, ("a", "2"), ("c", "1"))],
            4: [batch(4, ("c", None), ("d", "1"))],
        },
    )
    return write_segments(tmp_path, {0: [batch(0, ("a", "3"))], 1: []}, partition=1)


@pytest.fixture
def name(spark: SparkSession, cluster: str, source: Path) -> TopicName:
    """The topic once its last source is closed and a first round was run."""
    name = TopicName(cluster, "t")
    ingest(spark, str(name), source, T0 + HOUR_MS)
    configure(spark, name, CONFIG)
    return name
