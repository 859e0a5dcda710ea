"""Write and read `lake.ebbtide.erasures`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.own_tables import arrow_schema, create_own
from ebbtide.log.erasures import ERASURES, LOGGED, KeyRow
from ebbtide.log.requests.erase_request import Erasure
from ebbtide.log.settings.names import TopicName


def hash_of(key: bytes) -> str:
    """Hash a key: the hash stands for a key that must not be kept itself."""
    return hashlib.sha256(key).hexdigest()


def append_erasures(
    spark: SparkSession, name: TopicName, erasure: Erasure, status: str, rows: Iterable[KeyRow]
) -> None:
    """Write a row for each."""
    request = {
        "run_id": erasure.run_id,
        "topic": str(name),
        "status": status,
        "requested_at": erasure.now_ms,
        "requested_by": erasure.requested_by,
        "reason": erasure.reason,
    }
    cells, schema = [request | row._asdict() for row in rows], arrow_schema(ERASURES, "ms")
    table = pa.Table.from_pylist(cells, schema=schema)
    if table.num_rows:
        create_own(spark, ERASURES)
        frame = spark.createDataFrame(table)
        commit(Step.ERASURE_ROWS, frame.writeTo(ERASURES.in_catalog()).append)


def logged_before(
    spark: SparkSession, name: TopicName, run_id: str
) -> dict[tuple[int, str], KeyRow]:
    """Return the rows that an earlier try of the run has logged, by partition and hash."""
    if not table_exists(spark, ERASURES.in_catalog()):
        return {}
    is_mine = (F.col("run_id") == run_id) & (F.col("topic") == str(name))
    rows = (
        spark.table(ERASURES.in_catalog())
        .where(is_mine & (F.col("status") == LOGGED) & F.col("partition").isNotNull())
        .select("key_sha256", "partition", "found", "way", "tombstone_offset")
        .toArrow()
        .to_pylist()
    )
    return {(row["partition"], row["key_sha256"]): KeyRow(**row) for row in rows}
