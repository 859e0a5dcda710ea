"""Single records past the event-time limit, which leave before their segment does.

Their batch rows stay as they are until the segment leaves, as those of records that DeleteRecords
hides do: sizes, largest timestamps and transactions are judged by what was written, as a log
whose segments are whole judges them. A cleaner round counts survivors from the records, so it
never takes a missing one for its own victim, and an export writes what is left of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import functions as F

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.deletes import Deleted, delete_rows
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.retention import RecordLimit


class ExpiredRecords(NamedTuple):
    """How many records of a partition go, and the bytes of their keys, values and headers."""

    rows: int = 0
    size_bytes: int = 0


class Scope(NamedTuple):
    """The offsets [start, end) of a partition in which records past the limit go."""

    start: int
    end: int
    limit: RecordLimit


def find_expired_records(topic: Topic, scopes: Mapping[int, Scope]) -> dict[int, ExpiredRecords]:
    """What goes of each partition, by one scan of the files that may hold any."""
    table = topic.name.records_table
    if not scopes or current_snapshot(topic.spark, table) is None:
        return {}
    rows = (
        topic.spark.table(table)
        .where(_condition(topic, scopes))
        .groupBy("partition")
        .agg(F.count("*"), F.sum(F.coalesce("size_bytes", F.lit(0))))
        .collect()
    )
    return {partition: ExpiredRecords(count, size_bytes) for partition, count, size_bytes in rows}


def delete_expired_records(topic: Topic, scopes: Mapping[int, Scope]) -> Deleted:
    """Delete them from the records table."""
    table, condition = topic.name.records_table, _condition(topic, scopes)
    return delete_rows(topic.spark, table, condition, Step.EXPIRE_RECORDS)


def _condition(topic: Topic, scopes: Mapping[int, Scope]) -> str:
    """Which rows go, in literals; its first half alone is what files are pruned by.

    An event time too far in the future counts as the append time.
    """
    future_ms = topic.config.message_timestamp_after_max_ms
    may_go, goes = [], []
    for partition, (start, end, limit) in scopes.items():
        before = f"timestamp_millis({limit.event_time_ms})"
        within = f"`partition` = {partition} AND offset >= {start} AND offset < {end}"
        if limit.append_time_ms is not None:
            within += f" AND append_time < timestamp_millis({limit.append_time_ms})"
        may_go.append(f"({within} AND (event_time < {before} OR append_time < {before}))")
        is_future = f"unix_millis(event_time) - unix_millis(append_time) > {future_ms}"
        goes.append(f"(`partition` = {partition} AND (event_time < {before} OR {is_future}))")
    return f"({' OR '.join(may_go)}) AND ({' OR '.join(goes)})"
