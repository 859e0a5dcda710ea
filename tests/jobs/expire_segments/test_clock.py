"""A machine whose clock went back: the run fails by name, and its row is in `runs`."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.own_tables import create_runs
from ebbtide.ledger.own_tables import RUNS
from ebbtide.spark.jvm import iceberg_class
from jobs import expire_segments
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

HOUR_MS = 60 * 60 * 1000


def commit_in_an_hour(spark: SparkSession, name: str) -> None:
    """Let the newest commit be of a clock that is an hour ahead, as before it went back."""
    operations = open_table(spark, name).java.operations()
    parser = iceberg_class(spark, "TableMetadataParser")
    base = operations.current()
    values = json.loads(parser.toJson(base))
    values["last-updated-ms"] += HOUR_MS
    for entries in (values["snapshots"][-1:], values["snapshot-log"][-1:]):
        for entry in entries:
            entry["timestamp-ms"] += HOUR_MS
    operations.commit(base, parser.fromJson(json.dumps(values)))


def test_a_clock_that_went_back_leaves_a_row(bench: Bench, jobs: Jobs) -> None:
    config = {"cleanup.policy": "delete", "retention.bytes": "0"}
    bench.log([[Message("a", "1")], [Message("b", "2")]], config, FIRST_MS)
    ask = ("--topic", str(bench.name), "--now", at(FIRST_MS + DAY_MS).isoformat())
    create_runs(bench.spark)
    for table in (bench.name.state_table, RUNS.in_catalog()):
        commit_in_an_hour(bench.spark, table)
    assert jobs.run(expire_segments, *ask) == ExitCode.TRANSIENT
    row = jobs.last_run()
    assert (row.error_class, row.succeeded) == ("UnavailableError", False)
    assert "the clock went back, or another machine's is ahead" in row.error
    assert jobs.run(expire_segments, *ask) == ExitCode.TRANSIENT
    assert "the clock went back" in jobs.last_run().error
