"""A broker with a topic that somebody produces to, and Connect's jars."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.broker import KafkaBroker
from tests.kafka.oracle import PROJECT
from tests.tables.planned import jobs as jobs
from tests.waiting import PATIENCE_S
from tests.writers.connect_sink import CONTROL_TOPIC, JARS
from tests.writers.producing import PARTITIONS


@pytest.fixture(scope="session")
def connect_jars() -> Path:
    """Connect's jars, fetched at first use."""
    script = PROJECT / "conf" / "ivy" / "resolve_jars.py"
    subprocess.run([sys.executable, str(script), "connect", str(JARS)], check=True)
    return JARS


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def topic(broker: KafkaBroker, cluster: str) -> str:
    """A topic whose records stay, with the sink's own beside it."""
    kept = {"retention.ms": "-1"}
    topics = [NewTopic(cluster, PARTITIONS, 1, config=kept), NewTopic(CONTROL_TOPIC, 1, 1)]
    admin = AdminClient(broker.client())
    for created in admin.create_topics(topics).values():
        created.result(timeout=PATIENCE_S)
    return cluster
