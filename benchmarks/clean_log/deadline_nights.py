"""Bytes written in thirty nights with and without a deadline of erasure.

    python -m benchmarks.clean_log.deadline_nights [--records 1000000] [--percent 5] [--days 14]

Each night appends a dirty part with tombstones, as in thirty_nights. By default each night has a
round, so that the deadline forces rewrites alone; with --ratio 0.5 it forces rounds too. The bound
is 25 % more bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.clean_log.data.cells import FIRST_TIMESTAMP_MS, TOMBSTONES
from benchmarks.clean_log.data.home import BENCH, environment, make_home
from benchmarks.clean_log.data.log_files import SEED, Part, append_part
from benchmarks.clean_log.data.tables import NAME, SETTINGS
from benchmarks.clean_log.thirty_nights import BATCH_RECORDS, DAY_MS, EXPIRE_AT_ONCE
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf
from ebbtide.orchestration.erasures import overdue_erasures
from ebbtide.settings.config import DEADLINE_MS, UNDO_MS

MOST = 1.25
RATIO = "kafka.min.cleanable.dirty.ratio"


class WrittenBytes:
    """The bytes that commits have added to both tables."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._seen: dict[str, int] = {}
        self.total = 0

    def count(self) -> None:
        """Add the commits since the last call. Snapshots that have expired are not counted."""
        for name in (NAME.records_table, NAME.batches_table):
            table, seen = open_table(self._spark, name), self._seen.get(name, 0)
            for snapshot in table.metadata.snapshots.values():
                if snapshot.sequence_number > seen:
                    self.total += int(snapshot.summary.get("added-files-size", 0))
        self.skip()

    def skip(self) -> None:
        """Leave out the commits since the last call: expire_snapshots reports its own bytes."""
        for name in (NAME.records_table, NAME.batches_table):
            newest = open_table(self._spark, name).metadata.last_sequence_number
            self._seen[name] = newest


def run(records: int, percent: float, nights: int, ratio: float, days: int) -> dict[str, int]:
    """Run the nights in a new lake; return the bytes written, and count nights that are late."""
    home = BENCH / f"deadline-nights-{days}"
    shutil.rmtree(home, ignore_errors=True)
    make_home(home)
    (home / "lake").mkdir()
    os.environ.update(environment(home))
    spark = SparkSession.builder.appName("deadline nights").getOrCreate()
    settings = {**SETTINGS, **EXPIRE_AT_ONCE, RATIO: str(ratio), UNDO_MS: "0"}
    if days:
        settings[DEADLINE_MS] = str(days * DAY_MS)
    rng, end, written, late = np.random.default_rng(SEED), 0, WrittenBytes(spark), 0
    for night in range(nights + 1):
        keys = rng.integers(0, records, round(records * percent / 100)) if night else None
        keys = np.arange(records) if keys is None else keys
        part = Part(end, keys, TOMBSTONES if night else 0, BATCH_RECORDS)
        append_part(home / "log", part, rng)
        end += len(keys)
        now_ms = FIRST_TIMESTAMP_MS + (night + 1) * DAY_MS
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        ingest_segments(spark, NAME, Source.of_uri(str(home / "log"), now, settings=settings))
        execute_mark(plan_mark(load(spark, NAME)), RunOf("benchmark", now))
        execute_clean(plan_clean(load(spark, NAME), now_ms))
        written.count()
        outcome = execute_expire_snapshots(load(spark, NAME), now_ms=now_ms)
        written.skip()
        written.total += outcome.topic.get("bytes_written", 0)
        late += overdue_erasures(load(spark, NAME), now_ms) is not None
        print(f"night {night}: {written.total:,} bytes written", file=sys.stderr, flush=True)
    return {"bytes_written": written.total, "late_nights": late}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--percent", type=float, default=5)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--ratio", type=float, default=0.001)
    parser.add_argument("--days", type=int, default=14, help="the deadline")
    parser.add_argument("--only", type=int, help="run with this deadline alone; 0: without one")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.only is not None:
        print(json.dumps(run(args.records, args.percent, args.nights, args.ratio, args.only)))
        return 0
    given = [
        f"--{name}={getattr(args, name)}" for name in ("records", "percent", "nights", "ratio")
    ]
    found = []
    for days in (0, args.days):  # a process each, since a catalog belongs to its Spark session
        command = [sys.executable, "-m", "benchmarks.clean_log.deadline_nights", *given]
        done = subprocess.run(
            [*command, f"--only={days}"], stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    without, with_deadline = found
    ratio = with_deadline["bytes_written"] / without["bytes_written"]
    print(
        f"without: {without['bytes_written']:,} bytes; a deadline of {args.days} days: "
        f"{with_deadline['bytes_written']:,} bytes, {ratio:.2f} times, at most {MOST}; "
        f"{with_deadline['late_nights']} nights with overdue deletes"
    )
    return 0 if ratio <= MOST and not with_deadline["late_nights"] else 1


if __name__ == "__main__":
    sys.exit(main())
