"""The fields of `runs.result`, by job."""

from __future__ import annotations

from typing import Any, NotRequired, get_args, get_origin, get_type_hints

from ebbtide.ledger.results import VERSION, Result
from ebbtide.specs.all_specs import SPECS


def collect() -> dict[str, Any]:
    """Return the version, the fields around, and those of a partition and of a topic by job."""
    return {
        "version": VERSION,
        "result": _fields(Result),
        "jobs": {
            job: {"partition": _fields(spec.result[0]), "topic": _fields(spec.result[1])}
            for job, spec in SPECS.items()
        },
    }


def _fields(kind: type) -> dict[str, str]:
    """Return the type of each field; a field that may be missing ends in a question mark."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        fields[f"{name}?" if is_optional else name] = _type(hint)
    return fields


def _type(hint: Any) -> str:
    """Return the type without its meaning."""
    while get_origin(hint) is NotRequired or hasattr(hint, "__metadata__"):
        hint = get_args(hint)[0]
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("typing.", "").replace("collections.abc.", "")
