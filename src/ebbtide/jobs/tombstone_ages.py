"""Find the tombstones of a topic with a deadline of erasure, as groups for its state.

A search reads only the offsets that no earlier search has covered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.topics import Topic
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.spark.expressions import any_of
from ebbtide.state.deletes import UNSEEN, Deletes, Stage, counted_end, with_found
from ebbtide.state.topic_state import PartitionState


class Search(NamedTuple):
    """The tombstones of a partition in the offsets [start, end)."""

    start: int
    end: int
    found: tuple[Deletes, ...] = ()

    def added_to(self, state: PartitionState) -> tuple[Deletes, ...]:
        """Return the state's groups with those of the search."""
        return with_found(state.deletes, self.start, self.end, self.found)


def ranges_to_search(
    topic: Topic, marked: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return the offsets to search after the ranges `marked` were marked, by partition."""
    ranges = {}
    for partition, state in topic.partitions.items():
        first, end = marked.get(partition, (state.first_unmarked_offset,) * 2)
        end = max(end, state.first_unmarked_offset)
        start = min(first, counted_end(state.deletes) or 0)
        if start < end:
            ranges[partition] = (max(start, state.log_start_offset), end)
    return ranges


def search(topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Search]:
    """Search the newest snapshots for the tombstones in these ranges."""
    found: dict[int, list[Deletes]] = {partition: [] for partition in ranges}
    for row in _rows(topic, ranges) if ranges else ():
        partition, end, until = row["partition"], row["last_offset"] + 1, row["horizon_ms"]
        # A horizon in the dirty part is a broker's: no round here has superseded older records.
        is_set = until is not None and end <= topic.partitions[partition].first_dirty_offset
        group = Deletes(
            Stage.HORIZON_SET if is_set else Stage.MARKED,
            row["written_ms"],
            row["first_offset"],
            end,
            UNSEEN if until is None else until,
        )
        found[partition].append(group)
    return {p: Search(*ranges[p], tuple(groups)) for p, groups in found.items()}


def _rows(topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> list[Any]:
    """Return one row for each segment and delete horizon."""
    is_in_range = any_of(
        f"`partition` = {partition} AND offset >= {start} AND offset < {end}"
        for partition, (start, end) in ranges.items()
    )
    records = topic.spark.table(topic.name.records_table).where(is_in_range).where("is_tombstone")
    return (
        _with_horizons(topic, records)
        .groupBy("partition", "segment", "horizon_ms")
        .agg(
            F.min(F.unix_millis("append_time")).alias("written_ms"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
        )
        .collect()
    )


def _with_horizons(topic: Topic, records: DataFrame) -> DataFrame:
    """Add the delete horizon of each record's batch, or null if it is not set."""
    headers = topic.spark.table(topic.name.batches_table)
    horizons = headers.where(F.col("attributes").bitwiseAND(F.lit(DELETE_HORIZON)) != 0).select(
        "partition",
        F.col("base_offset").alias("batch"),
        F.col("base_timestamp_ms").alias("horizon_ms"),
    )
    return records.join(horizons, ["partition", "batch"], "left")
