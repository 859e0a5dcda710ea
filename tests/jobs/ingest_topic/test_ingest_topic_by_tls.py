"""A live topic of brokers that talk TLS and want to see a certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.settings.names import TopicName
from tests.jobs.ingest_topic.live import Writer, connect, create, records_of, take
from tests.kafka.consume import QUIET
from tests.kafka.tls_broker import TlsBroker
from tests.lake_sandbox import LakeSandbox

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_a_topic_is_taken_with_the_connections_certificates(
    sandbox: LakeSandbox, kafka_jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName("live", "sealed")
    with TlsBroker(kafka_jars, tmp_path / "broker", **QUIET) as broker:
        connect(monkeypatch, broker)
        create(broker, "sealed")
        Writer(broker, "sealed").write(3)
        take(sandbox.session, name)
    assert [record.offset for record in records_of(sandbox.session, name)] == [0, 1, 2]
