"""Ingest logs of several codecs and batch sizes, each run in a fresh process, beside two others.

    python -m benchmarks.ingest_segments [--cells none-300,none-1] [--records 2000000,4000000]

`ours` is the stage ingest_segments into a new topic. `kafka` is Kafka's own classes that check and
decode the same files on one thread, and write nothing. `plain` is a Spark job that writes the rows
that ours has written to a table without batches or state. Each has done a small log before. Memory
that does not grow with the log shows in the same cell with more records.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.clean_log.contenders.java import java_tool
from benchmarks.clean_log.contenders.kafka import JARS, JVM_OPTIONS, compiled
from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.clean_log.data.home import BENCH, ROOT, environment, make_home
from benchmarks.ingest_segments.kept import KeptCell, Measured, line
from benchmarks.ingest_segments.logs import Cell, write_log

CELLS = "none-300,none-1,none-10,none-100,none-500,zstd-1,zstd-10,zstd-100,zstd-500"
SMALL_RECORDS = 20_000
READER = Path(__file__).parent / "SegmentReader.java"
RESULTS = ROOT / "benchmarks" / "results" / "ingest_segments"


def run_cell(cell: Cell, records: int, runs: int, home: Path, results: Path) -> None:
    """Write the log, and let each of the three at it in turn."""
    shutil.rmtree(home, ignore_errors=True)
    make_home(home)
    write_log(home / "small", cell, SMALL_RECORDS)
    log_bytes = write_log(home / "large", cell, records)
    kept = KeptCell.begun(results, cell.name, records, log_bytes)
    contenders: dict[str, Callable[[Path], dict[str, Any]]] = {
        "ours": lambda home: in_spark("ours", home),
        "kafka": _kafka,
        "plain": lambda home: in_spark("plain", home),
    }
    for _ in range(runs):
        shutil.rmtree(home / "lake", ignore_errors=True)
        (home / "lake").mkdir()
        for name, run in contenders.items():
            measured = Measured(name, os.getloadavg()[0], **run(home))
            kept.add(measured)
            print(line(kept, measured), flush=True)
    shutil.rmtree(home)


def in_spark(what: str, home: Path) -> dict[str, Any]:
    """Run in_spark.py in a process of its own, and return what it measured."""
    command = [sys.executable, "-m", "benchmarks.ingest_segments.in_spark", what, str(home)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{what} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _kafka(home: Path) -> dict[str, Any]:
    classpath = f"{compiled(READER)}{os.pathsep}{JARS}/*"
    arguments = [str(home / "small"), str(home / "large")]
    command = [java_tool("java"), *JVM_OPTIONS, "-cp", classpath, READER.stem, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as java:
        assert java.stdin is not None
        assert java.stdout is not None
        java.stdout.readline()
        with Meter(java.pid) as meter:
            java.stdin.write("\n")
            java.stdin.flush()
            java.stdout.readline()
        java.stdin.close()
    return {"start_s": 0.0, **meter.usage._asdict(), "steps": {}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default=CELLS, help="<codec>-<records a batch>, comma-separated")
    parser.add_argument("--records", default="2000000,4000000", help="sizes, comma-separated")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--home", type=Path, default=BENCH, help="for logs and lakes")
    args = parser.parse_args()
    for name, records in product(args.cells.split(","), map(int, args.records.split(","))):
        run_cell(Cell.parse(name), records, args.runs, args.home / "ingest", args.results)


if __name__ == "__main__":
    main()
