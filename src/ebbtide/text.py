"""Plain text for terminals and task logs: aligned columns, readable numbers and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

WIDTH = 160
NOTHING = "-"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """Return a table with the first column left-aligned and the rest right-aligned.

    A header may have several lines. The first column is cut if the table would be wider than
    `width`.
    """
    heads = [title.split("\n") for title in header]
    depth = max(len(head) for head in heads)
    lines = [[""] * (depth - len(head)) + head for head in heads]
    table = [[column[level] for column in lines] for level in range(depth)]
    table += [list(row) for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    widths[0] = min(widths[0], max(8, width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    text = [_line(row, widths) for row in table]
    return "\n".join([*text[:depth], _line(["-" * w for w in widths], widths), *text[depth:]])


def without_empty(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return the table without columns that are empty in every row; the first column stays."""
    kept = [c for c in range(len(header)) if c == 0 or any(row[c] != NOTHING for row in rows)]
    return [header[c] for c in kept], [[row[c] for c in kept] for row in rows]


def changes_in_words(changes: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Return one line per setting, given as (before, after); None means not set."""
    return [
        f"{name}: {_setting(before)} -> {_setting(after)}"
        if before != after
        else f"{name}: already {_setting(after)}"
        for name, (before, after) in changes.items()
    ]


def _setting(value: str | None) -> str:
    return "not set" if value is None else value or "(empty)"


def one_line(text: str) -> str:
    """Join a text's lines into one."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def in_ranges(numbers: Iterable[int]) -> str:
    """Return the numbers in order, with three or more consecutive ones as first-last."""
    ranges: list[list[int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][-1] + 1:
            ranges[-1].append(value)
        else:
            ranges.append([value])
    texts = (
        f"{neighbours[0]}-{neighbours[-1]}" if neighbours[2:] else ", ".join(map(str, neighbours))
        for neighbours in ranges
    )
    return ", ".join(texts)


def number(value: int | None) -> str:
    """Format a number with its digits in groups of three."""
    return NOTHING if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """Format seconds to a tenth."""
    return NOTHING if value is None else f"{value:.1f}"


def span(ms: int) -> str:
    """Format a span of time in the largest unit that fits, rounded down."""
    for unit, unit_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if count := ms // unit_ms:
            return f"{number(count)} {unit}{'' if count == 1 else 's'}"
    return f"{number(ms // 1000)} seconds"


def size(value_bytes: int | None) -> str:
    """Format bytes in the largest unit with a value of at least 1."""
    if value_bytes is None:
        return NOTHING
    value, unit = float(value_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
    rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *rest]).rstrip()
