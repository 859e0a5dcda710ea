"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.jobs.ingest_topic.live import connect
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import SETTINGS
from tests.lake_sandbox import LakeSandbox


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), **SETTINGS) as broker:
        yield broker


@pytest.fixture
def spark(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> SparkSession:
    connect(monkeypatch, broker)
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName("live", cluster)
