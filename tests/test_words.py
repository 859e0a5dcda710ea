"""The tells of sentences that must be read twice, counted in all that people read.

`python -m tests.test_words` lists them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("src", "dags", "jobs", "plugins")
TEMPLATES = "src/ebbtide/orchestration/pages/templates"
# How many there are at most. A number only falls: whoever removes one writes the lower number.
LIMITS = {"docstrings": 0, "messages": 0, "templates": 0, "docs": 0}
TELLS = (
    r"; None where",
    r"\bwhere (it|there|none|nobody|somebody|one|that|this|others|they|no)\b",
    r"\b(others|somebody|nobody|anybody|anew|astride|beside)\b",
    r"\b(leaves?|leaving) (the|a|its) (table|log|disk)\b",
    r"\b(stands? still|stood still|let go|lets go|such as are)\b",
)
# Of the first line of a docstring.
FIRST_WORDS = r"(Return )?(what|those|which|that|whatever|where)\b|(how|who)\b"


class Tell(NamedTuple):
    """Where a sentence has a tell."""

    kind: str
    path: str
    line: int
    text: str


@cache
def tells() -> tuple[Tell, ...]:
    """Return every tell in the code's texts, in templates and in docs."""
    return tuple(_tells())


def _tells() -> Iterator[Tell]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of_code(path)
    for path in sorted((ROOT / TEMPLATES).glob("*.html")):
        yield from _of_lines(
            "templates", path, re.sub(r"\{#.*?#\}|\{%.*?%\}", "", path.read_text())
        )
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from _of_lines("docs", path, re.sub(r"`[^`\n]*`", "", path.read_text()))


def _of_code(path: Path) -> Iterator[Tell]:
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        kind = "docstrings" if id(node) in docstrings else "messages"
        yield from _of_text(kind, path, node.lineno, node.value)


def _of_text(kind: str, path: Path, line: int, text: str) -> Iterator[Tell]:
    patterns = list(TELLS)
    if kind == "docstrings":
        patterns.append(rf"\A({FIRST_WORDS})")
    text = " ".join(text.split())
    if " " not in text:
        return
    for pattern in patterns:
        for found in re.finditer(pattern, text, re.IGNORECASE):
            around = text[max(0, found.start() - 40) : found.end() + 40]
            yield Tell(kind, str(path.relative_to(ROOT)), line, around)


def _of_lines(kind: str, path: Path, text: str) -> Iterator[Tell]:
    for number, line in enumerate(text.splitlines(), start=1):
        yield from _of_text(kind, path, number, line)


@pytest.mark.parametrize("kind", LIMITS)
def test_tells_only_become_fewer(kind: str) -> None:
    found = [tell for tell in tells() if tell.kind == kind]
    assert len(found) <= LIMITS[kind], "\n".join(map(str, found))


if __name__ == "__main__":
    every = tells()
    for tell in every:
        print(f"{tell.path}:{tell.line}: {tell.kind}: {tell.text}")
    print(Counter(tell.kind for tell in every))
