"""What the batch table says of segments and transactions, without looking at records."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.records.attributes import CONTROL, TRANSACTIONAL


def has_bit(bit: int) -> Column:
    """Whether the batch's attributes have `bit` set."""
    return F.col("attributes").bitwiseAND(bit) != 0


def segment_totals(batches: DataFrame) -> DataFrame:
    """One row a source file: bytes and the largest times of its batches, in ms.

    `first_batch_timestamp_ms` is the largest timestamp of the first batch, as in Kafka's
    LogSegment.getFirstBatchTimestamp.
    """
    return batches.groupBy("partition", "segment").agg(
        F.sum("size_bytes").alias("size_bytes"),
        F.max("max_timestamp_ms").alias("max_timestamp_ms"),
        F.min_by("max_timestamp_ms", "base_offset").alias("first_batch_timestamp_ms"),
        F.max("max_event_time_ms").alias("max_event_time_ms"),
        F.max("append_time_ms").alias("max_append_time_ms"),
        F.sum("record_count").alias("record_count"),
    )


def undecided_transactions(batches: DataFrame) -> DataFrame:
    """First offset of each producer's open transaction: `partition, producer_id, first_offset`."""
    is_marker = F.col("control_type").isin("COMMIT", "ABORT")
    is_data = has_bit(TRANSACTIONAL) & ~has_bit(CONTROL)
    last_markers = (
        batches.where(is_marker)
        .groupBy("partition", "producer_id")
        .agg(F.max("base_offset").alias("_last_marker"))
    )
    return (
        batches.where(is_data)
        .join(last_markers, ["partition", "producer_id"], "left")
        .where(F.col("_last_marker").isNull() | (F.col("base_offset") > F.col("_last_marker")))
        .groupBy("partition", "producer_id")
        .agg(F.min("base_offset").alias("first_offset"))
    )
