"""Thirty nights of one topic: what piles up, and what it costs who reads the live rows.

    python -m benchmarks.clean_log.thirty_nights [--records 1000000] [--percent 5] [--nights 30]

Each night appends a dirty part and runs what nightly_retention runs on a compacted topic. Snapshots
expire at once, as if the nights were further apart than their greatest age.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.clean_log.data.cells import FIRST_TIMESTAMP_MS, TOMBSTONES
from benchmarks.clean_log.data.home import BENCH, environment, make_home
from benchmarks.clean_log.data.log_files import SEED, Part, append_part
from benchmarks.clean_log.data.tables import NAME, SETTINGS
from benchmarks.clean_log.report.kept import now
from benchmarks.clean_log.report.nights import KeptNights, Night, nights_table
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.jobs.mark_tombstones import execute_mark, plan_mark
from ebbtide.jobs.quarantine import RunOf

BATCH_RECORDS = 100
DAY_MS = 86_400_000
READS = 5
FRESH = "lake.bench.fresh"
EXPIRE_AT_ONCE = {"history.expire.max-snapshot-age-ms": "1"}


class Nights:
    """A topic of one partition that grows by a dirty part each night."""

    def __init__(self, spark: SparkSession, home: Path, keys: int) -> None:
        self._spark = spark
        self._home = home
        self._keys = keys
        self._rng = np.random.default_rng(SEED)
        self._end = 0

    def run(self, number: int, dirty_records: int) -> Night:
        """Night 0 brings every key once; each later one `dirty_records` of them again."""
        keys = self._rng.integers(0, self._keys, dirty_records) if number else np.arange(self._keys)
        part = Part(self._end, keys, TOMBSTONES if number else 0, BATCH_RECORDS)
        append_part(self._home / "log", part, self._rng)
        self._end += len(keys)
        started = time.perf_counter()
        self._maintain(FIRST_TIMESTAMP_MS + (number + 1) * DAY_MS)
        return self._seen(number, time.perf_counter() - started)

    def _maintain(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        source = Source.of_uri(
            str(self._home / "log"), now, settings={**SETTINGS, **EXPIRE_AT_ONCE}
        )
        ingest_segments(self._spark, NAME, source)
        execute_mark(plan_mark(load(self._spark, NAME)), RunOf("benchmark", now))
        execute_clean(plan_clean(load(self._spark, NAME), now_ms))
        execute_expire_snapshots(load(self._spark, NAME))

    def _seen(self, number: int, seconds: float) -> Night:
        records, batches = NAME.records_table, NAME.batches_table
        disk = [path for path in (self._home / "lake" / "warehouse").rglob("*") if path.is_file()]
        return Night(
            night=number,
            seconds=seconds,
            live_rows=self._ask(f"SELECT count(*) FROM {records}"),
            deleted_rows_in_files=self._ask(
                f"SELECT coalesce(sum(record_count), 0) FROM {records}.delete_files"
            ),
            data_files=self._ask(f"SELECT count(*) FROM {records}.data_files"),
            deletion_vectors=self._ask(f"SELECT count(*) FROM {records}.delete_files"),
            manifests=self._ask(f"SELECT count(*) FROM {records}.manifests"),
            batch_rows=self._ask(f"SELECT count(*) FROM {batches}"),
            batch_data_files=self._ask(f"SELECT count(*) FROM {batches}.data_files"),
            batch_manifests=self._ask(f"SELECT count(*) FROM {batches}.manifests"),
            metadata_files_on_disk=sum("metadata" in path.parts for path in disk),
            files_on_disk=len(disk),
            bytes_on_disk=sum(path.stat().st_size for path in disk),
        )

    def _ask(self, query: str) -> int:
        row = self._spark.sql(query).first()
        assert row is not None
        return int(row[0])


def read_seconds(spark: SparkSession) -> dict[str, float]:
    """A full read of the live rows, and of the same rows freshly written; medians, interleaved."""
    # Its own shuffle gathers each (partition, segment) into one file.
    spark.sql(
        f"CREATE OR REPLACE TABLE {FRESH} USING iceberg PARTITIONED BY (`partition`, segment) "
        "TBLPROPERTIES ('format-version' = '3', 'write.distribution-mode' = 'hash') "
        f"AS SELECT * FROM {NAME.records_table}"
    )
    seconds: dict[str, list[float]] = {"kept": [], "fresh": []}
    for number in range(READS + 1):
        for name, table in (("kept", NAME.records_table), ("fresh", FRESH)):
            started = time.perf_counter()
            spark.table(table).write.format("noop").mode("overwrite").save()
            if number:  # the first read warms up
                seconds[name].append(time.perf_counter() - started)
    return {name: median(taken) for name, taken in seconds.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--percent", type=float, default=5)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--results", type=Path, default=BENCH / "results" / "nights")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    home = BENCH / "thirty-nights"
    shutil.rmtree(home, ignore_errors=True)
    make_home(home)
    (home / "lake").mkdir()
    os.environ.update(environment(home))
    spark = SparkSession.builder.appName("thirty nights").getOrCreate()
    topic = Nights(spark, home, args.records)
    seen = []
    for number in range(args.nights + 1):
        seen.append(topic.run(number, round(args.records * args.percent / 100)))
        print(f"night {number}: {seen[-1].seconds:.0f} s", flush=True)
    kept = KeptNights(args.records, args.percent, now(), seen, read_seconds(spark))
    kept.write(args.results)
    print(nights_table(kept))


if __name__ == "__main__":
    main()
