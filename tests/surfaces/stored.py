"""Compare what was collected of the product with a stored file, and describe shapes of JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from difflib import unified_diff
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).parent / "stored"
# In the environment: the surfaces to write instead of comparing them, or `all`.
WRITTEN = "SURFACES_TO_WRITE"
WIDTH = 100  # of a line in a stored file
MOST = 60  # lines of a failure
_NUMBER = re.compile(r"[0-9]+", re.ASCII)
_ABSENT = object()


def check(name: str, collected: object) -> None:
    """Fail if the surface differs from its stored file; write the file if that is asked for."""
    file = STORED / f"{name}.json"
    text = f"{rendered(collected)}\n"
    if os.environ.get(WRITTEN) == "all" or name in os.environ.get(WRITTEN, "").split():
        STORED.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    lines = list(differences(stored, json.loads(text)))
    if lines:
        more = [f"and {len(lines) - MOST} lines more"] if lines[MOST:] else []
        shown = "\n  ".join([*lines[:MOST], *more])
        pytest.fail(
            f"stored/{file.name} differs from the product (- stored, + now):\n  {shown}\n"
            f"If this change is meant: python -m tests.surfaces --write {name}",
            pytrace=False,
        )


def rendered(value: Any, indent: str = "") -> str:
    """Return JSON with sorted keys; each value that fits on a line is on one line."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, list):
        first, last, items = "[", "]", [rendered(item, inner) for item in value]
    else:
        first, last = "{", "}"
        pairs = sorted(value.items())
        items = [f"{json.dumps(key)}: {rendered(item, inner)}" for key, item in pairs]
    return f"{first}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{last}"


def differences(stored: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield a line per difference, each with the keys that lead to it."""
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in sorted({*stored, *now}):
            pair = (side.get(key, _ABSENT) for side in (stored, now))
            yield from differences(*pair, f"{path} / {key}" if path else key)
    elif isinstance(stored, list) and isinstance(now, list):
        items = ([json.dumps(item) for item in side] for side in (stored, now))
        for line in list(unified_diff(*items, n=1, lineterm=""))[2:]:
            yield f"{path}: {line}"
    elif stored != now:
        for sign, value in (("-", stored), ("+", now)):
            if value is not _ABSENT:
                yield f"{sign} {path}: {json.dumps(value)}"


def shape(value: Any) -> Any:
    """Return the types of a JSON value by key. Items of a list merge, and so do numbers as keys."""
    if isinstance(value, dict):
        merged: dict[str, Any] = {}
        for key, item in value.items():
            name = "<number>" if _NUMBER.fullmatch(key) else key
            merged[name] = _either(merged[name], shape(item)) if name in merged else shape(item)
        return merged
    if isinstance(value, list):
        return shape_of_all(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return {str: "text", int: "integer", float: "number"}[type(value)]


def shape_of_all(values: Iterable[Any]) -> list[Any]:
    """Return a list with the one shape that covers all values, or an empty one."""
    shapes = [shape(value) for value in values]
    return [reduce(_either, shapes)] if shapes else []


def _either(one: Any, other: Any) -> Any:
    """Return a shape that covers both; a key that one of them lacks ends in a question mark."""
    if isinstance(one, dict) and isinstance(other, dict):
        merged = {}
        for name in sorted({key.rstrip("?") for key in (*one, *other)}):
            names = (name, f"{name}?")
            found = [side[key] for side in (one, other) for key in names if key in side]
            is_always = name in one and name in other
            merged[name if is_always else f"{name}?"] = reduce(_either, found)
        return merged
    if isinstance(one, list) and isinstance(other, list):
        return [reduce(_either, [*one, *other])] if one or other else []
    if isinstance(one, str) and isinstance(other, str):
        return " | ".join(sorted({*one.split(" | "), *other.split(" | ")}))
    return one if one == other else {"either": sorted([one, other], key=json.dumps)}
