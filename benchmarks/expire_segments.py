"""Seconds in which expire_segments drops 1 and 64 segments of the same log.

    python -m benchmarks.expire_segments [--segments 80] [--records 10000] [--repeats 5]

Segments leave as metadata, so 64 times the bytes should cost little more. One topic is expired
again and again: after each run both tables go back to the snapshots and the state that they had.
Runs take turns, the first of each warms the JVM up and does not count; shown are medians.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.topics import current_snapshot, load
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.jobs.ingest_segments.stage import Source, ingest_segments
from ebbtide.moments import to_ms
from ebbtide.records.log_directory_writer import BatchFields, Record, write_batch
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import ROOT, LakeSandbox

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NAME = TopicName("measured", "t")
DAY_MS = 24 * 3_600_000
T0 = to_ms(NOW) - 365 * DAY_MS
BATCH_RECORDS = 100
VALUE_BYTES = 200
FEW, MANY = 1, 64


def write_log(directory: Path, segments: int, records: int) -> Path:
    """One partition whose segments are a day of event time apart."""
    values = [random.Random(7).randbytes(VALUE_BYTES) for _ in range(100)]
    (directory / "t-0").mkdir(parents=True)
    for number in range(segments):
        base = number * records
        with (directory / "t-0" / f"{base:020}.log").open("wb") as log:
            for first in range(base, base + records, BATCH_RECORDS):
                offsets = range(first, min(first + BATCH_RECORDS, base + records))
                at_ms = T0 + number * DAY_MS
                rows = [Record(i, at_ms, b"k%d" % i, values[i % len(values)]) for i in offsets]
                log.write(write_batch(BatchFields(), rows))
    return directory


class Topic:
    """The ingested topic, which can go back to how it was."""

    def __init__(self, spark: SparkSession, directory: Path, segments: int) -> None:
        self.spark, self.segments = spark, segments
        settings = {"kafka.cleanup.policy": "delete", "ebbtide.max.delete.ratio": "1"}
        source = Source.of_uri(str(directory), NOW, settings=settings)
        ingest_segments(spark, NAME, source)
        tables = (NAME.records_table, NAME.batches_table)
        self.snapshots = {table: current_snapshot(spark, table) for table in tables}
        self.properties = load(spark, NAME).properties

    def expire(self, dropped: int) -> tuple[float, JobOutcome]:
        """Drop that many segments; the seconds of it, planning included."""
        limit_ms = (self.segments - dropped) * DAY_MS - 1
        self._set({**self.properties, "kafka.retention.max.eventtime.ms": str(limit_ms)})
        start = time.perf_counter()
        outcome = execute_expire(plan_expire(load(self.spark, NAME), to_ms(NOW)))
        seconds = time.perf_counter() - start
        assert outcome.partitions[0]["segments_expired"] == dropped, outcome
        for table, snapshot in self.snapshots.items():
            java_table(self.spark, table).manageSnapshots().rollbackTo(snapshot).commit()
        return seconds, outcome

    def _set(self, properties: Mapping[str, str]) -> None:
        ours = {k: v for k, v in properties.items() if k.startswith(("kafka.", "ebbtide."))}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in ours.items())
        self.spark.sql(f"ALTER TABLE {NAME.records_table} SET TBLPROPERTIES ({listed})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=80)
    parser.add_argument("--records", type=int, default=10_000, help="of each segment")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = str(ROOT / "conf" / "python")
    with tempfile.TemporaryDirectory() as temporary:
        sandbox = LakeSandbox(Path(temporary) / "home")
        directory = write_log(Path(temporary) / "log", args.segments, args.records)
        topic = Topic(sandbox.session, directory, args.segments)
        load_before = os.getloadavg()[0]
        taken: dict[int, list[float]] = {FEW: [], MANY: []}
        bytes_removed = {}
        for _ in range(args.repeats + 1):
            for dropped, seconds in taken.items():
                spent, outcome = topic.expire(dropped)
                seconds.append(spent)
                bytes_removed[dropped] = outcome.bytes_removed
    print(f"{args.segments} segments of {args.records} records, load before {load_before:.1f}")
    medians = {dropped: median(seconds[1:]) for dropped, seconds in taken.items()}
    for dropped, seconds in medians.items():
        print(f"{dropped:3} segments {bytes_removed[dropped] / 1e6:8.1f} MB {seconds:7.2f} s")
    bytes_ratio = bytes_removed[MANY] / bytes_removed[FEW]
    print(f"{bytes_ratio:.0f} times the bytes in {medians[MANY] / medians[FEW]:.2f} times the time")


if __name__ == "__main__":
    main()
