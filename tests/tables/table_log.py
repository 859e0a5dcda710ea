"""A topic's tables as the logs that the comparison with Kafka takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.iceberg.topics import load
from ebbtide.kafka.batch_header import Batch
from ebbtide.records.log_directory_writer import Record
from ebbtide.settings.names import TopicName
from tests.log.plain_cleaner import Log


def logs_of_topic(spark: SparkSession, name: TopicName) -> dict[int, Log]:
    """Each partition as the tables hold it, read by Spark."""
    batches: dict[int, list[Batch]] = defaultdict(list)
    records: dict[int, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(spark, name.batches_table, "base_offset"):
        batch = Batch(**{field: row[field] for field in Batch._fields})
        batches[row["partition"]].append(batch)
        of_batch = records[row["partition"]][batch.base_offset]
        if batch.is_control and batch.record_count:
            of_batch.append(control_record(batch, row))
    for row in rows_of(spark, name.records_table, "offset"):
        records[row["partition"]][row["batch"]].append(record_of(row))
    return {
        partition: Log(
            batches=tuple(batches[partition]),
            records=records[partition],
            state=state,
        )
        for partition, state in load(spark, name).partitions.items()
    }


def producer_fields(spark: SparkSession, name: TopicName) -> dict[int, dict[int, tuple[int, int]]]:
    """By partition and the offset in each header: base sequence and leader epoch, -1 for none."""
    by_partition: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in rows_of(spark, name.batches_table, "base_offset"):
        written, base = row["header_base_offset"], row["base_offset"]
        fields = [
            -1 if row[field] is None else row[field] for field in ("base_sequence", "leader_epoch")
        ]
        by_partition[row["partition"]][base if written is None else written] = (
            fields[0],
            fields[1],
        )
    return by_partition


def rows_of(spark: SparkSession, table: str, by: str) -> list[dict[str, Any]]:
    """All rows in offset order; times in ms, -1 where there is none."""
    frame = spark.table(table)
    if "timestamp" in frame.columns:
        frame = frame.selectExpr(
            *("`partition`", "offset", "batch", "key", "value", "headers", "attributes"),
            "coalesce(unix_millis(timestamp), -1) AS timestamp_ms",
        )
    rows: list[dict[str, Any]] = frame.orderBy("partition", by).toArrow().to_pylist()
    return rows


def control_record(batch: Batch, row: Mapping[str, Any]) -> Record:
    """The record of a control batch."""
    return Record(
        batch.last_offset, batch.max_timestamp_ms, row["control_key"], row["control_value"]
    )


def record_of(row: Mapping[str, Any]) -> Record:
    """A record's row."""
    headers = tuple((header["key"].encode(), header["value"]) for header in row["headers"] or ())
    return Record(
        row["offset"], row["timestamp_ms"], row["key"], row["value"], headers, row["attributes"]
    )
