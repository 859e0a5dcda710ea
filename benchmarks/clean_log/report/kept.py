"""What runs took, kept as one JSON file a cell, so that a benchmark can be taken up again."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks.clean_log.contenders.java import java_tool
from benchmarks.clean_log.data.home import EBBTIDE_HOME


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One round in a fresh process; `load` is the machine's before it, 0 when it was idle."""

    contender: str
    date: str
    load: float
    start_s: float
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    read_bytes: int
    written_bytes: int
    flush_s: float
    steps: dict[str, float]


Measure = Callable[[Run], float]


def wall_s(run: Run) -> float:
    """Seconds on the clock."""
    return run.wall_s


def cpu_s(run: Run) -> float:
    """Seconds of all cores."""
    return run.cpu_s


@dataclass(slots=True)
class CellResults:
    """A cell's runs, why a contender has none, and the machine that ran them."""

    path: Path
    machine: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, cell: str) -> Self:
        """The kept runs; none where there is no file."""
        path = directory / f"{cell}.json"
        if not path.exists():
            return cls(path)
        kept = json.loads(path.read_text())
        return cls(path, kept["machine"], [Run(**run) for run in kept["runs"]], kept["failures"])

    @property
    def cell(self) -> str:
        """The cell's name."""
        return self.path.stem

    def by(self, contender: str) -> list[Run]:
        """The contender's runs, the first one first."""
        return [run for run in self.runs if run.contender == contender]

    def median(self, contender: str, measure: Measure) -> float | None:
        """Of the contender's runs; None where it has none."""
        runs = self.by(contender)
        return median(map(measure, runs)) if runs else None

    def missing(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """How many runs of each contender are still to be done; none of one that failed."""
        left = {name: count - len(self.by(name)) for name, count in wanted.items()}
        return {
            name: count for name, count in left.items() if count > 0 and name not in self.failures
        }

    def forget(self, contenders: Iterable[str]) -> None:
        """Drop what these contenders did; the file changes with the next thing kept."""
        gone = set(contenders)
        self.runs = [run for run in self.runs if run.contender not in gone]
        self.failures = {name: why for name, why in self.failures.items() if name not in gone}

    def keep(self, contender: str, outcome: Run | str) -> None:
        """Add a run, or why it failed, and write the file, whole or not at all."""
        if isinstance(outcome, Run):
            self.runs.append(outcome)
        else:
            self.failures[contender] = outcome
        self.machine = this_machine()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "machine": self.machine,
            "failures": self.failures,
            "runs": [_rounded(asdict(run)) for run in self.runs],
        }
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=1) + "\n")
        fresh.replace(self.path)


def load_all(directory: Path) -> list[CellResults]:
    """All kept cells, by name."""
    return [CellResults.of(directory, path.stem) for path in sorted(directory.glob("*.json"))]


def now() -> str:
    """The time of a run, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def this_machine() -> dict[str, str]:
    """What a reader needs to compare: processor, memory, versions."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory_kb = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    java = subprocess.run([java_tool("java"), "-version"], capture_output=True, text=True)
    return {
        "processor": processor.group(1) if processor else platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{int(memory_kb.group(1)) / 2**20:.0f} GiB" if memory_kb else "unknown",
        "java": java.stderr.splitlines()[0].split('"')[1],
        "spark": version("pyspark"),
        "iceberg": _jar_version("jars", "iceberg-spark-runtime"),
        "kafka": _jar_version("kafka-jars", "kafka-storage"),
    }


def _jar_version(directory: str, name: str) -> str:
    found = [path.stem for path in (EBBTIDE_HOME / directory).glob(f"{name}-*[0-9].jar")]
    plain = [stem for stem in found if "-api" not in stem]
    return plain[0].rpartition("-")[2] if plain else "unknown"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value
