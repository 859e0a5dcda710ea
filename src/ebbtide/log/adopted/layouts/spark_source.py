"""Spark's Kafka source, its columns written as they are.

Source: Structured Streaming + Kafka Integration Guide, "Each row in the source has the following
schema", Spark 4.1: key, value, topic, partition, offset, timestamp, timestampType, headers.
"""

from __future__ import annotations

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "spark_source"


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with the source's own column names."""
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    parts = {name: columns.named(name) for name in names}
    needed = (parts[name] for name in ("key", "value", "partition", "offset", "timestamp"))
    if any(column is None for column in needed):
        return None
    return built(NAME, columns, parts, choices)


PROFILE = Profile(
    NAME,
    "Spark's Kafka source",
    "Spark 4.1, Structured Streaming + Kafka Integration Guide",
    recognise,
)
