"""A run as a line, a cell as a table, cells beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.clean_log.contenders.names import CONTENDERS, OURS
from benchmarks.clean_log.data.cells import Cell
from benchmarks.clean_log.report.kept import CellResults, Measure, Run, cpu_s, wall_s
from benchmarks.clean_log.report.text import days, markdown

MIB = 1024 * 1024

COLUMNS: Mapping[str, Measure] = {
    "CPU s": cpu_s,
    "peak MiB": lambda run: run.peak_rss_bytes / MIB,
    "read MiB": lambda run: run.read_bytes / MIB,
    "written MiB": lambda run: run.written_bytes / MIB,
    "start s": lambda run: run.start_s,
    "flush s": lambda run: run.flush_s,
    "load": lambda run: run.load,
}


def run_line(run: Run) -> str:
    """One run on a line."""
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.steps.items())
    return (
        f"{run.contender:14} {run.wall_s:7.2f} s ({steps})   cpu {run.cpu_s:.1f} s   "
        f"peak {run.peak_rss_bytes / MIB:.0f} MiB   start {run.start_s:.1f} s   "
        f"load {run.load:.1f}"
    )


def cell_table(result: CellResults, ours_is: str = OURS) -> str:
    """A cell's contenders, a row each: medians, and the spread of the wall time."""
    rows = [["", "measured", "runs", "wall s (min to max)", f"× {ours_is}", *COLUMNS]]
    ours = result.median(ours_is, wall_s)
    for contender in CONTENDERS:
        if runs := result.by(contender):
            seconds = [run.wall_s for run in runs]
            spread = f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
            ratio = f"{median(seconds) / ours:.2f}" if ours else ""
            means = [f"{median(map(measure, runs)):,.1f}" for measure in COLUMNS.values()]
            measured = days(run.date for run in runs)
            rows.append([contender, measured, str(len(runs)), spread, ratio, *means])
        elif contender in result.failures:
            rows.append([contender, "", "failed", *[""] * (len(rows[0]) - 3)])
    steps = [
        f"* {step_line(contender, result)}" for contender in CONTENDERS if result.by(contender)
    ]
    return "\n".join([f"### {title(result.cell)}", "", markdown(rows), "", *steps])


def step_line(contender: str, result: CellResults) -> str:
    """Where a contender's seconds went, in its own words."""
    runs = result.by(contender)
    steps = {name: median(run.steps.get(name, 0.0) for run in runs) for name in runs[0].steps}
    return f"{contender}: " + ", ".join(f"{name} {s:.1f} s" for name, s in steps.items())


def ratios_table(results: Sequence[CellResults], measure: Measure) -> str:
    """Medians over ours, a row a cell: below 1 we lose."""
    shown = [c for c in CONTENDERS if c != OURS and any(r.by(c) for r in results)]
    rows = [["cell", "measured", "ours, s", *(f"{c} / ours" for c in shown)]]
    for result in results:
        if ours := result.median(OURS, measure):
            theirs = [result.median(contender, measure) for contender in shown]
            ratios = [f"{seconds / ours:.2f}" if seconds else "" for seconds in theirs]
            measured = days(run.date for run in result.runs)
            rows.append([result.cell, measured, f"{ours:.1f}", *ratios])
    return markdown(rows)


def title(name: str) -> str:
    """A cell in words."""
    cell = Cell.parse(name)
    keys = "Zipf" if cell.is_zipf else "uniform"
    return (
        f"{name}: {cell.records:,} records, {cell.dirty_percent:g} % dirty, {keys} keys, "
        f"{cell.batch_records} records a batch"
    )
