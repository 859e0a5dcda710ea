"""Charts as SVG coordinates, so that pages show them without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ebbtide.moments import minute
from ebbtide.state.topic_state import PartitionState

# Sizes of a partition's bar and of a chart. The page stretches both to its own width.
BAR_WIDTH = 1000
CHART_WIDTH, CHART_HEIGHT = 600, 120
MAX_BOUNDARIES = 60  # segment boundaries in a bar: more would be a grey area


class Point(NamedTuple):
    """A value at a time in milliseconds since the epoch."""

    at_ms: int
    value: float


class Mark(NamedTuple):
    """A labelled point of a bar, in the bar's coordinates."""

    x: float
    label: str


class AxisRange(NamedTuple):
    """A labelled range of a bar, in the bar's coordinates."""

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
    """Values over time: points for scripts, an SVG path without them, and the axis labels.

    With columns, each value stands alone, for example one per run: no line connects them.
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
        """Times in seconds since the epoch, and values, as uPlot expects them."""
        return [[p.at_ms / 1000 for p in self.points], [p.value for p in self.points]]


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Return the points of an SVG polyline, or an empty text for fewer than two values."""
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

    Only a compacted topic has a dirty range. `held` has the first offset, the end offset
    (exclusive) and the label of each held range.
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
    """Return a chart of the points, oldest first, or None if there are fewer than two."""
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
