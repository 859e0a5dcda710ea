"""Aiven's Iceberg topics: one copy of the data, which brokers read their segments from.

Source: Aiven-Open/tiered-storage-for-apache-kafka, RowSchema: struct `kafka` with partition,
offset, timestamp and the batch; `headers`, `key` or `key_raw`, `value` or `value_raw`.
"""

from __future__ import annotations

from dataclasses import replace

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "aiven"
STRUCT = "kafka"


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with the struct `kafka` and its batch."""
    if columns.named(f"{STRUCT}.batch_base_offset") is None:
        return None
    names = ("partition", "offset", "timestamp")
    parts = {name: columns.named(f"{STRUCT}.{name}") for name in names}
    parts["headers"] = columns.named("headers")
    parts["key"] = columns.named("key") or columns.named("key_raw")
    layout = built(NAME, columns, parts, choices)
    if layout is None or choices.value:
        return layout
    values = filter(None, map(columns.named, ("value_raw", "value")))
    return replace(layout, values=tuple(column.field_id for column in values))


PROFILE = Profile(
    NAME,
    "Aiven's Iceberg topics",
    "Aiven-Open/tiered-storage-for-apache-kafka, RowSchema, 2025",
    recognise,
    "a key that has a schema is copied as JSON",
    "brokers read their log from such tables, so a deleted row would break it",
)
