"""What Spark does in one run: `ours` ingests the log, `plain` writes the same rows.

    python -m benchmarks.ingest_segments.in_spark ours|plain HOME

HOME holds `small`, which warms up, and `large`. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.ingest_segments.logs import TOPIC
from ebbtide.iceberg import commits
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.ingest_segments.stage import Source, ingest_segments

NOW = datetime(2026, 12, 1, tzinfo=UTC)
OURS, PLAIN = "ours", "plain"


def ingest(spark: SparkSession, log: Path) -> dict[str, float]:
    """The stage into a new topic; seconds from each commit point to the next."""
    reached = [("begin", time.perf_counter())]
    commits.before_commit = lambda step: reached.append((step, time.perf_counter()))
    ingest_segments(spark, TopicName(log.name, TOPIC), Source.of_uri(str(log), NOW))
    reached.append(("end", time.perf_counter()))
    spans: dict[str, float] = {}
    for (step, since), (following, until) in pairwise(reached):
        name = f"{step} to {following}"
        spans[name] = spans.get(name, 0.0) + until - since
    return spans


def write_plainly(spark: SparkSession, log: Path) -> dict[str, float]:
    """The rows of the topic that an ingest has made, read and written to a plain table."""
    spark.sql(
        f"CREATE TABLE lake.plain.{log.name} USING iceberg PARTITIONED BY (`partition`, segment) "
        "TBLPROPERTIES ('format-version' = '3') "
        f"AS SELECT * FROM {TopicName(log.name, TOPIC).records_table}"
    )
    return {}


def main() -> None:
    what, home = sys.argv[1], Path(sys.argv[2])
    started = time.perf_counter()
    spark = SparkSession.builder.appName(what).getOrCreate()
    if what == PLAIN:
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.plain")
    work = ingest if what == OURS else write_plainly
    work(spark, home / "small")
    start_s = time.perf_counter() - started
    with Meter(os.getpid()) as meter:
        steps = work(spark, home / "large")
    print(json.dumps({"start_s": start_s, **meter.usage._asdict(), "steps": steps}))


if __name__ == "__main__":
    main()
