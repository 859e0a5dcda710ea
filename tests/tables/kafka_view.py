"""A topic's tables in the oracle's words, so that both can be compared field by field."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from tests.kafka.oracle import LogState

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class View(NamedTuple):
    """One partition: all that a table and Kafka both know of it."""

    log_start_offset: int
    log_end_offset: int
    segments: list[tuple[int, int]]
    records: list[tuple[Any, ...]]
    batches: list[dict[str, Any]]


def offsets(view: View) -> list[int]:
    """The offsets of the records that are left."""
    return [record[0] for record in view.records]


def view_of_table(spark: SparkSession, name: TopicName, partition: int) -> View:
    """What the tables hold of a partition."""
    state = load(spark, name).partitions[partition]
    records = (
        spark.table(name.records_table)
        .where(f"`partition` = {partition}")
        .selectExpr(
            "offset", "batch", "coalesce(unix_millis(timestamp), -1) AS timestamp_ms",
            "key", "value", "headers",
        )
        .orderBy("offset")
        .toArrow()
        .to_pylist()
    )  # fmt: skip
    batches = (
        spark.table(name.batches_table)
        .where(f"`partition` = {partition}")
        .orderBy("base_offset")
        .toArrow()
        .to_pylist()
    )
    return View(
        state.log_start_offset,
        state.log_end_offset,
        [(base, modified_ms) for base, modified_ms in state.segments],
        [_record(row) for row in records],
        [_batch_of_table(row) for row in batches],
    )


def view_of_kafka(state: LogState) -> View:
    """What Kafka holds of it, without what only a marker's bytes say."""
    return View(
        state.log_start_offset,
        state.log_end_offset,
        [(segment.base_offset, segment.last_modified_ms) for segment in state.segments],
        [
            (r.offset, r.batch, r.timestamp_ms, r.key, r.value, r.headers)
            for r in state.records
            if not r.is_control and r.offset >= state.log_start_offset
        ],
        [
            {
                "base_offset": b.base_offset,
                "last_offset": b.last_offset,
                "magic": b.magic,
                "compression": b.compression,
                "is_transactional": b.is_transactional,
                "is_control": b.is_control,
                "control_type": b.control_type if b.record_count else None,
                "delete_horizon_ms": b.delete_horizon_ms,
                "base_timestamp_ms": b.base_timestamp_ms,
                "max_timestamp_ms": b.max_timestamp_ms,
                "producer_id": b.producer_id,
                "producer_epoch": b.producer_epoch,
                "base_sequence": b.base_sequence,
                "leader_epoch": b.leader_epoch,
                "record_count": b.record_count,
                "size_bytes": b.size_bytes,
            }
            for b in state.batches
        ],
    )


def _record(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return (row["offset"], row["batch"], row["timestamp_ms"], row["key"], row["value"], headers)


def _batch_of_table(row: dict[str, Any]) -> dict[str, Any]:
    attributes = row["attributes"]
    same = ("base_offset", "last_offset", "magic", "base_timestamp_ms", "max_timestamp_ms")
    same += ("producer_id", "producer_epoch", "base_sequence", "leader_epoch")
    same += ("record_count", "size_bytes")
    return {
        **{name: row[name] for name in same},
        "compression": CODECS[attributes & 7],
        "is_transactional": bool(attributes & 0x10),
        "is_control": bool(attributes & 0x20),
        "control_type": row["control_type"] if row["record_count"] else None,
        "delete_horizon_ms": row["base_timestamp_ms"] if attributes & 0x40 else None,
    }
