"""What the cleaner is to beat, judged on the kept results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.clean_log.contenders.names import KAFKA, OURS
from benchmarks.clean_log.report.kept import CellResults, wall_s
from benchmarks.clean_log.report.text import markdown

EIGHT_MILLION, THIRTY_TWO_MILLION = "8m-5", "32m-1.25"
HALF_DIRTY, SINGLE_RECORDS = "8m-50", "8m-5-b1"


class Bound(NamedTuple):
    """Our wall time in a cell is to be at most `share` of another's."""

    says: str
    ours_in: str
    other_in: str
    other: str
    share: float


BOUNDS = (
    Bound("at most 0.45 of Kafka's Cleaner", EIGHT_MILLION, EIGHT_MILLION, KAFKA, 0.45),
    Bound("at most a quarter of the overwrite", EIGHT_MILLION, EIGHT_MILLION, "overwrite", 0.25),
    Bound("half dirty: at most 0.9 of Kafka's Cleaner", HALF_DIRTY, HALF_DIRTY, KAFKA, 0.9),
    Bound("one record a batch: at most Kafka's time", SINGLE_RECORDS, SINGLE_RECORDS, KAFKA, 1),
    Bound(
        "same dirty part, four times the log: a quarter of Kafka's",
        THIRTY_TWO_MILLION,
        THIRTY_TWO_MILLION,
        KAFKA,
        0.25,
    ),
    Bound(
        "same dirty part, four times the log: twice ours at 8m-5",
        THIRTY_TWO_MILLION,
        EIGHT_MILLION,
        OURS,
        2,
    ),
)


def bounds_table(results: Sequence[CellResults]) -> str:
    """A row a bound: what it allows, what was measured, whether it holds."""
    by_cell = {result.cell: result for result in results}
    rows = [["bound", "cell", "ours s", "allowed s", "holds"]]
    for bound in BOUNDS:
        ours = _median(by_cell, bound.ours_in, OURS)
        other = _median(by_cell, bound.other_in, bound.other)
        row = [bound.says, bound.ours_in]
        if ours is None or other is None:
            rows.append([*row, "", "", "not measured"])
        else:
            allowed = other * bound.share
            rows.append([*row, f"{ours:.1f}", f"{allowed:.1f}", "yes" if ours <= allowed else "no"])
    return markdown(rows)


def _median(by_cell: Mapping[str, CellResults], cell: str, contender: str) -> float | None:
    return by_cell[cell].median(contender, wall_s) if cell in by_cell else None
