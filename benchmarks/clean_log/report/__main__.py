"""The kept results as tables: `python -m benchmarks.clean_log.report [--write]`.

With --write they become docs/performance.md too, after the text of method.md.
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
PAGE = ROOT / "docs" / "performance.md"
METHOD = Path(__file__).parent / "method.md"
ADOPTED_METHOD = (Path(__file__).parent / "adopted.md").read_text().strip()
INGEST = (Path(__file__).parent / "ingest.md").read_text().strip()
TOPIC = (Path(__file__).parent / "topic.md").read_text().strip()
SCALE = (Path(__file__).parent / "scale.md").read_text().strip()
UNDO = (Path(__file__).parent / "undo.md").read_text().strip()


def measured(results: Sequence[CellResults], nights: KeptNights | None) -> str:
    """The page without its introduction."""
    ordered = sorted(results, key=_order)
    machine = ", ".join(f"{name} {what}" for name, what in results[0].machine.items())
    return "\n\n".join(
        [
            f"Measured on: {machine}. Each table says when.",
            "## What was to be reached",
            bounds_table(results),
            "## Wall time over ours",
            ratios_table(ordered, wall_s),
            "## CPU seconds over ours",
            ratios_table(ordered, cpu_s),
            "## Each cell",
            *map(cell_table, ordered),
            ADOPTED_METHOD,
            *(cell_table(result, ADOPTED) for result in load_all(KEPT_OF_ADOPTED)),
            *(["## Thirty nights", nights_table(nights)] if nights else []),
            INGEST,
            ingest_tables(RESULTS / "ingest_segments"),
            *([TOPIC, live] if (live := topic_table(RESULTS / "ingest_topic")) else []),
            *([UNDO, undo_tables(undo)] if (undo := KeptUndo.read()) else []),
            SCALE,
            scale_tables(read_all(RESULTS / "scale")),
        ]
    )


def _order(result: CellResults) -> tuple[bool, int, bool, float]:
    cell = Cell.parse(result.cell)
    return "-b" in cell.name, cell.records, cell.is_zipf, cell.dirty_percent


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=KEPT)
    parser.add_argument("--write", action="store_true", help="docs/performance.md too")
    args = parser.parse_args(argv)
    results = [result for result in load_all(args.results) if result.runs]
    if not results:
        raise SystemExit(f"expected results in {args.results}, found none: run `make bench`")
    tables = measured(results, KeptNights.of(args.results / "nights"))
    print(tables)
    if args.write:
        PAGE.write_text(f"{METHOD.read_text().strip()}\n\n{tables}\n")


if __name__ == "__main__":
    main()
