"""`lake.ebbtide.erasures`: what became of each key that was to be erased, by its hash.

A run writes two rows a key and partition: `logged` once its tombstone is in the log, `reported`
with what is left below the tombstone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.schema import ERASURES_TABLE, create_erasures
from ebbtide.log.requests.erase_request import Erasure
from ebbtide.log.settings.names import TopicName

LOGGED, REPORTED = "logged", "reported"
_TIME = pa.timestamp("ms", tz="UTC")
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("run_id", "topic", "status")),
        ("requested_at", _TIME),
        *((name, pa.string()) for name in ("requested_by", "reason", "key_sha256")),
        ("partition", pa.int32()),
        ("found", pa.int64()),
        ("way", pa.string()),
        ("tombstone_offset", pa.int64()),
        ("superseded", pa.int64()),
        ("left", pa.int64()),
        *((name, _TIME) for name in ("horizon", "out_of_table_at", "off_disk_from")),
    ]
)


class KeyRow(NamedTuple):
    """A key's row for a partition; without a partition where no table holds the key."""

    key_sha256: str
    partition: int | None = None
    found: int = 0
    way: str | None = None  # None: a tombstone was its latest record already
    tombstone_offset: int | None = None
    superseded: int | None = None
    left: int | None = None
    horizon: int | None = None
    out_of_table_at: int | None = None
    off_disk_from: int | None = None


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
    table = pa.Table.from_pylist([request | row._asdict() for row in rows], schema=_SCHEMA)
    if table.num_rows:
        create_erasures(spark)
        frame = spark.createDataFrame(table)
        commit(Step.ERASURE_ROWS, frame.writeTo(ERASURES_TABLE).append)


def logged_before(
    spark: SparkSession, name: TopicName, run_id: str
) -> dict[tuple[int, str], KeyRow]:
    """Return the rows that an earlier try of the run has logged, by partition and hash."""
    if not table_exists(spark, ERASURES_TABLE):
        return {}
    is_mine = (F.col("run_id") == run_id) & (F.col("topic") == str(name))
    rows = (
        spark.table(ERASURES_TABLE)
        .where(is_mine & (F.col("status") == LOGGED) & F.col("partition").isNotNull())
        .select("key_sha256", "partition", "found", "way", "tombstone_offset")
        .toArrow()
        .to_pylist()
    )
    return {(row["partition"], row["key_sha256"]): KeyRow(**row) for row in rows}
