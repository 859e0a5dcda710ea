"""Fill `lake.ebbtide.runs` with years of nights, and read it as Airflow's side does.

    python -m benchmarks.scale.runs fill YEARS
    python -m benchmarks.scale.runs read

The last line is JSON, seconds and bytes.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from benchmarks.scale.lake import NIGHT, names
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.manifests import current_files
from ebbtide.iceberg.own_tables import create_runs
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.own_tables import RUNS
from ebbtide.orchestration.deletions import HISTORY

TOPICS = 20
DAYS_A_YEAR = 365
FANOUT = "write.spark.fanout.enabled"
RESULT_BYTES = 1500  # of a topic of some partitions


def main() -> None:
    action, *rest = sys.argv[1:]
    facts = _fill(int(*rest)) if action == "fill" else _read()
    print(json.dumps(facts))


def _fill(years: int) -> dict[str, object]:
    """A row for each stage and topic of each night until yesterday, one file a day."""
    spark = SparkSession.builder.appName("runs").getOrCreate()
    create_runs(spark)
    days, stages = years * DAYS_A_YEAR, ", ".join(f"'{stage}'" for stage in NIGHT)
    # Else a task keeps the files of all its days open, which takes more memory than it has.
    spark.sql(f"ALTER TABLE {RUNS.in_catalog()} SET TBLPROPERTIES ('{FANOUT}' = 'false')")
    spark.sql(
        f"""
        INSERT INTO {RUNS.in_catalog()}
            (run_id, dag, task, job, topic, started, ended, now, status, is_transient, result,
            rows_removed, files_removed, bytes_removed, snapshot_ids)
        SELECT concat('night-', day), 'nightly_retention', job, job, concat('scale.t', topic),
            at, at + INTERVAL 5 SECONDS, at, 'succeeded', false,
            concat('{{"version": 1, "partitions": {{}}, "topic": {{"note": "',
                repeat(sha2(concat(day, job, topic), 256), {RESULT_BYTES // 64}), '"}}}}'),
            day, 0L, day, array(day * 1000 + topic)
        FROM (
            SELECT id AS day, topic, job,
                current_date() - CAST(id + 1 AS INT) + INTERVAL 1 HOUR AS at
            FROM range({days})
            LATERAL VIEW explode(sequence(0, {TOPICS - 1})) AS topic
            LATERAL VIEW explode(array({stages})) AS job
        )
        """
    )
    spark.sql(f"ALTER TABLE {RUNS.in_catalog()} UNSET TBLPROPERTIES ('{FANOUT}')")
    table = open_table(spark, RUNS.in_catalog())
    return {
        "data_files": len(current_files(table)),
        "metadata_bytes": int(table.java.io().newInputFile(table.metadata.file).getLength()),
    }


def _read() -> dict[str, object]:
    """Read the newest night, and one topic's history as the page of a run shows it."""
    clock, facts = datetime.now(UTC), {}
    (topic,) = names(1)
    with open_lake() as lake:
        for name, since in (("night", timedelta(days=1)), ("history", HISTORY)):
            started = time.perf_counter()
            rows = lake.runs(clock - since, topic=topic)
            facts |= {f"{name}_s": time.perf_counter() - started, f"{name}_rows": len(rows)}
    return facts


if __name__ == "__main__":
    main()
