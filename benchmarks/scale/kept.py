"""What the steps took, kept as one JSON file a case and count, and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.clean_log.report.kept import now, this_machine
from benchmarks.clean_log.report.text import days, markdown
from benchmarks.scale.cases import CASES, Step

MIB = 1024 * 1024
AT_MOST = 2.2  # times the cost, for twice as many


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One step; `facts` are counts, bytes or seconds by name."""

    name: str
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    facts: dict[str, Any]

    @classmethod
    def of(cls, step: Step) -> Self:
        """Without what the commands printed."""
        taken = step.taken
        wall_s, cpu_s = round(taken.wall_s, 2), round(taken.cpu_s, 2)
        return cls(step.name, wall_s, cpu_s, taken.peak_rss_bytes, dict(step.facts))


@dataclass(slots=True)
class Kept:
    """The steps of one case with so many."""

    path: Path
    case: str
    count: int
    date: str
    machine: dict[str, str]
    steps: list[KeptStep] = field(default_factory=list)

    @classmethod
    def begun(cls, directory: Path, case: str, count: int) -> Self:
        """A new measurement, in place of one kept before."""
        return cls(directory / f"{case}-{count}.json", case, count, now(), this_machine())

    @classmethod
    def read(cls, path: Path) -> Self:
        """One that was kept."""
        found = json.loads(path.read_text())
        steps = [KeptStep(**step) for step in found.pop("steps")]
        return cls(path, **found, steps=steps)

    def add(self, step: KeptStep) -> None:
        """Keep one more step, in a file that is whole at any time."""
        self.steps.append(step)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = asdict(self)
        del text["path"]
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(text, indent=1) + "\n")
        fresh.replace(self.path)


def step_line(case: str, count: int, step: KeptStep) -> str:
    """One step on a line."""
    facts = ", ".join(f"{name} {value}" for name, value in step.facts.items())
    return (
        f"{case} {count:>7,}  {step.name:40} {step.wall_s:7.1f} s  cpu {step.cpu_s:7.1f} s  "
        f"peak {step.peak_rss_bytes / MIB:6.0f} MiB  {facts}"
    )


def read_all(directory: Path) -> list[Kept]:
    """All that is kept, by case and count."""
    found = [Kept.read(path) for path in directory.glob("*.json")]
    return sorted(found, key=lambda kept: (list(CASES).index(kept.case), kept.count))


def scale_tables(kept: Iterable[Kept]) -> str:
    """A table a case: each step at each count, and what the largest costs over half as many."""
    by_case: dict[str, list[Kept]] = {}
    for of_count in kept:
        by_case.setdefault(of_count.case, []).append(of_count)
    return "\n\n".join(
        f"### Many {CASES[case].many}\n\n{_dates(of_case)}\n\n{_table(of_case)}"
        for case, of_case in by_case.items()
    )


def _dates(of_case: Sequence[Kept]) -> str:
    return f"Measured: {', '.join(f'{kept.count:,} on {days([kept.date])}' for kept in of_case)}."


def _table(of_case: Sequence[Kept]) -> str:
    head = ["step"]
    for kept in of_case:
        head += [f"{kept.count:,}: wall s", "CPU s", "peak MiB"]
    rows = [[*head, "CPU, last over first"]]
    for name in dict.fromkeys(step.name for kept in of_case for step in kept.steps):
        row, cpu_s = [name], []
        for kept in of_case:
            step = next((step for step in kept.steps if step.name == name), None)
            row += _cells(step)
            cpu_s += [step.cpu_s] if step else []
        rows.append([*row, f"{cpu_s[-1] / cpu_s[0]:.2f}" if len(cpu_s) == len(of_case) else ""])
    return f"{markdown(rows)}\n\n{_facts(of_case)}"


def _cells(step: KeptStep | None) -> list[str]:
    if step is None:
        return ["", "", ""]
    return [f"{step.wall_s:.1f}", f"{step.cpu_s:.1f}", f"{step.peak_rss_bytes / MIB:,.0f}"]


def _facts(of_case: Sequence[Kept]) -> str:
    """What the steps said of sizes, a line each."""
    lines = []
    for kept in of_case:
        for step in kept.steps:
            if facts := {name: value for name, value in step.facts.items() if name != "files"}:
                said = ", ".join(f"{name} {_number(value)}" for name, value in facts.items())
                lines.append(f"* {kept.count:,}, {step.name}: {said}")
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
