"""AutoMQ's Table Topic, where it only appends.

Source: AutoMQ's sources of 2025, package kafka.automq.table.process. RecordAssembler puts
`_kafka_header`, `_kafka_key` and `_kafka_metadata` with partition, offset and timestamp (ms) beside
the columns of the value. These are key, value and timestamp by SchemalessTransform, which keeps
nulls; DebeziumUnwrapTransform adds `_cdc` with op. Other converters refuse a null value, and
StringConverter writes a null key as an empty text.
"""

from __future__ import annotations

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.layouts.connect_sink import DELETE
from ebbtide.log.adopted.profile import Profile, built

NAME = "automq"
METADATA = "_kafka_metadata"
SCHEMALESS = {"key", "value", "timestamp"}


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with AutoMQ's key or headers beside its metadata."""
    names = ("partition", "offset", "timestamp")
    parts = {name: columns.named(f"{METADATA}.{name}") for name in names}
    parts["key"] = columns.named("_kafka_key")
    is_automq = parts["key"] is not None or columns.named("_kafka_header") is not None
    if not is_automq or columns.named(f"{METADATA}.topic") is not None:
        return None
    if {column.name for column in columns.top if not column.name.startswith("_")} == SCHEMALESS:
        parts |= {name: columns.named(name) for name in ("key", "value")}
    operation = columns.named("_cdc.op")
    if operation is not None and not choices.tombstone:
        choices = choices._replace(tombstone=f"{operation.name}={DELETE}")
    return built(NAME, columns, parts, choices)


PROFILE = Profile(
    NAME,
    "AutoMQ's Table Topic",
    "AutoMQ's sources of 2025, RecordAssembler",
    recognise,
    "only the schemaless transform keeps records without a value, and only Debezium's tells a "
    "delete: else a key that was deleted in Kafka keeps its last row; with upsert enabled AutoMQ "
    "deletes superseded rows itself",
)
