"""The kept results as tables: `python -m benchmarks.clean_log.report [--write]`.

With --write they become benchmarks/results/README.md, after the text of cells.md, and
docs/performance.md gets the summary.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clean_log.contenders.names import ADOPTED
from benchmarks.clean_log.data.cells import Cell
from benchmarks.clean_log.data.home import ROOT
from benchmarks.clean_log.report.bounds import bounds_table
from benchmarks.clean_log.report.kept import CellResults, cpu_s, load_all, wall_s
from benchmarks.clean_log.report.lines import cell_table, ratios_table
from benchmarks.clean_log.report.nights import KeptNights, nights_table
from benchmarks.ingest_segments.kept import ingest_tables
from benchmarks.ingest_topic.kept import topic_table
from benchmarks.scale.kept import read_all, scale_tables
from benchmarks.undo_run.kept import KeptUndo, undo_tables

RESULTS = ROOT / "benchmarks" / "results"
KEPT = RESULTS / "clean_log"
KEPT_OF_ADOPTED = RESULTS / "adopted"
PAGE = RESULTS / "README.md"
CELLS = Path(__file__).parent / "cells.md"
SUMMARY_PAGE = ROOT / "docs" / "performance.md"
SUMMARY = Path(__file__).parent / "performance.md"
ADOPTED_METHOD = (Path(__file__).parent / "adopted.md").read_text().strip()
INGEST = (Path(__file__).parent / "ingest.md").read_text().strip()
TOPIC = (Path(__file__).parent / "topic.md").read_text().strip()
SCALE = (Path(__file__).parent / "scale.md").read_text().strip()
UNDO = (Path(__file__).parent / "undo.md").read_text().strip()


def measured(results: Sequence[CellResults], nights: KeptNights | None) -> str:
    """The page of all results without its introduction."""
    ordered = sorted(results, key=_order)
    return "\n\n".join(
        [
            _machine(results),
            "## Bounds",
            bounds_table(results),
            "## Wall time divided by that of `ours`",
            ratios_table(ordered, wall_s),
            "## CPU seconds divided by those of `ours`",
            ratios_table(ordered, cpu_s),
            "## Each cell",
            *map(cell_table, ordered),
            ADOPTED_METHOD,
            *(cell_table(result, ADOPTED) for result in load_all(KEPT_OF_ADOPTED)),
            *(["## Thirty nightly runs", nights_table(nights)] if nights else []),
            INGEST,
            ingest_tables(RESULTS / "ingest_segments"),
            *([TOPIC, live] if (live := topic_table(RESULTS / "ingest_topic")) else []),
            *([UNDO, undo_tables(undo)] if (undo := KeptUndo.read()) else []),
            SCALE,
            scale_tables(read_all(RESULTS / "scale")),
        ]
    )


def summary(results: Sequence[CellResults]) -> str:
    """Return docs/performance.md."""
    parts = {
        "machine": _machine(results),
        "bounds": bounds_table(results),
        "ratios": ratios_table(sorted(results, key=_order), wall_s),
    }
    text = SUMMARY.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _machine(results: Sequence[CellResults]) -> str:
    machine = ", ".join(f"{name} {what}" for name, what in results[0].machine.items())
    return f"Measured on: {machine}. Each table has its dates."


def _order(result: CellResults) -> tuple[bool, int, bool, float]:
    cell = Cell.parse(result.cell)
    return "-b" in cell.name, cell.records, cell.is_zipf, cell.dirty_percent


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=KEPT)
    parser.add_argument("--write", action="store_true", help="the pages too")
    args = parser.parse_args(argv)
    results = [result for result in load_all(args.results) if result.runs]
    if not results:
        raise SystemExit(f"expected results in {args.results}, found none: run `make bench`")
    tables = measured(results, KeptNights.of(args.results / "nights"))
    print(tables)
    if args.write:
        PAGE.write_text(f"{CELLS.read_text().strip()}\n\n{tables}\n")
        SUMMARY_PAGE.write_text(summary(results))


if __name__ == "__main__":
    main()
