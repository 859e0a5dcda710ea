"""A topic's tables and views: their columns, partitioning and properties."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.state_table import (
    check_commits,
    create_namespace,
    create_state,
    create_table,
    create_view,
    drop_state,
    read_state,
)
from ebbtide.settings.names import BATCHES_SUFFIX, HELD_SUFFIX, QUARANTINE_SUFFIX, TopicName, quoted
from ebbtide.state.topic_state import (
    NOTHING_SEEN,
    has_partitions,
    seen_property,
    settings_of,
    state_of,
)

# Bit 5 of a record's own attributes marks it even before mark_tombstones runs (KIP-87).
_IS_TOMBSTONE = "(is_tombstone OR (attributes & 32) != 0)"
_PLACE = ("partition", "offset", "segment", "batch", "timestamp", "event_time", "append_time")
_COLUMNS = (*_PLACE, "key", "value", "headers", "attributes")
_NULL_TOMBSTONES_COLUMNS = (*_COLUMNS, "is_tombstone", "tombstone_by", "size_bytes")
_LATEST_COLUMNS = (*_COLUMNS, "size_bytes")


def create_views(spark: SparkSession, name: TopicName) -> None:
    """Create the topic's views if they do not exist."""
    table = name.records_table
    every = [column.name for column in open_table(spark, table).metadata.columns]
    create_view(spark, name.committed_view, committed_query(name), table, every)
    query, old = null_tombstones_query(name), name.old_name("v1")
    create_view(spark, name.null_tombstones_view, query, table, _NULL_TOMBSTONES_COLUMNS, old)
    query, old = latest_query(name), name.old_name("table")
    create_view(spark, name.latest_view, query, table, _LATEST_COLUMNS, old)


# The batches of transactions: of all, and of aborted ones.
_TRANSACTIONS = """
        WITH data AS (
            SELECT `partition`, base_offset, producer_id FROM {batches}
            WHERE (attributes & 16) != 0 AND (attributes & 32) = 0
        ), marker AS (
            SELECT `partition`, base_offset, producer_id, control_type, txn_first_offset
            FROM {batches} WHERE control_type IN ('COMMIT', 'ABORT')
        ), aborted AS (
            SELECT data.`partition`, data.base_offset FROM data JOIN marker
            ON data.`partition` = marker.`partition` AND data.producer_id = marker.producer_id
            AND data.base_offset >= marker.txn_first_offset
            AND data.base_offset < marker.base_offset
            WHERE marker.control_type = 'ABORT'
        )"""
_WITHOUT_MARKER = """data LEFT ANTI JOIN marker
            ON data.`partition` = marker.`partition` AND data.producer_id = marker.producer_id
            AND marker.base_offset > data.base_offset"""
_NOT_ABORTED = """{records} AS record
        LEFT ANTI JOIN aborted
            ON record.`partition` = aborted.`partition` AND record.batch = aborted.base_offset"""


def committed_query(name: TopicName) -> str:
    """Return the query of the view with the records that a read_committed consumer gets.

    These are below the first undecided transaction and not in an aborted one, by the batch rows.
    """
    return f"""{_TRANSACTIONS.format(batches=name.batches_table)}, undecided AS (
            SELECT data.`partition`, min(data.base_offset) AS first_offset
            FROM {_WITHOUT_MARKER}
            GROUP BY data.`partition`
        )
        SELECT record.* FROM {_NOT_ABORTED.format(records=name.records_table)}
        LEFT ANTI JOIN undecided
            ON record.`partition` = undecided.`partition`
            AND record.offset >= undecided.first_offset
    """


def not_aborted_query(name: TopicName) -> str:
    """Return the query of the records that are in no aborted transaction.

    The column `is_undecided` tells those of a transaction without a marker.
    """
    return f"""{_TRANSACTIONS.format(batches=name.batches_table)}, undecided AS (
            SELECT data.`partition`, data.base_offset FROM {_WITHOUT_MARKER}
        )
        SELECT record.*, undecided.base_offset IS NOT NULL AS is_undecided
        FROM {_NOT_ABORTED.format(records=name.records_table)}
        LEFT JOIN undecided
            ON record.`partition` = undecided.`partition`
            AND record.batch = undecided.base_offset
    """


def null_tombstones_query(name: TopicName) -> str:
    """Return the query of the view for readers that recognise only null values as tombstones.

    Each tombstone has a null value there: KIP-87's conversion for consumers of an older format. The
    view has the committed records.
    """
    value = f"CASE WHEN {_IS_TOMBSTONE} THEN NULL ELSE value END AS value"
    columns = [value if column == "value" else column for column in _NULL_TOMBSTONES_COLUMNS]
    return f"SELECT {_selected(columns)} FROM {name.committed_view}"


def latest_query(name: TopicName) -> str:
    """Return the query of the view with each key's latest committed value.

    Keys whose latest committed record is a tombstone are left out, and so are records without a
    key.
    """
    return f"""
        WITH ranked AS (
            SELECT *, row_number() OVER (PARTITION BY `partition`, key ORDER BY offset DESC)
                AS newest FROM {name.committed_view} WHERE key IS NOT NULL
        )
        SELECT {_selected(_LATEST_COLUMNS)}
        FROM ranked
        WHERE newest = 1 AND value IS NOT NULL AND NOT coalesce({_IS_TOMBSTONE}, false)
    """


def _selected(columns: Sequence[str]) -> str:
    return ", ".join("`partition`" if column == "partition" else column for column in columns)


def _names(columns: str) -> list[str]:
    """Return the column names of a table definition."""
    return re.findall(r"^ {4}`?(\w+)`? [A-Z]", columns, re.MULTILINE)


RECORD_COLUMNS = """
    `partition` INT NOT NULL,
    offset BIGINT NOT NULL,
    segment BIGINT NOT NULL COMMENT 'physical segment: base offset of its source file, or less',
    batch BIGINT NOT NULL COMMENT 'base offset of the record batch',
    timestamp TIMESTAMP COMMENT 'as Kafka stores it; null when Kafka says -1',
    event_time TIMESTAMP COMMENT 'the time KIP-870 judges by',
    append_time TIMESTAMP COMMENT 'when the log received it, or an upper bound',
    key BINARY,
    value BINARY,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    attributes INT COMMENT 'the attributes byte of the record itself',
    is_tombstone BOOLEAN NOT NULL,
    tombstone_by STRING COMMENT 'null_value, flag, header or predicate; null when not a tombstone',
    size_bytes INT COMMENT 'key, value and headers as v2 encodes them'
"""

RECORD_NAMES = _names(RECORD_COLUMNS)

QUARANTINE_COLUMNS = f"""
    {RECORD_COLUMNS},
    reason STRING NOT NULL COMMENT 'why the log must not have it',
    run_id STRING NOT NULL COMMENT 'the run that removed it',
    quarantined_at TIMESTAMP NOT NULL COMMENT 'the now of that run',
    table_id STRING NOT NULL COMMENT 'the id of the records table that held it'
"""

HELD_COLUMNS = f"""
    hold_id STRING NOT NULL COMMENT 'the hold; a record that two holds cover is here twice',
    {RECORD_COLUMNS},
    job STRING COMMENT 'the job that was about to remove it, or that found it removed',
    run_id STRING,
    kept_at TIMESTAMP NOT NULL,
    table_id STRING NOT NULL COMMENT 'the id of the records table that held it'
"""

# The adopted table's own columns are added as the struct `row`, which grows with them.
HELD_COLUMNS_OF_OTHERS = """
    hold_id STRING COMMENT 'the hold; a record that two holds cover is here twice',
    `partition` INT, offset BIGINT, event_time TIMESTAMP,
    key BINARY COMMENT 'the bytes of a binary or text key; null for keys of other types',
    job STRING COMMENT 'the job that was about to remove it, or that found it removed',
    run_id STRING, kept_at TIMESTAMP,
    table_id STRING COMMENT 'the id of the adopted table that held it'
"""

BATCH_COLUMNS = """
    `partition` INT NOT NULL,
    base_offset BIGINT NOT NULL,
    last_offset BIGINT NOT NULL,
    segment BIGINT NOT NULL,
    leader_epoch INT,
    magic INT,
    attributes INT COMMENT 'bit 6 = delete horizon (KIP-534)',
    base_timestamp_ms BIGINT COMMENT 'the delete horizon while bit 6 is set',
    max_timestamp_ms BIGINT,
    max_event_time_ms BIGINT COMMENT 'future ones clamped; -1 when none',
    append_time_ms BIGINT,
    producer_id BIGINT,
    producer_epoch INT,
    base_sequence INT,
    record_count INT,
    size_bytes INT,
    crc BIGINT COMMENT 'as read; null once a round rewrote the batch',
    control_type STRING,
    control_key BINARY,
    control_value BINARY,
    txn_first_offset BIGINT COMMENT 'on a marker with data: where its transaction starts',
    header_base_offset BIGINT
        COMMENT 'base offset in the header after a round converted magic 0 or 1; null: base_offset',
    producer_timestamp_ms BIGINT
        COMMENT 'last append of the producer, if not in a header; null: max_timestamp_ms'
"""

BATCH_NAMES = _names(BATCH_COLUMNS)

# Appends and maintenance often commit at the same time, so commits are retried for long, and
# conflicts are detected by snapshot.
COMMON = {
    "format-version": "3",
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "2000",
    "write.metadata.compression-codec": "gzip",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    "history.expire.max-snapshot-age-ms": str(5 * 24 * 60 * 60 * 1000),
}
_RECORDS = COMMON | {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # Deletes need the bounds of offset and timestamp. Bounds of these three would only take space.
    # The count of null values shows which files have none.
    "write.metadata.metrics.column.key": "none",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.metrics.column.headers": "none",
}
# For tables of copied records: a deleted row must not stay in a file of the current snapshot.
_COPIED = _RECORDS | {
    f"write.{operation}.mode": "copy-on-write" for operation in ("delete", "update", "merge")
}
# Without bounds: any column of an adopted table may have a key, and a bound has a short one whole.
_COPIED_OF_OTHERS = {n: v for n, v in _COPIED.items() if ".metrics.column." not in n} | {
    "write.metadata.metrics.default": "counts"
}
_BATCHES = COMMON | {
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.metrics.column.control_key": "none",
    "write.metadata.metrics.column.control_value": "none",
}


_BY_SEGMENT = [("identity", "partition"), ("identity", "segment")]
_BY_PARTITION = [("identity", "partition")]
_BY_HOLD = [("identity", "hold_id")]
_NO_ROWS = seen_property("records", NOTHING_SEEN) | seen_property("batches", NOTHING_SEEN)


def create_topic(spark: SparkSession, name: TopicName, properties: dict[str, str]) -> None:
    """Create those of a topic's tables and views that do not exist, with its settings and state."""
    create_tables(spark, name, properties)
    create_views(spark, name)


def create_tables(spark: SparkSession, name: TopicName, properties: dict[str, str]) -> None:
    """Create a topic's tables without the views."""
    check_commits(spark, name.catalog)
    for namespace in (name.cluster, name.cluster + BATCHES_SUFFIX):
        create_namespace(spark, quoted(name.catalog, namespace))
    create_table(spark, name.batches_table, BATCH_COLUMNS, _BATCHES, _BY_SEGMENT)
    _forget_dropped(spark, name)
    create_state(spark, name, _NO_ROWS | state_of(properties))
    settings = _RECORDS | settings_of(properties)
    create_table(spark, name.records_table, RECORD_COLUMNS, settings, _BY_SEGMENT)


def _forget_dropped(spark: SparkSession, name: TopicName) -> None:
    """Drop the state of a topic whose records table was dropped, so that the topic starts again."""
    if table_exists(spark, name.records_table):
        return
    left = read_state(spark, name)
    if left is not None and has_partitions(left.properties):
        drop_state(spark, name)


def create_quarantine(spark: SparkSession, name: TopicName) -> None:
    """Create the table of a topic's quarantined records if it does not exist."""
    create_namespace(spark, quoted(name.catalog, name.cluster + QUARANTINE_SUFFIX))
    create_table(spark, name.quarantine_table, QUARANTINE_COLUMNS, _COPIED, _BY_PARTITION)


def create_held(spark: SparkSession, name: TopicName) -> None:
    """Create the table of a topic's hold copies if it does not exist."""
    create_namespace(spark, quoted(name.catalog, name.cluster + HELD_SUFFIX))
    create_table(spark, name.held_table, HELD_COLUMNS, _COPIED, _BY_HOLD)


def create_held_of_others(spark: SparkSession, name: TopicName) -> None:
    """Create the table of an adopted topic's hold copies, without the column `row`."""
    create_namespace(spark, quoted(name.catalog, name.cluster + HELD_SUFFIX))
    create_table(spark, name.held_table, HELD_COLUMNS_OF_OTHERS, _COPIED_OF_OTHERS, _BY_HOLD)
