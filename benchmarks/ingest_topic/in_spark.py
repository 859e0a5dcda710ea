"""ingest_topic on the small topic, to warm up, and then on the large one.

    python -m benchmarks.ingest_topic.in_spark RECORDS

The last line is JSON. The broker is the connection `main`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from benchmarks.clean_log.contenders.meter import Meter
from ebbtide.jobs.ingest_topic import LiveSource, ingest_topic
from ebbtide.settings.names import TopicName


def take(spark: SparkSession, topic: str) -> int:
    """The stage into a new topic; how many records it has appended."""
    source = LiveSource("main", datetime.now(UTC))
    outcome = ingest_topic(spark, TopicName("ours", topic), source)
    if outcome.error is not None:
        raise outcome.error
    return sum(numbers["records"] for numbers in outcome.partitions.values())


def main() -> None:
    records = int(sys.argv[1])
    started = time.perf_counter()
    spark = SparkSession.builder.appName("ingest_topic").getOrCreate()
    take(spark, "small")
    start_s = time.perf_counter() - started
    with Meter(os.getpid()) as meter:
        taken = take(spark, "large")
    assert taken == records, f"expected {records} records, found {taken}"
    print(json.dumps({"start_s": start_s, **meter.usage._asdict(), "steps": {}}))


if __name__ == "__main__":
    main()
