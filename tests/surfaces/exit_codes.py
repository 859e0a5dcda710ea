"""The error classes, and the exit code of a job after errors of its topics."""

from __future__ import annotations

from typing import Any

from ebbtide import errors
from ebbtide.errors import EbbtideError, exit_code, is_transient

# Classes of the errors of a job's topics; `done` is a topic without an error.
COMBINATIONS = (
    "done",
    "done RequestError",
    "RequestError SafetyError",
    "RequestError UnavailableError",
    "ValueError",
    "ValueError CommitConflictError done",
)


def collect() -> dict[str, Any]:
    """Return the codes, those of each class, and those of several topics."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    classes = {kind.__name__: kind for kind in kinds if issubclass(kind, EbbtideError)}
    known: dict[str, Any] = {**classes, "ValueError": ValueError, "done": lambda _: None}
    return {
        "codes": {code.name: int(code) for code in errors.ExitCode},
        "classes": {
            name: {
                "parent": kind.__mro__[1].__name__,
                "is_transient": is_transient(kind("x")),
                "exit_code": int(exit_code([kind("x")])),
            }
            for name, kind in classes.items()
        },
        "combinations": {
            names: int(exit_code([known[name]("x") for name in names.split()]))
            for names in COMBINATIONS
        },
    }
