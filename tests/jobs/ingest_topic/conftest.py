"""Fixtures of this folder's tests."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.jobs.ingest_topic.live import broker as broker
from tests.jobs.ingest_topic.live import connect
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox


@pytest.fixture
def spark(
    sandbox: LakeSandbox, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> SparkSession:
    connect(monkeypatch, broker)
    return sandbox.session


@pytest.fixture
def name(cluster: str) -> TopicName:
    return TopicName("live", cluster)
