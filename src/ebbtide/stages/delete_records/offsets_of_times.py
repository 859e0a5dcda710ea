"""Find the offsets of times in a topic's records, by their timestamps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.log.state.topic_state import PartitionState
from ebbtide.spark.conditions import any_column


class OffsetsOfTimes(NamedTuple):
    """By partition: the first offset at or after its time, and the older records behind that."""

    first: dict[int, int]
    older: dict[int, int]


def find_offsets(
    records: DataFrame,
    is_from: Callable[[int], Column],
    states: Mapping[int, PartitionState],
    times: Mapping[int, int],
    markers: DataFrame | None = None,
) -> OffsetsOfTimes:
    """Return the offset of each partition's time, in ms; one without such a record is left out.

    `is_from` says whether a record is at or after a time. A marker's timestamp is in ms.
    Kafka: UnifiedLog.fetchOffsetByTimestamp.
    """

    def in_log(condition: Callable[[int], Column]) -> Column:
        return _any_of(
            times,
            lambda partition: (
                (F.col("offset") >= states[partition].log_start_offset)
                & condition(times[partition])
            ),
        )

    found = records.where(in_log(is_from)).select("partition", "offset")
    if markers is not None:
        is_marked = in_log(lambda time_ms: F.col("timestamp") >= F.lit(time_ms))
        found = found.union(markers.where(is_marked).select("partition", "offset"))
    first = _by_partition(found, F.min("offset"))
    if not first:
        return OffsetsOfTimes({}, {})
    is_older = _any_of(
        first,
        lambda partition: (
            (F.col("offset") > first[partition])
            & ~F.coalesce(is_from(times[partition]), F.lit(False))
        ),
    )
    return OffsetsOfTimes(first, _by_partition(records.where(is_older), F.count("offset")))


def _any_of(partitions: Collection[int], condition: Callable[[int], Column]) -> Column:
    return any_column(
        (F.col("partition") == partition) & condition(partition) for partition in partitions
    )


def _by_partition(records: DataFrame, number: Column) -> dict[int, int]:
    rows = records.groupBy("partition").agg(number.alias("number")).collect()
    return {row["partition"]: row["number"] for row in rows}
