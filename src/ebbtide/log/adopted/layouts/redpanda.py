"""Redpanda's Iceberg topics, and their dead-letter tables `<topic>~dlq`.

Source: Redpanda 25.1 to 26.2, "About Iceberg Topics": struct `redpanda` with partition, timestamp,
offset, headers and key; then `value`, or the columns of the value's schema. "Troubleshoot Iceberg
Topics": records that cannot be translated are in `<topic>~dlq`, always with `value`.
"""

from __future__ import annotations

from ebbtide.log.adopted.layout import Choices, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "redpanda"


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with the struct `redpanda`."""
    names = ("partition", "offset", "timestamp", "key", "headers")
    parts = {name: columns.named(f"redpanda.{name}") for name in names}
    if any(parts[name] is None for name in ("partition", "offset", "timestamp")):
        return None
    others = [column for column in columns.top if column.name != "redpanda"]
    is_plain = [column.name for column in others] == ["value"]
    return built(NAME, columns, {**parts, "value": others[0] if is_plain else None}, choices)


PROFILE = Profile(
    NAME,
    "Redpanda's Iceberg topics",
    "Redpanda 25.1 to 26.2, About Iceberg Topics",
    recognise,
    "Redpanda does not document what it writes for a null value; with a schema its columns tell no "
    "tombstone unless you name one with --tombstone",
)
