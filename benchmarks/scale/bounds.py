"""The bounds that the scale cases are held to, judged on what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.clean_log.report.text import markdown
from benchmarks.scale.cases import CASES, WITH_WORK, few_alone, few_of_all

if TYPE_CHECKING:
    from benchmarks.scale.kept import Kept

TWICE_AS_MANY = 2.2  # times the CPU seconds at most
MEMORY = 1.2  # times the driver's memory at most, from the fewest batches to the most
IN_ALL_MIB = 2048  # suffice for Python and the JVM together
OTHERS_IDLE = 2.0  # times those of a night without the idle topics at most


def scale_bounds(kept: Mapping[str, Sequence[Kept]], shown: Mapping[str, Sequence[Kept]]) -> str:
    """A row a bound: its worst step, and whether it holds; of all that is kept, and is shown."""
    rows = [["case", "bound", "it took", "over", "times", "bound is"]]
    for case in CASES:
        rows += _twice_as_many(shown.get(case, ()))
    rows += _flat_memory(kept.get("executors", ()))
    rows += _idle_topics(shown.get("topics", ()))
    for case in ("topics", "both"):
        rows += _memory_in_all(shown.get(case, ()))
    return markdown(rows)


def _twice_as_many(of_case: Sequence[Kept]) -> Iterator[list[str]]:
    """The step that grows most between the two counts."""
    if len(of_case) != 2 or of_case[1].count != 2 * of_case[0].count:
        return
    few, many = of_case
    pairs = [(step, other) for step in many.steps if (other := few.step(step.name))]
    worst, before = max(pairs, key=lambda pair: pair[0].cpu_s / pair[1].cpu_s)
    says = f"{few.count:,} to {many.count:,}: at most {TWICE_AS_MANY} times; {worst.name}"
    yield _cpu_row(many.case, says, worst.cpu_s, before.cpu_s, TWICE_AS_MANY)


def _flat_memory(of_case: Sequence[Kept]) -> Iterator[list[str]]:
    """What the driver holds of the most batches over what it holds of the fewest."""
    if len(of_case) != 2:
        return
    few, many = of_case
    before, after = (kept.steps[0].facts["driver_mib"] for kept in of_case)
    says = f"{few.count:,} to {many.count:,}: at most {MEMORY} times the driver's memory"
    yield _row(many.case, says, f"{after:,} MiB", f"{before:,} MiB", after / before, MEMORY)


def _memory_in_all(of_case: Sequence[Kept]) -> Iterator[list[str]]:
    """The step that holds most."""
    for kept in of_case:
        worst = max(kept.steps, key=lambda step: step.peak_rss_bytes)
        peak_mib = worst.peak_rss_bytes / (1024 * 1024)
        says = f"{kept.count:,}: at most {IN_ALL_MIB:,} MiB; {worst.name}"
        over, times = f"{IN_ALL_MIB:,} MiB", peak_mib / IN_ALL_MIB
        yield _row(kept.case, says, f"{peak_mib:,.0f} MiB", over, times, 1.0)


def _idle_topics(of_case: Sequence[Kept]) -> Iterator[list[str]]:
    """A whole night of all topics, of which few have work, over one of those few alone."""
    for kept in of_case:
        of_all, alone = (
            sum(step.cpu_s for step in kept.steps if step.name.endswith(ending))
            for ending in (few_of_all(), few_alone())
        )
        if alone:
            says = (
                f"a night of {kept.count:,} of which {WITH_WORK} have work: at most "
                f"{OTHERS_IDLE} times one of those {WITH_WORK}"
            )
            yield _cpu_row(kept.case, says, of_all, alone, OTHERS_IDLE)


def _cpu_row(case: str, says: str, cpu_s: float, over_s: float, at_most: float) -> list[str]:
    seconds = (f"{taken_s:.1f} s of CPU" for taken_s in (cpu_s, over_s))
    return _row(case, says, *seconds, cpu_s / over_s, at_most)


def _row(case: str, says: str, took: str, over: str, times: float, at_most: float) -> list[str]:
    judged = "held" if times <= at_most else "missed"
    return [case, says, took, over, f"{times:.2f}", judged]
