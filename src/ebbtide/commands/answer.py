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

# Rises when a field of a document goes or means something else; new fields do not change it.
VERSION = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints, and its exit code; `document` has no `command` and no `version`."""

    text: str
    document: Mapping[str, Any]
    code: ExitCode | int = ExitCode.DONE


def print_answer(command: str, answer: Answer, *, as_json: bool) -> None:
    """Print the text or the document on stdout; nothing where the text is empty."""
    if as_json:
        print_document(command, answer.document)
    elif answer.text:
        print(answer.text, flush=True)


def print_error(command: str, error: EbbtideError, *, as_json: bool) -> None:
    """Print one line on stderr; with `as_json` a document with `error` on stdout too."""
    kind = type(error).__name__
    print(f"ebbtide: {kind}: {error}", file=sys.stderr)
    if as_json:
        print_document(command, {"error": {"class": kind, "message": str(error)}})


def print_document(command: str, fields: Mapping[str, Any]) -> None:
    """Print a document of a command, with its name and the version of the form."""
    document = {"command": command, "version": VERSION, **fields}
    print(json.dumps(document, indent=2), flush=True)


def missing_command(name: str) -> ConfigurationError:
    """Return the error for a command of Spark's that is not on the path."""
    return ConfigurationError(
        f"expected {name} on the path, found none; install the package into this environment and "
        "run `ebbtide doctor`"
    )


def iso(when: datetime | None) -> str | None:
    """Return a time of Airflow's or Iceberg's as ISO 8601 in UTC, to the millisecond."""
    if when is None:
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds")


def iso_ms(ms: int | None) -> str | None:
    """Return milliseconds since the epoch as ISO 8601 in UTC; Kafka's -1 is none."""
    return None if ms is None or ms < 0 else iso(to_datetime(ms))
