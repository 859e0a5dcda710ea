"""A lake of many topics whose numbers lie in `runs` alone, made in seconds."""

from __future__ import annotations

import sqlite3

from ebbtide.iceberg.own_tables import create_own
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.topic_summary import TopicSummary
from tests.lake_sandbox import LakeSandbox, state_of

STAGES = ("mark_tombstones", "clean_log", "expire_segments", "delete_records", "expire_snapshots")


def make_topics(lake: LakeSandbox, topics: int, partitions: int) -> None:
    """Make topics `log.t0` on: all lie on the tables of the first, as nobody opens them."""
    lake.topic("log.t0", {partition: state_of() for partition in range(partitions)})
    with sqlite3.connect(lake.home / "lake" / "catalog.db") as catalog:
        columns = [row[1] for row in catalog.execute("PRAGMA table_info(iceberg_tables)")]
        copied = ", ".join("'t' || n" if name == "table_name" else name for name in columns)
        catalog.execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
            f"WHERE n < {topics - 1}) INSERT INTO iceberg_tables ({', '.join(columns)}) "
            f"SELECT {copied} FROM iceberg_tables, numbers WHERE table_name = 't0' "
            "AND (iceberg_type IS NULL OR iceberg_type = 'TABLE')"
        )


def fill_nights(lake: LakeSandbox, topics: int, partitions: int, nights: int) -> None:
    """Write rows of all stages of the last nights, a file a day as compaction leaves them.

    Results are as large as those of so many partitions.
    """
    summary = TopicSummary(
        cleanup_policy="compact,delete",
        is_enabled=True,
        partitions=partitions,
        records=1_234_567,
        closed_records=1_000_000,
        dirty_records=123_456,
        file_bytes=987_654_321,
        next_horizon_ms=1_790_000_000_000,
        oldest_event_ms=1_760_000_000_000,
        waiting=1000,
        low_watermark_lag=17,
    ).to_json()
    create_own(lake.session, RUNS)
    stages = ", ".join(f"'{stage}'" for stage in STAGES)
    lake.session.sql(
        f"""
        INSERT INTO {RUNS.in_catalog()} (run_id, dag, task, job, topic, started, ended, now, status,
            is_transient, result, rows_removed, files_removed, bytes_removed, snapshot_ids, summary)
        SELECT date_format(night, "'scheduled__'yyyy-MM-dd"), 'nightly_retention', job, job,
            concat('log.t', topic), night, night + INTERVAL 5 SECONDS, night,
            if(topic % 100 = 7 AND job = 'clean_log', 'failed', 'succeeded'), false,
            concat('{{"version": 2, "partitions": {{}}, "topic": {{"note": "',
                repeat(sha2(concat(topic, job), 256), {partitions * 4}), '"}}}}'),
            topic, 0L, topic * 100L, array(1L), '{summary}'
        FROM (
            SELECT timestamp_seconds(unix_timestamp(current_date()) + 7200 - id * 86400) night
            FROM range(1, {nights + 1})
        ) CROSS JOIN (SELECT id topic FROM range({topics}))
        LATERAL VIEW explode(array({stages})) AS job
        """
    )
