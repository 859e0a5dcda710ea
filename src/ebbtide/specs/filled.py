"""The filled-in fields of a form, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from ebbtide.errors import RequestError

_SHOWN = 40  # characters
_LONGEST = 40  # digits
_WHOLE = re.compile("-?[0-9]+")
OFFSET = "offset."  # and the partition: the name of a partition's field


@dataclass(frozen=True, slots=True)
class Filled:
    """The filled-in fields: texts as they were sent, by field; `go` is the button."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Any]]) -> Self:
        """Return the fields of pairs of names and texts; a name may occur several times."""
        values: dict[str, list[str]] = {}
        for name, value in pairs:
            if isinstance(value, str):
                values.setdefault(name, []).append(value)
        return cls(values)

    def text(self, name: str) -> str | None:
        """Return a field's text, or None if it is empty."""
        given = self.values.get(name, ("",))
        return (given[-1].strip() or None) if given else None

    def lines(self, name: str) -> list[str] | None:
        """Return the lines of a field that are not empty, or None."""
        return [line.strip() for line in self.keys(name) or () if line.strip()] or None

    def keys(self, name: str) -> list[str] | None:
        """Return the lines as they are: leading and trailing blanks are part of a key."""
        texts = [line for text in self.values.get(name, ()) for line in text.splitlines()]
        return [line for line in texts if line] or None

    def number(self, name: str) -> int | None:
        """Return a field's whole number, or None if it is empty. Raise RequestError for other
        texts.
        """
        text = self.text(name)
        return None if text is None else whole_number(text, name)

    def time(self, name: str) -> str | None:
        """Return a time as the Params of DAGs have it, RequestError for another text.

        A browser sends it without a zone: it is in UTC.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            if "T" not in text:
                raise ValueError(text)
            has_zone = datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            raise RequestError(
                f"expected a time for {name}, such as 2026-11-24T10:00, found {shortened(text)}"
            ) from None
        if has_zone:
            return text
        return f"{text}:00Z" if text.count(":") == 1 else f"{text}Z"

    def is_checked(self, name: str) -> bool:
        """Return whether the box is checked."""
        return bool(self.values.get(name))


def offsets(filled: Filled) -> dict[str, int]:
    """Return the offsets by partition, from fields and from lines `PARTITION: OFFSET`."""
    given = {
        str(partition_number(name.removeprefix(OFFSET))): number
        for name in filled.values
        if name.startswith(OFFSET) and (number := filled.number(name)) is not None
    }
    for line in filled.lines("more_offsets") or ():
        partition, colon, offset = line.partition(":")
        if not colon:
            raise RequestError(f"expected PARTITION: OFFSET in a line, found {shortened(line)}")
        given[str(partition_number(partition))] = whole_number(offset, "an offset")
    return given


def whole_number(text: str, name: str) -> int:
    """Return a number of ASCII digits. Raise RequestError for other texts or over 64 bits."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        raise RequestError(f"expected a whole number for {name}, found {shortened(text)}")
    # The length first: Python refuses to read more than 4,300 digits.
    if len(text) <= _LONGEST and -(2**63) <= (number := int(text)) < 2**63:
        return number
    raise RequestError(f"expected a number of at most 64 bits for {name}, found {shortened(text)}")


def partition_number(text: str) -> int:
    """Return a partition's number. Raise RequestError for other texts."""
    number = whole_number(text, "a partition")
    if 0 <= number < 2**31:
        return number
    raise RequestError(f"expected a partition of 0 or more, found {number}")


def shortened(text: str) -> str:
    """Return a quoted text for an error, shortened if it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
