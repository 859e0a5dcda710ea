"""What the runs took, kept as one JSON file a size, and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Self

from benchmarks.clean_log.report.kept import now
from benchmarks.clean_log.report.text import days, markdown
from benchmarks.ingest_segments.kept import MIB, Measured

CONTENDERS = {"ours": "ingest_topic", "connect": "Iceberg's sink"}


@dataclass(slots=True)
class KeptTopic:
    """The runs on one topic; `value_bytes` are those of its keys and values."""

    path: Path
    records: int
    value_bytes: int
    date: str
    runs: list[Measured] = field(default_factory=list)

    @classmethod
    def begun(cls, directory: Path, records: int, value_bytes: int) -> Self:
        """A new measurement, in place of one of as many records that was kept before."""
        return cls(directory / f"{records}.json", records, value_bytes, now())

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


def line(kept: KeptTopic, run: Measured) -> str:
    """One run on a line."""
    return (
        f"{kept.records:>10,} {run.contender:8} {run.wall_s:6.1f} s  "
        f"{kept.records / run.wall_s:>9,.0f} records/s  cpu {run.cpu_s:6.1f} s  "
        f"peak {run.peak_rss_bytes / MIB:5.0f} MiB"
    )


def topic_table(directory: Path) -> str:
    """The two beside each other, medians of their runs; empty where nothing was measured."""
    rows = [
        [
            *("", "records", "measured", "runs", "records/s", "wall s"),
            *("records/CPU s", "CPU s", "peak MiB", "load"),
        ]
    ]
    for path in sorted(directory.glob("*.json"), key=lambda path: int(path.stem)):
        kept = KeptTopic.read(path)
        for contender, label in CONTENDERS.items():
            if runs := [run for run in kept.runs if run.contender == contender]:
                rows.append(_row(kept, label, runs))
    return markdown(rows) if len(rows) > 1 else ""


def _row(kept: KeptTopic, label: str, runs: list[Measured]) -> list[str]:
    wall_s, cpu_s = (
        median(seconds) for seconds in zip(*((r.wall_s, r.cpu_s) for r in runs), strict=True)
    )
    peak, load = (max(r.peak_rss_bytes for r in runs), max(r.load for r in runs))
    return [
        *(label, f"{kept.records:,}", days([kept.date]), str(len(runs))),
        *(f"{kept.records / wall_s:,.0f}", f"{wall_s:.1f}"),
        *(f"{kept.records / cpu_s:,.0f}", f"{cpu_s:.1f}"),
        *(f"{peak / MIB:,.0f}", f"{load:.1f}"),
    ]
