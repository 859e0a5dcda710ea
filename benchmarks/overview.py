"""CPU and bytes of the overview of 500 topics: its first look, the next, and after a new row.

    python -m benchmarks.overview [--topics 500] [--partitions 50] [--nights 35]

Each look is a request through the views and templates, without Airflow's own part. Shown are
medians of five; `first` is what an API server does once after its start, when it reads the rows of
all nights. What was measured is kept in benchmarks/results/overview.json. The exit code is 1 where
a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time
from unittest.mock import patch

from ebbtide.orchestration.pages.overview import Histories
from tests.lake_sandbox import ROOT, LakeSandbox
from tests.orchestration.pages.many_topics import fill_nights, make_topics
from tests.orchestration.pages.test_size_of_overview import page

RESULTS = ROOT / "benchmarks" / "results" / "overview.json"
REPEATS = 5
MAX_CPU_MS, MAX_BYTES = 300, 1_000_000  # of a look, but for the first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("topics", 500), ("partitions", 50), ("nights", 35)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        lake = LakeSandbox(Path(directory) / "home")
        with patch.dict(os.environ, lake.environment()):
            make_topics(lake, args.topics, args.partitions)
            fill_nights(lake, args.topics, args.partitions, args.nights)
            measured = _measure(lake)
    kept = {**vars(args), **measured, "at": datetime.now(UTC).isoformat(timespec="minutes")}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps(kept))
    is_held = measured["next_ms"] <= MAX_CPU_MS and measured["bytes"] <= MAX_BYTES
    return 0 if is_held else 1


def _measure(lake: LakeSandbox) -> dict[str, float]:
    def with_new_row() -> None:
        page(histories)

    page(Histories())  # imports
    first = _median(lambda: page(Histories()))
    histories = Histories()
    page(histories)
    following = _median(lambda: page(histories))
    rows = []
    for number in range(REPEATS):
        lake.run(f"log.t{number}", "clean_log", now=datetime.now(UTC))
        rows.append(_cpu_ms(with_new_row))
    return {
        "first_ms": first,
        "next_ms": following,
        "after_a_row_ms": round(median(rows), 1),
        "bytes": len(page(histories).encode()),
    }


def _median(look: Callable[[], object]) -> float:
    return round(median(_cpu_ms(look) for _ in range(REPEATS)), 1)


def _cpu_ms(look: Callable[[], object]) -> float:
    began = process_time()
    look()
    return 1000 * (process_time() - began)


if __name__ == "__main__":
    sys.exit(main())
