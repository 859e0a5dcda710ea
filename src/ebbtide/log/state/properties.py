"""Read the properties in which ebbtide keeps what it does; a hand edit may have damaged one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

from ebbtide.errors import ConfigurationError
from ebbtide.json_text import MALFORMED, parse_json, parse_whole, whole

T = TypeVar("T")

MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"  # Iceberg's own
DEFAULT_MAX_SNAPSHOT_AGE_MS = 5 * 24 * 60 * 60 * 1000
_LONGEST = 200


def parse_property(name: str, text: str, expected: str, build: Callable[[Any], T]) -> T:
    """Build a value from the JSON in a property; ConfigurationError where it is malformed."""
    try:
        return build(parse_json(text))
    except MALFORMED:
        raise unreadable(name, text, expected) from None


def unreadable(name: str, text: str, expected: str) -> ConfigurationError:
    """Return the error for a property that ebbtide wrote otherwise."""
    shown = repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r} and more"
    return ConfigurationError(
        f"expected {expected} in {name}, found {shown}; "
        "restore the property from an older table metadata"
    )


def checked_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass's fields; TypeError where a plain one is of another type."""
    for field in fields(kind):
        value = values.get(field.name)
        if field.name not in values or field.type not in ("int", "bool", "str"):
            continue
        if field.type == "int":
            whole(value)
        elif type(value).__name__ != field.type:
            raise TypeError(f"{value!r} for {field.name}")
    return dict(values)


def max_snapshot_age_ms(properties: Mapping[str, str]) -> int:
    """How old a table's snapshots get before they may be expired."""
    return parse_snapshot_age(properties.get(MAX_SNAPSHOT_AGE) or str(DEFAULT_MAX_SNAPSHOT_AGE_MS))


def parse_snapshot_age(text: str) -> int:
    """Parse a whole number of milliseconds; ConfigurationError for any other text."""
    with suppress(ValueError):
        return parse_whole(text)
    raise ConfigurationError(
        f"expected a whole number of milliseconds for {MAX_SNAPSHOT_AGE}, found {text!r:.40}; "
        "set it anew"
    )
