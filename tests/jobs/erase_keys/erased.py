"""A key that was erased from a topic, as the table of erasures has it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ebbtide.columns.erased_keys import named_keys
from ebbtide.iceberg.erasures import append_erasures
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import LOGGED, KeyRow
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure


def note_erased(
    spark: SparkSession,
    name: TopicName,
    key: str,
    at_ms: int,
    partition: int | None = 0,
    tombstone: int | None = None,
) -> None:
    """Write a row as an erasure does once its tombstone is in the log, or if it found no record."""
    erasure = Erasure(run_id="r", now_ms=at_ms, requested_by="ann", reason="asked")
    named = named_keys(secret_of(str(name)), [key.encode()])[key.encode()]
    row = KeyRow.of(named, partition, 0 if partition is None else 1)
    append_erasures(spark, name, erasure, LOGGED, [row._replace(tombstone_offset=tombstone)])


def refused_records(spark: SparkSession, name: TopicName) -> list[tuple[object, ...]]:
    """Return place, reason, key and value of each record in the topic's quarantine."""
    rows = spark.table(name.quarantine_table).orderBy("partition", "offset")
    return [tuple(row) for row in rows.select("offset", "reason", "key", "value").collect()]
