"""The views that readers of a topic query: they evaluate its two tables anew at each read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.creation import create_view
from ebbtide.log.settings.names import TopicName

# Bit 5 of a record's own attributes marks it even before mark_tombstones runs (KIP-87).
_IS_TOMBSTONE = "(is_tombstone OR (attributes & 32) != 0)"
_PLACE = ("partition", "offset", "segment", "batch", "timestamp", "event_time", "append_time")
_COLUMNS = (*_PLACE, "key", "value", "headers", "attributes")
_V1_COLUMNS = (*_COLUMNS, "is_tombstone", "tombstone_by", "size_bytes")
_TABLE_COLUMNS = (*_COLUMNS, "size_bytes")


def create_views(spark: SparkSession, name: TopicName) -> None:
    """Create the topic's views if they do not exist."""
    table = name.records_table
    every = [column.name for column in open_table(spark, table).metadata.columns]
    create_view(spark, name.committed_view, committed_query(name), table, every)
    create_view(spark, name.v1_view, v1_query(name), table, _V1_COLUMNS)
    create_view(spark, name.table_view, table_query(name), table, _TABLE_COLUMNS)


def committed_query(name: TopicName) -> str:
    """Return the query of the view that shows what a read_committed consumer gets.

    Below the first undecided transaction, and not in an aborted one; both from batch rows.
    """
    return f"""
        WITH data AS (
            SELECT `partition`, base_offset, producer_id FROM {name.batches_table}
            WHERE (attributes & 16) != 0 AND (attributes & 32) = 0
        ), marker AS (
            SELECT `partition`, base_offset, producer_id, control_type, txn_first_offset
            FROM {name.batches_table} WHERE control_type IN ('COMMIT', 'ABORT')
        ), aborted AS (
            SELECT data.`partition`, data.base_offset FROM data JOIN marker
            ON data.`partition` = marker.`partition` AND data.producer_id = marker.producer_id
            AND data.base_offset >= marker.txn_first_offset
            AND data.base_offset < marker.base_offset
            WHERE marker.control_type = 'ABORT'
        ), undecided AS (
            SELECT data.`partition`, min(data.base_offset) AS first_offset
            FROM data LEFT ANTI JOIN marker
            ON data.`partition` = marker.`partition` AND data.producer_id = marker.producer_id
            AND marker.base_offset > data.base_offset
            GROUP BY data.`partition`
        )
        SELECT record.* FROM {name.records_table} AS record
        LEFT ANTI JOIN aborted
            ON record.`partition` = aborted.`partition` AND record.batch = aborted.base_offset
        LEFT ANTI JOIN undecided
            ON record.`partition` = undecided.`partition`
            AND record.offset >= undecided.first_offset
    """


def v1_query(name: TopicName) -> str:
    """Return the query of the view for readers that recognise only null values as tombstones.

    Each tombstone has a null value there. It is KIP-87's conversion for a consumer of an older
    format, of the committed records.
    """
    value = f"CASE WHEN {_IS_TOMBSTONE} THEN NULL ELSE value END AS value"
    columns = [value if of == "value" else of for of in _V1_COLUMNS]
    return f"SELECT {_selected(columns)} FROM {name.committed_view}"


def table_query(name: TopicName) -> str:
    """Return the query of the view that shows the topic as a table: each key's latest value.

    A key whose latest committed record is a tombstone is out, and so are records without key.
    """
    return f"""
        WITH ranked AS (
            SELECT *, row_number() OVER (PARTITION BY `partition`, key ORDER BY offset DESC)
                AS newest FROM {name.committed_view} WHERE key IS NOT NULL
        )
        SELECT {_selected(_TABLE_COLUMNS)}
        FROM ranked
        WHERE newest = 1 AND value IS NOT NULL AND NOT coalesce({_IS_TOMBSTONE}, false)
    """


def _selected(columns: Sequence[str]) -> str:
    return ", ".join("`partition`" if of == "partition" else of for of in columns)
