"""Quarantine records that the log must not hold: unmarked null values (KIP-87 forbids them).

Order: copy to the quarantine table, move the state so that they may be missing, delete from the
log. Their batch rows stay as they are, as for single expired records.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import java_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.schema import create_quarantine
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, current_snapshot
from ebbtide.log.state.topic_state import REMOVING, to_properties

UNMARKED_NULL_VALUE = "unmarked_null_value"
_PLACE = ["partition", "offset"]

log = logging.getLogger(__name__)


class RunOf(NamedTuple):
    """A quarantined record's columns about the run that took it out."""

    id: str
    now: datetime


def quarantine_note(count: int, table: str) -> str:
    """Return the note for the log and the result about records that go to quarantine."""
    return (
        f"{count} records have a null value that nothing marks as a tombstone, which "
        f"ebbtide.tombstone.explicit=true forbids: they go to {table}"
    )


def take_to_quarantine(topic: Topic, records: pa.Table, snapshot: int, run: RunOf) -> list[int]:
    """Copy the records found, as of a snapshot, and let the log miss them; the snapshot of it.

    What a killed run has copied is not copied again.
    """
    spark, name = topic.spark, topic.name
    log.warning("%s", quarantine_note(records.num_rows, name.quarantine_table))
    if not table_exists(spark, name.quarantine_table):
        commit(Step.QUARANTINE_TABLE, lambda: create_quarantine(spark, name))
    table_id = str(java_table(spark, name.records_table).uuid())
    missing = _not_held(topic, records, table_id)
    if missing.num_rows:
        columns: dict[str, Any] = {
            "reason": UNMARKED_NULL_VALUE,
            "run_id": run.id,
            "quarantined_at": run.now,
            "table_id": table_id,
        }
        rows = _records(topic, missing, snapshot).withColumns(
            {column: F.lit(value) for column, value in columns.items()}
        )
        rows = rows.select(spark.table(name.quarantine_table).columns)
        commit(Step.QUARANTINE_RECORDS, rows.writeTo(name.quarantine_table).append)
    compare_and_set(topic, Step.QUARANTINE_STATE, lambda current: _may_miss(current, records))
    committed = current_snapshot(spark, name.quarantine_table)
    return [committed] if missing.num_rows and committed is not None else []


def _not_held(topic: Topic, records: pa.Table, table_id: str) -> pa.Table:
    held = (
        topic.spark.table(topic.name.quarantine_table)
        .where(F.col("table_id") == table_id)
        .where(F.col("offset") >= pc.min(records["offset"]).as_py())
        .select(_PLACE)
        .toArrow()
        .cast(records.select(_PLACE).schema)
    )
    return records.select(_PLACE).join(held, _PLACE, join_type="left anti")


def _records(topic: Topic, places: pa.Table, snapshot: int) -> DataFrame:
    """Return the records at these places, from the snapshot."""
    table = topic.name.records_table
    first, last = pc.min(places["offset"]).as_py(), pc.max(places["offset"]).as_py()
    return (
        topic.spark.sql(f"SELECT * FROM {table} VERSION AS OF {snapshot}")
        .where(F.col("value").isNull() & F.col("offset").between(first, last))
        .join(topic.spark.createDataFrame(places), _PLACE, how="left_semi")
    )


def _may_miss(current: Topic, records: pa.Table) -> PropertyChanges:
    """Return the state changes by which these records may be missing from the log."""
    changes: dict[str, str | None] = {REMOVING: "true"}
    for row in records.group_by("partition").aggregate([("offset", "max")]).to_pylist():
        state = current.partitions[row["partition"]]
        end = max(state.expired_end_offset, row["offset_max"] + 1)
        changes |= to_properties(row["partition"], state.moved(expired_end_offset=end))
    return changes
