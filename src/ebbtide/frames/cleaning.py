"""A cleaner round over the records of many partitions at once.

Kafka: Cleaner.buildOffsetMap, Cleaner.shouldRetainRecord, MemoryRecords.filterTo. The offset map
is unbounded here and compares whole keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Why a record goes, in the order in which the rules are asked.
ABORTED = "aborted"
KEYLESS = "keyless"
SUPERSEDED = "superseded"
TOMBSTONE = "tombstone"
RULES = (ABORTED, KEYLESS, SUPERSEDED, TOMBSTONE)

NARROW = ("partition", "segment", "offset", "batch", "key", "is_tombstone", "size_bytes")


def within(ranges: Mapping[int, tuple[int, int]]) -> Column:
    """Whether the row's offset lies in its partition's half-open range."""
    conditions: Iterable[Column] = (
        (F.col("partition") == partition) & (F.col("offset") >= first) & (F.col("offset") < end)
        for partition, (first, end) in ranges.items()
    )
    return reduce(Column.__or__, conditions, F.lit(False))


def narrow(records: DataFrame, future_limit_ms: int) -> DataFrame:
    """The columns that a round reads: never values; times in ms, -1 where there is none."""
    event_ms = F.coalesce(F.unix_millis("event_time"), F.lit(-1))
    append_ms = F.unix_millis("append_time")
    is_future = event_ms > append_ms + future_limit_ms
    return records.select(
        *NARROW,
        F.coalesce(F.unix_millis("timestamp"), F.lit(-1)).alias("timestamp_ms"),
        F.when(is_future, append_ms).otherwise(event_ms).alias("event_time_ms"),
    )


def latest_offsets(dirty: DataFrame, verdicts: DataFrame) -> DataFrame:
    """The offset map: the last offset of each key in the dirty records, aborted ones left out."""
    discarded = verdicts.where("discards").select("partition", "batch")
    return (
        dirty.where(F.col("key").isNotNull())
        .join(discarded, ["partition", "batch"], "left_anti")
        .groupBy("partition", "key")
        .agg(F.max("offset").alias("latest_offset"))
    )


def judged(records: DataFrame, verdicts: DataFrame, latest: DataFrame) -> DataFrame:
    """Each record with the `rule` by which it goes; null where it stays.

    `verdicts` has `discards` and `is_past_horizon` of the batches where either is true.
    """
    is_superseded = F.col("offset") < F.col("latest_offset")
    rule = (
        F.when(F.col("discards"), ABORTED)
        .when(F.col("key").isNull(), KEYLESS)
        .when(is_superseded, SUPERSEDED)
        .when(F.col("is_tombstone") & F.col("is_past_horizon"), TOMBSTONE)
    )
    return (
        records.join(verdicts, ["partition", "batch"], "left")
        .join(latest, ["partition", "key"], "left")
        .withColumn("rule", rule)
        .drop("discards", "is_past_horizon", "latest_offset", "key")
    )


def batch_totals(judged_records: DataFrame) -> DataFrame:
    """One row a batch that loses records or holds a tombstone: what goes and what stays."""
    stays = F.col("rule").isNull()
    tombstones = F.count_if(stays & F.col("is_tombstone"))
    return (
        judged_records.groupBy("partition", "batch")
        .agg(
            F.count("*").alias("record_count"),
            F.count_if(stays).alias("survivors"),
            tombstones.alias("tombstones"),
            F.min_by(F.when(stays, F.col("timestamp_ms")), F.when(stays, F.col("offset"))).alias(
                "first_timestamp_ms"
            ),
            F.max(F.when(stays, F.col("timestamp_ms"))).alias("max_timestamp_ms"),
            F.max(F.when(stays, F.col("event_time_ms"))).alias("max_event_time_ms"),
            *(F.count_if(F.col("rule") == rule).alias(rule) for rule in RULES),
        )
        .where((F.col("survivors") < F.col("record_count")) | (F.col("tombstones") > 0))
    )


def batch_bytes(judged_records: DataFrame, bases: DataFrame) -> DataFrame:
    """Bytes of the records of the batches in `bases`, before and after, as v2 encodes them.

    `bases` gives each batch its base timestamp before (`old_base_ms`) and after (`new_base_ms`).
    """
    sized = judged_records.join(bases, ["partition", "batch"], "inner")
    after = F.when(F.col("rule").isNull(), record_bytes(F.col("new_base_ms")))
    return sized.groupBy("partition", "batch").agg(
        F.coalesce(F.sum(after), F.lit(0)).alias("records_bytes"),
        F.sum(record_bytes(F.col("old_base_ms"))).alias("records_bytes_before"),
    )


def record_bytes(base_timestamp_ms: Column) -> Column:
    """Bytes of a v2 record: its body (attributes, deltas, key, value, headers) and its length."""
    body = (
        F.lit(1)
        + varint_bytes(F.col("timestamp_ms") - base_timestamp_ms, 10)
        + varint_bytes(F.col("offset") - F.col("batch"), 5)
        + F.col("size_bytes")
    )
    return body + varint_bytes(body, 5)


def varint_bytes(value: Column, at_most: int) -> Column:
    """Length of a zigzag varint; linear in `value`, since Spark writes it out each time."""
    magnitude = F.greatest(value, -value - 1)
    longer = [(magnitude >= 1 << (7 * n - 1)).cast("int") for n in range(1, at_most)]
    return reduce(Column.__add__, longer, F.lit(1))
