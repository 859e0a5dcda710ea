"""CPU time of an ingest into a topic with a million erased keys, next to one without any.

    python -m benchmarks.ingest_segments.erased [--cell none-300] [--records 4000000] [--runs 3]

No record of the log has an erased key: what is measured is that every record is looked at.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections import defaultdict

from benchmarks.clean_log.data.home import BENCH, make_home
from benchmarks.ingest_segments.__main__ import in_spark
from benchmarks.ingest_segments.in_spark import ERASED, ERASED_KEYS, OURS
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
        for what in (OURS, ERASED):
            shutil.rmtree(home / "lake", ignore_errors=True)
            (home / "lake").mkdir()
            cpu_s[what].append(in_spark(what, home)["cpu_s"])
            print(f"{what}: {cpu_s[what][-1]:.1f} CPU s", flush=True)
    ours, erased = (statistics.median(cpu_s[what]) for what in (OURS, ERASED))
    print(
        f"{args.records:,} records, {ERASED_KEYS:,} erased keys: {erased / ours:.3f} of the "
        "CPU time"
    )
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
