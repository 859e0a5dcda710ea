"""What other tools do to the same tables: Iceberg's own maintenance, as Spark runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName
from tests.waiting import wait_for_clock

REWRITE_ALL = "map('rewrite-all', 'true')"


def tables_of(name: TopicName) -> tuple[str, str]:
    return name.records_table, name.batches_table


def rewrite_files(spark: SparkSession, tables: Sequence[str]) -> None:
    """Write every data file anew."""
    for table in tables:
        _call(spark, table, f"rewrite_data_files(table => '{table}', options => {REWRITE_ALL})")


def rewrite_manifests(spark: SparkSession, tables: Sequence[str]) -> None:
    for table in tables:
        _call(spark, table, f"rewrite_manifests('{table}')")


def expire_all(spark: SparkSession, tables: Sequence[str]) -> None:
    """Expire every snapshot but the newest, and every tag without an age of its own."""
    for table in tables:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')")
        wait_for_clock(time.time_ns() // 1_000_000 + 1)
        now = datetime.now(UTC)
        _call(
            spark,
            table,
            f"expire_snapshots(table => '{table}', older_than => TIMESTAMP "
            f"'{now:%Y-%m-%d %H:%M:%S.%f}', retain_last => 1)",
        )
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('history.expire.max-ref-age-ms')")


def _call(spark: SparkSession, table: str, procedure: str) -> None:
    """Call a procedure of the table's catalog."""
    spark.sql(f"CALL {table.partition('.')[0]}.system.{procedure}")
