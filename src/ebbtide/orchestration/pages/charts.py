"""Work out charts as SVG coordinates, so that a page needs no script to show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ebbtide.moments import minute
from ebbtide.state.topic_state import PartitionState

# Coordinates of a partition's bar and of a chart; the page stretches both to the width it has.
BAR_WIDTH = 1000
CHART_WIDTH, CHART_HEIGHT = 600, 120
MAX_BOUNDARIES = 60  # of segments in one bar: more would be a grey area


class Point(NamedTuple):
    """A value at a time in milliseconds since the epoch."""

    at_ms: int
    value: float


class Mark(NamedTuple):
    """A place in a bar, in its coordinates, and what is there."""

    x: float
    label: str


class AxisRange(NamedTuple):
    """A part of a bar, in its coordinates, and what is there."""

    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A partition from its first to its last offset, as coordinates in [0, BAR_WIDTH]."""

    start: float
    first_dirty: float
    active: float
    boundaries: tuple[float, ...]
    replicas: tuple[Mark, ...]
    held: tuple[AxisRange, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time: points for scripts, a path for others, and the texts of its axes.

    A column stands for a value of its own, such as of one run: no line joins it to the next.
    """

    title: str
    unit: str
    points: tuple[Point, ...]
    path: str
    area: str
    highest: str
    first: str
    last: str
    has_columns: bool = False

    @property
    def data(self) -> list[list[float]]:
        """Seconds since the epoch, and values, as the chart library takes them."""
        return [[p.at_ms / 1000 for p in self.points], [p.value for p in self.points]]


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Return the points of a polyline; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    top, step = max(max(values), 1), width / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{height - 2 - (height - 4) * value / top:.1f}"
        for number, value in enumerate(values)
    )


def bar(
    state: PartitionState,
    replica_starts: Mapping[str, int],
    held: Sequence[tuple[int, int, str]] = (),
    *,
    is_compacted: bool = True,
) -> Bar:
    """Return a partition's bar; `replica_starts` are the log start offsets of its replicas.

    Only a compacted topic has a dirty part. `held` are ranges of offsets, each from its first to
    before its end, and what holds them.
    """
    first = min([state.log_start_offset, state.first_segment, *replica_starts.values()])
    length = max(state.log_end_offset - first, 1)

    def x(offset: int) -> float:
        return round(BAR_WIDTH * (min(max(offset, first), first + length) - first) / length, 1)

    bases = [segment.base_offset for segment in state.segments[1:]]
    step = -(-len(bases) // MAX_BOUNDARIES) or 1
    marks = tuple(
        Mark(x(offset), f"{name} starts at {offset:,}") for name, offset in replica_starts.items()
    )
    active = max(state.active_segment, state.log_start_offset)
    dirty = max(state.first_dirty_offset, state.log_start_offset) if is_compacted else active
    named = [*(mark.label for mark in marks), *(label for *_, label in held)]
    return Bar(
        start=x(state.log_start_offset),
        first_dirty=x(dirty),
        active=x(active),
        boundaries=tuple(dict.fromkeys(x(base) for base in bases[::step])),
        replicas=marks,
        held=tuple(AxisRange(x(a), round(x(b) - x(a), 1), label) for a, b, label in held),
        label=_in_words(state, named, is_compacted=is_compacted),
    )


def _in_words(state: PartitionState, more: Sequence[str], *, is_compacted: bool) -> str:
    segments = len(state.segments)
    dirty = [f"first dirty offset {state.first_dirty_offset:,}"] if is_compacted else []
    return ", ".join(
        [
            f"log start offset {state.log_start_offset:,}",
            *dirty,
            f"log end offset {state.log_end_offset:,}",
            f"{segments:,} {'segment' if segments == 1 else 'segments'}",
            *more,
        ]
    )


def chart(
    title: str,
    unit: str,
    points: Sequence[Point],
    in_words: Callable[[int], str],
    *,
    has_columns: bool = False,
) -> Chart | None:
    """Return a chart of at least two points, oldest first; None for fewer."""
    if len(points) < 2:
        return None
    first_ms, last_ms = points[0].at_ms, points[-1].at_ms
    span, top = max(last_ms - first_ms, 1), max(p.value for p in points) or 1

    def place(point: Point) -> str:
        x = CHART_WIDTH * (point.at_ms - first_ms) / span
        y = CHART_HEIGHT - (CHART_HEIGHT - 6) * point.value / top
        return f"{x:.1f},{y:.1f}"

    line = " L".join(map(place, points))
    columns = " ".join(f"M{place(Point(p.at_ms, 0))} L{place(p)}" for p in points)
    return Chart(
        title=title,
        unit=unit,
        points=tuple(points),
        path=columns if has_columns else f"M{line}",
        area="" if has_columns else f"M0,{CHART_HEIGHT} L{line} L{CHART_WIDTH},{CHART_HEIGHT} Z",
        highest=in_words(int(max(p.value for p in points))),
        first=minute(first_ms),
        last=minute(last_ms),
        has_columns=has_columns,
    )
