"""What a consumer gets of a topic, to compare the tables with."""

from __future__ import annotations

from ebbtide.kafka.live_offsets import Isolation
from ebbtide.settings.names import TopicName
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import ConsumedRecord, consume


def consumed(
    broker: KafkaBroker, name: TopicName, isolation: str = "read_committed"
) -> list[ConsumedRecord]:
    records = consume(broker.client(), [(name.topic, 0)], Isolation(isolation).value)
    return records[name.topic, 0]
