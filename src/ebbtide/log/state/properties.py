"""Read the properties in which ebbtide keeps what it does; a hand edit may have damaged one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, ClassVar, Self, TypeVar

from ebbtide.errors import ConfigurationError
from ebbtide.json_text import MALFORMED, parse_json
from ebbtide.numbers import parse_whole, whole

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


class InFlight:
    """Work that a property of the state holds as JSON; a dataclass with a field for each value."""

    PROPERTY: ClassVar[str]
    EXPECTED: ClassVar[str]  # in words, for errors

    def to_json(self) -> str:
        """Return the value of the property."""
        return json.dumps(asdict(self), separators=(",", ":"))  # type: ignore[call-overload]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the work that a property holds; ConfigurationError where somebody changed it."""
        return parse_property(cls.PROPERTY, text, cls.EXPECTED, cls._built)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the work that is in flight by these properties, if any."""
        text = properties.get(cls.PROPERTY)
        return None if text is None else cls.parse(text)

    @classmethod
    def _built(cls, values: Any) -> Self:
        """Return the work of these values; one of MALFORMED if they are of other types."""
        raise NotImplementedError


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
