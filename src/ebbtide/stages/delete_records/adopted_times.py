"""Find the offsets of times in an adopted topic, by the timestamps of its table's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.spark.conditions import any_column
from ebbtide.stages.adopted_look import Look


class OffsetsOfTimes(NamedTuple):
    """By partition: the first offset at or after its time, and the older records behind that."""

    first: dict[int, int]
    older: dict[int, int]


def find_adopted_times(look: Look, times: Mapping[int, int]) -> OffsetsOfTimes:
    """Return the offset of each partition's time, in ms; one without such a record is left out.

    Kafka: UnifiedLog.fetchOffsetByTimestamp.
    """
    rows, states = AdoptedRows.of(look.topic), look.states
    records = rows.at(look.snapshot)
    is_found = any_column(
        _is_of(partition)
        & (F.col("offset") >= states[partition].log_start_offset)
        & rows.is_from(time_ms)
        for partition, time_ms in times.items()
    )
    found = _of_partitions(records.where(is_found), F.min("offset"))
    is_older = any_column(
        _is_of(partition)
        & (F.col("offset") > offset)
        & ~F.coalesce(rows.is_from(times[partition]), F.lit(False))
        for partition, offset in found.items()
    )
    older = _of_partitions(records.where(is_older), F.count("offset")) if found else {}
    return OffsetsOfTimes(found, older)


def _is_of(partition: int) -> Column:
    return F.col("partition") == partition


def _of_partitions(records: DataFrame, number: Column) -> dict[int, int]:
    rows = records.groupBy("partition").agg(number.alias("number")).collect()
    return {row["partition"]: row["number"] for row in rows}
