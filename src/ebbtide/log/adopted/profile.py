"""The shape of a profile: what one writer's tables look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ebbtide.log.adopted.layout import Choices, Column, Columns, Layout, chosen_column

WHOLE_NUMBERS = frozenset({"int", "long"})
TIMES = frozenset({"long", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})


class Profile(NamedTuple):
    """One writer's layout; `recognise` returns None for a table that is not of it."""

    name: str
    writer: str
    source: str  # where the layout is told, and of which version
    recognise: Callable[[Columns, Choices], Layout | None]
    # What a person should know before adopting such a table.
    warning: str = ""
    # Why nobody else may write to such tables; empty where others may.
    read_only: str = ""


def is_of(column: Column | None, types: frozenset[str]) -> bool:
    """Return whether there is a column and it has one of these types."""
    return column is not None and column.type in types


def built(
    profile: str, columns: Columns, parts: Mapping[str, Column | None], choices: Choices
) -> Layout | None:
    """Return the layout of these parts, choices first; None without partition, offset or time."""
    named = {name: text for name, text in choices._asdict().items() if text}
    tombstone = named.pop("tombstone", "")
    chosen = {part: chosen_column(columns, name) for part, name in named.items()}
    all_parts = {**parts, **chosen}
    value = all_parts.pop("value", None)
    ids: dict[str, Any] = {
        part: column.field_id for part, column in all_parts.items() if column is not None
    }
    is_whole = (
        is_of(all_parts.get("partition"), WHOLE_NUMBERS)
        and is_of(all_parts.get("offset"), WHOLE_NUMBERS)
        and is_of(all_parts.get("timestamp"), TIMES)
    )
    if not is_whole:
        return None
    if value is not None:
        ids["values"] = (value.field_id,)
    if tombstone:
        name, _, text = tombstone.partition("=")
        ids |= {"mark": chosen_column(columns, name).field_id, "mark_text": text}
    return Layout(profile=profile, **ids)
