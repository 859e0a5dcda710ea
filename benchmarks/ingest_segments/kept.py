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
        """A new measurement, in place of one kept before."""
        return cls(directory / f"{cell}.json", records, log_bytes, now())

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

    def wall_s(self, contender: str) -> float | None:
        """The median; None where it has no run."""
        found = [run.wall_s for run in self.runs if run.contender == contender]
        return median(found) if found else None


def line(cell: KeptCell, run: Measured) -> str:
    """One run on a line."""
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.steps.items())
    return (
        f"{cell.path.stem:10} {run.contender:6} {run.wall_s:6.2f} s  "
        f"{cell.records / run.wall_s:>11,.0f} records/s  {cell.log_bytes / run.wall_s / MB:6.1f} "
        f"MB/s  cpu {run.cpu_s:5.1f} s  peak {run.peak_rss_bytes / MIB:5.0f} MiB  {steps}"
    )


def ingest_table(directory: Path) -> str:
    """A row a cell: rates of ours, and what the others take over it."""
    rows = [
        ["codec, batch", "measured", "records/s", "MB/s of log", "peak MiB", "× kafka", "× plain"]
    ]
    for cell in _ordered(directory):
        ours = cell.wall_s("ours")
        if ours is None:
            continue
        peak = max(run.peak_rss_bytes for run in cell.runs if run.contender == "ours")
        others = [cell.wall_s(name) for name in CONTENDERS[1:]]
        ratios = [f"{ours / other:.1f}" if other else "" for other in others]
        speed = [f"{cell.records / ours:,.0f}", f"{cell.log_bytes / ours / MB:.0f}"]
        codec, _, batch = cell.path.stem.partition("-")
        rows.append(
            [f"{codec}, {batch} a batch", days([cell.date]), *speed, f"{peak / MIB:,.0f}", *ratios]
        )
    return markdown(rows)


def _ordered(directory: Path) -> Sequence[KeptCell]:
    def order(cell: KeptCell) -> tuple[str, int]:
        codec, _, batch = cell.path.stem.partition("-")
        return codec, int(batch)

    return sorted((KeptCell.read(path) for path in directory.glob("*.json")), key=order)
