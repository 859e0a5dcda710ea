"""The table of erasures: who erased which keys, by names that only the topic's secret explains."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.own_tables import create_own, own_schema
from ebbtide.ledger.erasure_secrets import Secret
from ebbtide.ledger.own_tables import ERASURES, LOGGED, KeyRow, NamedKey
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure


def append_erasures(
    spark: SparkSession, name: TopicName, erasure: Erasure, status: str, rows: Iterable[KeyRow]
) -> None:
    """Append one row per key to the table of erasures."""
    request = {
        "run_id": erasure.run_id,
        "topic": str(name),
        "status": status,
        "requested_at": erasure.now_ms,
        "requested_by": erasure.requested_by,
        "reason": erasure.reason,
    }
    cells, schema = [request | row._asdict() for row in rows], own_schema(ERASURES, "ms")
    table = pa.Table.from_pylist(cells, schema=schema)
    if table.num_rows:
        create_own(spark, ERASURES)
        frame = spark.createDataFrame(table)
        commit(Step.ERASURE_ROWS, frame.writeTo(ERASURES.in_catalog()).append)


def logged_before(
    spark: SparkSession, name: TopicName, run_id: str
) -> dict[tuple[int, str], KeyRow]:
    """Return the rows that an earlier attempt of the run has written, by partition and hash."""
    if not table_exists(spark, ERASURES.in_catalog()):
        return {}
    is_mine = (F.col("run_id") == run_id) & (F.col("topic") == str(name))
    create_own(spark, ERASURES)
    rows = (
        spark.table(ERASURES.in_catalog())
        .where(is_mine & (F.col("status") == LOGGED))
        .where(F.col("partition").isNotNull() & F.col("key_hmac").isNotNull())
        .select(*NamedKey._fields, "partition", "found", "way", "tombstone_offset")
        .toArrow()
        .to_pylist()
    )
    return {(row["partition"], row["key_hmac"]): KeyRow(**row) for row in rows}


def named_by(secret: Secret, key: Column) -> Column:
    """Return the HMAC of a key. The text of an SQL function would show the secret."""

    def name(key: bytearray | None) -> str | None:
        return None if key is None else secret.name(bytes(key))

    return F.udf(name, "string")(key)


def erasures_on(spark: SparkSession, name: TopicName) -> DataFrame | None:
    """Return the topic's rows with a column `name`, or None if no key was ever erased."""
    if not table_exists(spark, ERASURES.in_catalog()):
        return None
    rows = spark.table(ERASURES.in_catalog()).where(F.col("topic") == str(name))
    sha256 = F.col("key_sha256")
    known = F.coalesce("key_hmac", sha256) if "key_hmac" in rows.columns else sha256
    return rows.withColumn("name", known)


def tombstones_of_erasures(spark: SparkSession, name: TopicName) -> dict[tuple[int, str], int]:
    """Return the offset of each erased key's last tombstone, by partition and the key's name."""
    rows = erasures_on(spark, name)
    if rows is None:
        return {}
    last = F.max("tombstone_offset").alias("offset")
    found = rows.where("tombstone_offset IS NOT NULL").groupBy("partition", "name").agg(last)
    return {(row["partition"], row["name"]): row["offset"] for row in found.collect()}
