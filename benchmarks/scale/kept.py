"""What the steps took, kept as one JSON file a case and count, and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.clean_log.report.kept import now, this_machine
from benchmarks.clean_log.report.text import days, markdown
from benchmarks.scale.bounds import scale_bounds
from benchmarks.scale.cases import CASES, Step

MIB = 1024 * 1024


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
        facts = dict(step.facts) | ({} if taken.opens is None else {"opens": taken.opens})
        return cls(step.name, wall_s, cpu_s, taken.peak_rss_bytes, facts)


@dataclass(slots=True)
class Kept:
    """The steps of one case with so many."""

    path: Path
    case: str
    count: int
    date: str
    machine: dict[str, str]
    is_complete: bool = False
    steps: list[KeptStep] = field(default_factory=list)

    @classmethod
    def forget(cls, directory: Path, case: str, count: int) -> None:
        """Drop a measurement, so that the case begins anew."""
        cls._path(directory, case, count).unlink(missing_ok=True)

    @classmethod
    def begun(cls, directory: Path, case: str, count: int) -> Self:
        """The complete measurement that is kept, or a new one in place of a broken off one."""
        path = cls._path(directory, case, count)
        if path.exists() and (kept := cls.read(path)).is_complete:
            return kept
        return cls(path, case, count, now(), this_machine())

    @staticmethod
    def _path(directory: Path, case: str, count: int) -> Path:
        return directory / f"{case}-{count}.json"

    @classmethod
    def read(cls, path: Path) -> Self:
        """One that was kept."""
        values = json.loads(path.read_text())
        steps = [KeptStep(**step) for step in values.pop("steps")]
        return cls(path, **values, steps=steps)

    def step(self, name: str) -> KeptStep | None:
        """The step of this name; None where it was not done."""
        return next((step for step in self.steps if step.name == name), None)

    def add(self, step: KeptStep) -> None:
        """Keep one more step."""
        self.steps.append(step)
        self._write()

    def complete(self) -> None:
        """Note that all steps are done."""
        self.is_complete = True
        self._write()

    def _write(self) -> None:
        """Write the file, which is whole at any time."""
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
    kept_runs = [Kept.read(path) for path in directory.glob("*.json")]
    return sorted(kept_runs, key=lambda kept: (list(CASES).index(kept.case), kept.count))


def scale_tables(kept: Iterable[Kept]) -> str:
    """The bounds, then a table a case: each step at its largest count and at half of that."""
    by_case: dict[str, list[Kept]] = {}
    for of_count in kept:
        by_case.setdefault(of_count.case, []).append(of_count)
    shown = {case: _largest(of_case) for case, of_case in by_case.items()}
    tables = [
        f"### Many {CASES[case].many}\n\n{_dates(of_case)}\n\n{_table(of_case)}"
        for case, of_case in shown.items()
    ]
    return "\n\n".join([scale_bounds(by_case, shown), *tables])


def _largest(of_case: Sequence[Kept]) -> list[Kept]:
    """The counts that the case has; else the most, behind half as many where there is that."""
    own = [kept for kept in of_case if kept.count in CASES[kept.case].counts]
    most = of_case[-1]
    return own or [kept for kept in of_case if kept.count * 2 == most.count or kept is most]


def _dates(of_case: Sequence[Kept]) -> str:
    return f"Measured: {', '.join(f'{kept.count:,} on {days([kept.date])}' for kept in of_case)}."


def _table(of_case: Sequence[Kept]) -> str:
    head = ["step"]
    for kept in of_case:
        head += [f"{kept.count:,}: wall s", "CPU s", "peak MiB", "files", "opens"]
    is_pair = len(of_case) == 2
    rows = [[*head, *(["CPU, last over first"] if is_pair else [])]]
    for name in dict.fromkeys(step.name for kept in of_case for step in kept.steps):
        steps = [kept.step(name) for kept in of_case]
        row = [name, *(cell for step in steps for cell in _cells(step))]
        cpu_s = [step.cpu_s for step in steps if step]
        ratio = f"{cpu_s[-1] / cpu_s[0]:.2f}" if len(cpu_s) == 2 else ""
        rows.append([*row, *([ratio] if is_pair else [])])
    return f"{markdown(rows)}\n\n{_facts(of_case)}"


def _cells(step: KeptStep | None) -> list[str]:
    if step is None:
        return [""] * 5
    counts = [f"{step.facts[name]:,}" if name in step.facts else "" for name in ("files", "opens")]
    return [f"{step.wall_s:.1f}", f"{step.cpu_s:.1f}", f"{step.peak_rss_bytes / MIB:,.0f}", *counts]


def _facts(of_case: Sequence[Kept]) -> str:
    """What the steps said of sizes and times, a line each."""
    lines = []
    for kept in of_case:
        for step in kept.steps:
            facts = {
                name: fact for name, fact in step.facts.items() if name not in ("files", "opens")
            }
            if facts:
                listed = ", ".join(f"{name} {_number(value)}" for name, value in facts.items())
                lines.append(f"* {kept.count:,}, {step.name}: {listed}")
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
