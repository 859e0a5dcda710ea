"""Quarantine records that the log must not have.

These are unmarked null values (KIP-87 forbids them), and records that an ingest refused because
their key was erased after they were written.

Order: copy the records to the quarantine table, record in the state that the log may lack them,
remove them from the log. Batch rows do not change, as for single expired records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.columns.erased_keys import ERASED_KEY
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.schema import create_quarantine
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, snapshot_after
from ebbtide.state.topic_state import REMOVING, to_properties

UNMARKED_NULL_VALUE = "unmarked_null_value"
_PLACE = ["partition", "offset"]

log = logging.getLogger(__name__)


class RunOf(NamedTuple):
    """The run that quarantines records, for their columns."""

    id: str
    now: datetime


def quarantine_note(count: int, refused: int, table: str) -> str:
    """Return the note about quarantined records, for the log and the result.

    Of `count` records, `refused` have an erased key.
    """
    notes = []
    if count > refused:
        notes.append(
            f"{count - refused} records have a null value but no tombstone mark, which "
            f"ebbtide.tombstone.explicit=true forbids: they are moved to {table}"
        )
    if refused:
        notes.append(
            f"{refused} records have a key that was erased after they were written. They were "
            f"ingested without key and value; their offsets are moved to {table}"
        )
    return "; ".join(notes)


class Forbidden(NamedTuple):
    """Records that the log must not have."""

    records: DataFrame  # with all columns
    total: int
    refused: int  # how many of them have an erased key
    last_offsets: Mapping[int, int]  # the highest offset of a record, by partition


def take_to_quarantine(topic: Topic, forbidden: Forbidden, run: RunOf) -> list[int]:
    """Copy the records to the quarantine, and record that the log may lack them.

    Return the ids of the quarantine's new snapshots; there is none if all were copied before.
    """
    table = topic.name.quarantine_table
    log.warning("%s", quarantine_note(forbidden.total, forbidden.refused, table))
    is_refused, committed = F.col("tombstone_by").eqNullSafe(ERASED_KEY), []
    if forbidden.total > forbidden.refused:
        unmarked = forbidden.records.where(~is_refused)
        committed.append(copy_to_quarantine(topic, unmarked, UNMARKED_NULL_VALUE, run))
    if forbidden.refused:
        refused = forbidden.records.where(is_refused)
        committed.append(copy_to_quarantine(topic, refused, ERASED_KEY, run))
    compare_and_set(
        topic, Step.QUARANTINE_STATE, lambda current: _may_miss(current, forbidden.last_offsets)
    )
    return [snapshot for snapshot in committed if snapshot is not None]


def copy_to_quarantine(
    topic: Topic,
    records: DataFrame,
    reason: str,
    run: RunOf,
    as_rows: Callable[[DataFrame], DataFrame] = lambda records: records,
) -> int | None:
    """Append the records that the quarantine lacks, and return the id of its new snapshot.

    Return None if it has all, because a killed run copied them. `as_rows` turns the given records
    into rows of the quarantine.
    """
    spark, name = topic.spark, topic.name
    if not table_exists(spark, name.quarantine_table):
        commit(Step.QUARANTINE_TABLE, lambda: create_quarantine(spark, name))
    table_id = open_table(spark, name.records_table).metadata.uuid
    quarantine = spark.table(name.quarantine_table)
    is_held = (F.col("table_id") == table_id) & (F.col("reason") == reason)
    missing = records.join(quarantine.where(is_held).select(_PLACE), _PLACE, "left_anti")
    if missing.isEmpty():
        return None
    columns: dict[str, Any] = {
        "reason": reason,
        "run_id": run.id,
        "quarantined_at": run.now,
        "table_id": table_id,
    }
    rows = as_rows(missing).withColumns({column: F.lit(value) for column, value in columns.items()})
    writer = rows.select(quarantine.columns).writeTo(name.quarantine_table)
    return commit(
        Step.QUARANTINE_RECORDS,
        lambda: snapshot_after(spark, name.quarantine_table, writer.append),
    )


def _may_miss(current: Topic, last_offsets: Mapping[int, int]) -> PropertyChanges:
    """Return the state changes after which records up to these offsets may be missing."""
    changes: dict[str, str | None] = {REMOVING: "true"}
    for partition, last in last_offsets.items():
        state = current.partitions[partition]
        end = max(state.expired_end_offset, last + 1)
        changes |= to_properties(partition, state.moved(expired_end_offset=end))
    return changes
