"""A command's answer: text for people, and one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ebbtide.errors import ConfigurationError, EbbtideError, ExitCode
from ebbtide.moments import to_datetime

# Increases if a field of a document is removed or changes its meaning, not for new fields.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """A command's output and exit code."""

    text: str
    document: Mapping[str, Any]  # without the fields `command` and `version`
    code: ExitCode | int = ExitCode.DONE


def print_answer(command: str, answer: Answer, *, as_json: bool) -> None:
    """Print the document or the text on stdout, or nothing if the text is empty."""
    if as_json:
        print_document(command, answer.document)
    elif answer.text:
        print(answer.text, flush=True)


def print_error(command: str, error: EbbtideError, *, as_json: bool) -> None:
    """Print one line on stderr. With `as_json`, also print a document with `error` on stdout."""
    kind = type(error).__name__
    print(f"ebbtide: {kind}: {error}", file=sys.stderr)
    if as_json:
        print_document(command, {"error": {"class": kind, "message": str(error)}})


def print_document(command: str, fields: Mapping[str, Any]) -> None:
    """Print a command's document, with the command's name and the version of its fields."""
    document = {"command": command, "version": VERSION, **fields}
    print(json.dumps(document, indent=2), flush=True)


def missing_command(name: str) -> ConfigurationError:
    """Return the error for a command of Spark that is not on the PATH."""
    return ConfigurationError(
        f"expected {name} on the PATH, found none. Install the package into this environment and "
        "run `ebbtide doctor`"
    )


def iso(when: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    if when is None:
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds")


def iso_ms(ms: int | None) -> str | None:
    """Return milliseconds since the epoch as ISO 8601 in UTC, or None for Kafka's -1."""
    return None if ms is None or ms < 0 else iso(to_datetime(ms))
