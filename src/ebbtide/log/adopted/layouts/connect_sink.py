"""Iceberg's sink for Kafka Connect, with its transforms KafkaMetadataTransform or Debezium's.

Source: Apache Iceberg 1.12, kafka-connect docs, "SMTs for the Apache Iceberg Sink Connector":
`_kafka_metadata` with topic, partition, offset and timestamp, nested, or flat with an underscore
between the names; Debezium's `_cdc` with op, ts, offset, source, target and key.
"""

from __future__ import annotations

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "connect_sink"
METADATA = "_kafka_metadata"
DELETE = "D"  # in `_cdc.op`, as DebeziumTransform writes it


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with the transform's metadata, nested or flat."""
    names = ("topic", "partition", "offset", "timestamp")
    nested = {name: columns.named(f"{METADATA}.{name}") for name in names}
    flat = {name: columns.named(f"{METADATA}_{name}") for name in names}
    parts = nested if nested["offset"] is not None else flat
    if parts["partition"] is None or parts["offset"] is None:
        return None
    operation = columns.named("_cdc.op")
    if operation is not None and not choices.tombstone:
        choices = choices._replace(tombstone=f"{operation.name}={DELETE}")
    return built(NAME, columns, {**parts, "key": columns.named("_cdc.key")}, choices)


PROFILE = Profile(
    NAME,
    "Iceberg's sink for Kafka Connect",
    "Apache Iceberg 1.12, kafka-connect, SMTs",
    recognise,
    "the sink ignores records without a value: a key that was deleted in Kafka keeps its last row",
)
