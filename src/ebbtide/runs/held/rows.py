"""Which rows of a records table a hold covers, and which of them leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.files.data_files import numbers_in
from ebbtide.iceberg.topics import Topic
from ebbtide.log.holds import Hold
from ebbtide.log.plans.offsets import Removes, offset_range
from ebbtide.spark.conditions import any_column, any_of

HOLD_ID = "hold_id"


def covers(hold: Hold) -> str:
    """Return, as SQL, whether a hold covers a record.

    A record without an event time may be of any time, so that it is covered.
    """
    bounds = (
        ("`partition` = {}", hold.partition),
        ("offset >= {}", hold.first_offset),
        ("offset < {}", hold.end_offset),
    )
    conditions = [condition.format(bound) for condition, bound in bounds if bound is not None]
    times = ((">=", hold.event_time_from), ("<", hold.event_time_until))
    conditions += [
        f"coalesce(event_time {is_in} timestamp_micros({int(at.timestamp() * 1_000_000)}), true)"
        for is_in, at in times
        if at is not None
    ]
    if hold.key_hashes is not None:
        hashes = ", ".join(f"'{key_hash}'" for key_hash in hold.key_hashes)
        conditions.append(f"coalesce(sha2(key, 256) IN ({hashes}), false)")
    return " AND ".join(conditions) or "true"


def any_covers(holds: Iterable[Hold]) -> Column:
    """Return whether any of the holds covers a record."""
    return F.expr(any_of(map(covers, holds)))


def covered(rows: DataFrame, holds: Sequence[Hold]) -> DataFrame:
    """Return each row once for every hold that covers it, with the hold's id."""
    ids = [F.when(F.expr(covers(hold)), F.lit(hold.hold_id)) for hold in holds]
    return rows.where(any_covers(holds)).withColumn(
        HOLD_ID, F.explode(F.array_compact(F.array(*ids)))
    )


def below_starts(topic: Topic, holds: Sequence[Hold]) -> dict[int, int]:
    """Return the log start offsets below which a hold may cover a row: rows there go any time."""
    return {
        partition: state.log_start_offset
        for partition, state in topic.partitions.items()
        if any(
            hold.is_on(partition) and (hold.first_offset or 0) < state.log_start_offset
            for hold in holds
        )
    }


def within_holds(leaving: Removes, holds: Sequence[Hold]) -> dict[int, BitMap64]:
    """Return those of the offsets that a hold may cover, by partition; empty where none is."""
    may_be: dict[int, BitMap64] = {}
    for partition, offsets in leaving.items():
        within = BitMap64()
        for hold in holds:
            if hold.is_on(partition) and offsets:
                first = hold.first_offset or 0
                end = offsets.max() + 1 if hold.end_offset is None else hold.end_offset
                within |= offsets & offset_range(first, end)
        if within:
            may_be[partition] = within
    return may_be


def at_offsets(
    spark: SparkSession, rows: DataFrame, removes: Removes, below: Mapping[int, int]
) -> DataFrame:
    """Return the rows at these offsets, and those below an offset by partition.

    A first run of offsets stays a range. A log may be so long that all below its start, as a set
    of offsets, would fill the memory.
    """
    partition_of, offset = F.col("partition"), F.col("offset")
    ranges = [(partition_of == partition) & (offset < end) for partition, end in below.items()]
    single = []
    for partition, offsets in sorted(removes.items()):
        if not offsets:
            continue
        first, end = max(offsets.min(), below.get(partition, 0)), _end_of_first_run(offsets)
        ranges.append((partition_of == partition) & (offset >= first) & (offset < end))
        rest = offsets - offset_range(offsets.min(), end)
        if rest := rest - offset_range(rest.min() if rest else 0, below.get(partition, 0)):
            single.append((partition, rest))
    in_ranges = rows.where(any_column(ranges))
    if not single:
        return in_ranges
    bounds = any_column(
        (F.col("partition") == partition) & F.col("offset").between(rest.min(), rest.max())
        for partition, rest in single
    )
    listed = F.broadcast(spark.createDataFrame(_table_of(dict(single))))
    return in_ranges.unionByName(rows.where(bounds).join(listed, ["partition", "offset"], "semi"))


def _end_of_first_run(offsets: BitMap64) -> int:
    """Return the first offset after the smallest that is missing, by halving."""
    first, low, high = offsets.min(), offsets.min() + 1, offsets.max() + 1
    while low < high:  # [first, low) is whole, [first, high + 1) is not
        middle = (low + high + 1) // 2
        if offsets.contains_range(first, middle):
            low = middle
        else:
            high = middle - 1
    return int(low)


def _table_of(offsets: Mapping[int, BitMap64]) -> pa.Table:
    partitions = [np.full(len(of), partition, np.int32) for partition, of in offsets.items()]
    numbers = [numbers_in(of) for of in offsets.values()]
    columns = {"partition": np.concatenate(partitions), "offset": np.concatenate(numbers)}
    return pa.table(columns)
