"""What undos and nights took, kept as JSON, and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple, Self

from benchmarks.clean_log.data.cells import Cell
from benchmarks.clean_log.data.home import ROOT
from benchmarks.clean_log.report.text import markdown

RESULTS = ROOT / "benchmarks" / "results" / "undo_run.json"
DEFAULT, WITHOUT = "undoable", "final"  # the clusters, and so the names of what is compared
MB = 1_000_000
IDLE = 0.5  # a load average of the machine at most


class Taken(NamedTuple):
    """Seconds of one job or night."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUndo:
    """Runs that count, in the order in which they were made; `load` is before and after all."""

    machine: dict[str, str]
    date: str
    load: list[float]
    cell: str
    rounds: list[Taken]
    undos: list[Taken]
    night_records: int
    night_percent: float
    nights: dict[str, list[Taken]]
    bytes_on_disk: dict[str, int]

    @classmethod
    def read(cls, path: Path = RESULTS) -> Self | None:
        """What is kept; None where nothing is."""
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        lists = {name: [Taken(*seconds) for seconds in kept[name]] for name in ("rounds", "undos")}
        nights = {
            what: [Taken(*seconds) for seconds in runs] for what, runs in kept["nights"].items()
        }
        return cls(**{**kept, **lists, "nights": nights})

    def write(self, path: Path = RESULTS) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def undo_tables(kept: KeptUndo) -> str:
    """Medians, their ratios, what lies on the disk, and what else the machine did."""
    cell = Cell.parse(kept.cell)
    final, undoable = (kept.nights[what] for what in (WITHOUT, DEFAULT))
    rows = [
        ["", "runs", "wall s", "CPU s"],
        _row(f"a round, {cell.records:,} records, {cell.dirty_percent:g} % dirty", kept.rounds),
        _row("its undo", kept.undos),
        _ratios("undo / round", kept.undos, kept.rounds),
        _row(
            f"a night, {kept.night_records:,} keys, {kept.night_percent:g} % of them again, "
            "ebbtide.undo.retention.ms=0",
            final,
        ),
        _row("the same night with undo points, as by default", undoable),
        _ratios("with / without", undoable, final),
    ]
    of_disk = kept.bytes_on_disk[DEFAULT] / kept.bytes_on_disk[WITHOUT]
    return "\n".join(
        [
            markdown(rows),
            "",
            f"After the last night {kept.bytes_on_disk[DEFAULT] / MB:,.0f} MB lie on the disk, "
            f"{of_disk:.2f} times those without undo points. {_machine(kept)}",
        ]
    )


def _row(what: str, runs: Sequence[Taken]) -> list[str]:
    return [what, str(len(runs)), *(f"{_median(runs, measure):.1f}" for measure in _MEASURES)]


def _ratios(what: str, runs: Sequence[Taken], over: Sequence[Taken]) -> list[str]:
    """Of medians: those of one run of the benchmark are what counts."""
    return [
        what,
        "",
        *(f"× {_median(runs, measure) / _median(over, measure):.2f}" for measure in _MEASURES),
    ]


def _median(runs: Sequence[Taken], measure: Callable[[Taken], float]) -> float:
    return median(map(measure, runs))


_MEASURES: Sequence[Callable[[Taken], float]] = (lambda t: t.wall_s, lambda t: t.cpu_s)


def _machine(kept: KeptUndo) -> str:
    before, after = kept.load
    measured = f"{kept.date[:10]}, load {before:.1f} before and {after:.1f} after."
    if before <= IDLE:
        return measured
    return f"{measured} The machine was not idle, so only the ratios count."
