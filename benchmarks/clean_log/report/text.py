"""Tables that read well as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of these rows, the first one its head; the first column is words."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([lines[0], _line(rule, widths), *lines[1:]])


def days(dates: Iterable[str]) -> str:
    """The first and the last day of ISO 8601 times, one where they are the same."""
    found = sorted({date[:10] for date in dates})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    words = row[0].ljust(widths[0])
    numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return f"| {' | '.join([words, *numbers])} |"
