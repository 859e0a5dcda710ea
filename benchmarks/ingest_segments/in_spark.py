"""What Spark does in one run: `ours` ingests the log, `plain` writes the same rows.

    python -m benchmarks.ingest_segments.in_spark ours|before|after|another|plain HOME

HOME holds `small`, which warms up, and `large`. `before` and `after` ingest like `ours` into a
topic of which ERASED_KEYS keys were erased before or after the log was written, none of them in the
log; `another` ingests next to a topic of which they were. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.clean_log.contenders.meter import Meter
from benchmarks.ingest_segments.kept import STEPS
from benchmarks.ingest_segments.logs import FIRST_MS, TOPIC
from ebbtide.columns.erased_keys import named_keys
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.erasures import append_erasures
from ebbtide.jobs.ingest_segments import stage
from ebbtide.jobs.ingest_segments.source import WalkedSlice, walk_slice
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import LOGGED, KeyRow
from ebbtide.moments import to_ms
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure

NOW = datetime(2026, 12, 1, tzinfo=UTC)
OURS, PLAIN = "ours", "plain"
BEFORE, AFTER, ANOTHER = "before", "after", "another"
ERASED_KEYS = 1_000_000
WALK, OTHER = "walk", "other"
# What ends where the job comes to a commit point.
STEP_BEFORE = {
    WALK: "walk",
    Step.INGEST_RECORDS: "records",
    Step.INGEST_BATCHES: "batches",
    Step.INGEST_STATE: "state",
}


def ingest(spark: SparkSession, log: Path) -> dict[str, float]:
    """The stage into a new topic; seconds of each of STEPS, over all slices."""
    steps = dict.fromkeys(STEPS, 0.0)
    since = time.perf_counter()

    def arrive(step: str) -> None:
        nonlocal since
        steps[STEP_BEFORE.get(step, OTHER)] += time.perf_counter() - since
        since = time.perf_counter()

    def walk(*arguments: Any) -> WalkedSlice:
        arrive(OTHER)
        walked = walk_slice(*arguments)
        arrive(WALK)
        return walked

    commits.before_commit = arrive
    stage.walk_slice = walk
    stage.ingest_segments(spark, TopicName(log.name, TOPIC), stage.Source.of_uri(str(log), NOW))
    arrive(OTHER)
    return steps


def erase(spark: SparkSession, name: TopicName, time_ms: int) -> None:
    """Write keys that were erased from a topic to the table of erasures."""
    keys = named_keys(secret_of(str(name)), [b"erased-%09d" % n for n in range(ERASED_KEYS)])
    erasure = Erasure(run_id="r", now_ms=time_ms, requested_by="ann", reason="asked")
    append_erasures(spark, name, erasure, LOGGED, map(KeyRow.of, keys.values()))


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
    work = write_plainly if what == PLAIN else ingest
    work(spark, home / "small")
    if what in (BEFORE, AFTER, ANOTHER):
        name = TopicName(ANOTHER if what == ANOTHER else "large", TOPIC)
        erase(spark, name, FIRST_MS if what == BEFORE else to_ms(NOW))
    start_s = time.perf_counter() - started
    with Meter(os.getpid()) as meter:
        steps = work(spark, home / "large")
    print(json.dumps({"start_s": start_s, **meter.usage._asdict(), "steps": steps}))


if __name__ == "__main__":
    main()
