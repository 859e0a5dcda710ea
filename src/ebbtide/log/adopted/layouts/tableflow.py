"""Confluent Tableflow's append tables, whose metadata columns have either of two naming schemes.

Source: Confluent Cloud API, tableflow/v1, `metadata_column_naming_scheme`: DEFAULT puts `$$` before
a name such as `raw-value`, PORTABLE `cflt_metadata_`, with underscores for hyphens. Tables of 2026
have topic, partition, headers, leader-epoch, offset, timestamp, timestamp-type, raw-key and
raw-value behind the columns of the topic's schemas.
"""

from __future__ import annotations

from dataclasses import replace

from ebbtide.log.adopted.layout import Choices, Column, Columns, Layout
from ebbtide.log.adopted.profile import Profile, built

NAME = "tableflow"
_PARTS = {
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "topic": "topic",
    "headers": "headers",
    "key": "raw-key",
}
_VALUE = "raw-value"
DEFAULT, PORTABLE = "$$", "cflt_metadata_"


def recognise(columns: Columns, choices: Choices) -> Layout | None:
    """Return the layout of a table with the metadata columns of either scheme."""
    for prefix in (DEFAULT, PORTABLE):
        if columns.named(prefix + "offset") is not None:
            return _of_scheme(prefix, columns, choices)
    return None


def _of_scheme(prefix: str, columns: Columns, choices: Choices) -> Layout | None:
    parts = {part: columns.named(_named(prefix, name)) for part, name in _PARTS.items()}
    layout = built(NAME, columns, parts, choices)
    if layout is None or choices.value:
        return layout
    raw = columns.named(_named(prefix, _VALUE))
    values: list[Column] = [*([raw] if raw is not None else []), *_of_schema(prefix, columns)]
    return replace(layout, values=tuple(column.field_id for column in values))


def _of_schema(prefix: str, columns: Columns) -> list[Column]:
    """Return the columns of the topic's schemas; without any, `value` holds the bytes."""
    value = columns.named("value")
    if value is not None and value.type == "binary":
        return [value]
    return [column for column in columns.top if not column.name.startswith(prefix)]


def _named(prefix: str, name: str) -> str:
    return prefix + (name.replace("-", "_") if prefix == PORTABLE else name)


PROFILE = Profile(
    NAME,
    "Confluent Tableflow",
    "Confluent Cloud API, tableflow/v1, and tables of 2026",
    recognise,
    "a record is a tombstone where raw-value and all columns of its schemas are null; where your "
    "table has raw-value in each row that is none, name it with --value-column",
    "external engines may only read Tableflow's tables",
)
