"""What the runs took, kept as one JSON file a cell, and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks.clean_log.report.kept import now
from benchmarks.clean_log.report.text import days, markdown

MB = 1_000_000
MIB = 1024 * 1024
CONTENDERS = ("ours", "kafka", "plain")
# Of ours: headers walked, records read and written, batches counted and written, state moved.
STEPS = ("walk", "records", "batches", "state", "other")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run in a fresh process; `load` is the machine's before it."""

    contender: str
    load: float
    start_s: float
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    read_bytes: int
    written_bytes: int
    steps: dict[str, float]


@dataclass(slots=True)
class KeptCell:
    """A cell's runs, and how much there was to read."""

    path: Path
    records: int
    log_bytes: int
    date: str
    runs: list[Measured] = field(default_factory=list)

    @classmethod
    def begun(cls, directory: Path, cell: str, records: int, log_bytes: int) -> Self:
        """A new measurement, in place of one of as many records that was kept before."""
        return cls(directory / f"{cell}-{records}.json", records, log_bytes, now())

    @classmethod
    def read(cls, path: Path) -> Self:
        """One that was kept."""
        found = json.loads(path.read_text())
        runs = [Measured(**run) for run in found.pop("runs")]
        return cls(path, **found, runs=runs)

    def add(self, run: Measured) -> None:
        """Keep one more run."""
        self.runs.append(run)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = asdict(self)
        del text["path"]
        self.path.write_text(json.dumps(text, indent=1) + "\n")

    def of(self, contender: str) -> list[Measured]:
        """The runs of one of the three."""
        return [run for run in self.runs if run.contender == contender]

    def wall_s(self, contender: str) -> float | None:
        """The median; None where it has no run."""
        runs = self.of(contender)
        return median(run.wall_s for run in runs) if runs else None

    def cpu_s(self, contender: str) -> float | None:
        """The median; None where it has no run."""
        runs = self.of(contender)
        return median(run.cpu_s for run in runs) if runs else None

    @property
    def label(self) -> str:
        """The cell, in words."""
        codec, batch, _ = self.path.stem.split("-")
        return f"{codec}, {batch} a batch"


def line(cell: KeptCell, run: Measured) -> str:
    """One run on a line."""
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.steps.items())
    return (
        f"{cell.path.stem:10} {run.contender:6} {run.wall_s:6.2f} s  "
        f"{cell.records / run.wall_s:>11,.0f} records/s  {cell.log_bytes / run.wall_s / MB:6.1f} "
        f"MB/s  cpu {run.cpu_s:5.1f} s  peak {run.peak_rss_bytes / MIB:5.0f} MiB  {steps}"
    )


def ingest_tables(directory: Path) -> str:
    """The rates of the three beside each other, and where the time of ours goes."""
    cells = [cell for cell in _ordered(directory) if cell.of("ours")]
    steps = [cell for cell in cells if cell.of("ours")[0].steps.keys() == set(STEPS)]
    return "\n\n".join([_rates(cells), *([_steps(steps)] if steps else [])])


def _rates(cells: Sequence[KeptCell]) -> str:
    rows = [
        [
            *("codec, batch", "records", "measured", "ours, records/s", "kafka", "plain"),
            *("ours, MB/s of log", "kafka", "plain", "CPU s", "peak MiB"),
        ]
    ]
    for cell in cells:
        walls = [cell.wall_s(name) for name in CONTENDERS]
        of_records = [f"{cell.records / wall:,.0f}" if wall else "" for wall in walls]
        of_bytes = [f"{cell.log_bytes / wall / MB:,.0f}" if wall else "" for wall in walls]
        peak = max(run.peak_rss_bytes for run in cell.of("ours"))
        when, cpu_s = days([cell.date]), f"{cell.cpu_s('ours'):,.1f}"
        size = [cell.label, f"{cell.records:,}", when]
        rows.append([*size, *of_records, *of_bytes, cpu_s, f"{peak / MIB:,.0f}"])
    return markdown(rows)


def _steps(cells: Sequence[KeptCell]) -> str:
    """Seconds of the first run of ours, by what it does."""
    rows = [["codec, batch", "records", *(f"{step}, s" for step in STEPS)]]
    for cell in cells:
        steps = cell.of("ours")[0].steps
        seconds = [f"{steps[step]:.1f}" for step in STEPS]
        rows.append([cell.label, f"{cell.records:,}", *seconds])
    return markdown(rows)


def _ordered(directory: Path) -> Sequence[KeptCell]:
    def order(cell: KeptCell) -> tuple[str, int, int]:
        codec, batch, _ = cell.path.stem.split("-")
        return codec, int(batch), cell.records

    return sorted((KeptCell.read(path) for path in directory.glob("*.json")), key=order)
