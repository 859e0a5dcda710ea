"""A key that was erased from a topic, as the table of erasures has it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ebbtide.columns.erased_keys import named_keys
from ebbtide.iceberg.erasures import append_erasures
from ebbtide.ledger.erasure_secrets import secret_of
from ebbtide.ledger.own_tables import LOGGED, KeyRow
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import Erasure


def note_erased(spark: SparkSession, name: TopicName, key: str, at_ms: int) -> None:
    """Write a row as an erasure does once its tombstone is in the log."""
    erasure = Erasure(run_id="r", now_ms=at_ms, requested_by="ann", reason="asked")
    named = named_keys(secret_of(str(name)), [key.encode()])[key.encode()]
    append_erasures(spark, name, erasure, LOGGED, [KeyRow.of(named, 0, 1)])
