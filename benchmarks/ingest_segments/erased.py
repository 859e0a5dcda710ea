"""CPU time of an ingest into a topic with a million erased keys, by that of one without any.

    python -m benchmarks.ingest_segments.erased [--cell none-300] [--records 4000000] [--runs 3]

The keys were erased before the log was written, as on most nights, or after it, as if an old log is
ingested again: then every record's key is looked up. No record has an erased key.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections import defaultdict

from benchmarks.clean_log.data.home import BENCH, make_home
from benchmarks.ingest_segments.__main__ import in_spark
from benchmarks.ingest_segments.in_spark import AFTER, ANOTHER, BEFORE, ERASED_KEYS
from benchmarks.ingest_segments.logs import Cell, write_log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Cell.parse, default=Cell.parse("none-300"))
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    home = BENCH / "erased"
    shutil.rmtree(home, ignore_errors=True)
    make_home(home)
    write_log(home / "small", args.cell, 20_000)
    write_log(home / "large", args.cell, args.records)
    cpu_s = defaultdict[str, list[float]](list)
    for _ in range(args.runs):
        for what in (ANOTHER, BEFORE, AFTER):
            shutil.rmtree(home / "lake", ignore_errors=True)
            (home / "lake").mkdir()
            cpu_s[what].append(in_spark(what, home)["cpu_s"])
            print(f"{what}: {cpu_s[what][-1]:.1f} CPU s", flush=True)
    medians = {what: statistics.median(each) for what, each in cpu_s.items()}
    print(f"{args.records:,} records, {ERASED_KEYS:,} erased keys; CPU time by that without any:")
    for what in (BEFORE, AFTER):
        print(f"erased {what} the log: {medians[what] / medians[ANOTHER]:.3f}")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
