"""Rows that arrived in an adopted table since the last look, summed up by partition and segment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.rows import AdoptedRows, small_frame
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.files.manifests import changed_files
from ebbtide.iceberg.history import Committed, history_since
from ebbtide.log.adopted.horizons import MOST_LATE, OffsetRange
from ebbtide.log.adopted.segments import ArrivedRows, late_below
from ebbtide.log.logical_segments import MAX_LONG, SegmentSums
from ebbtide.log.state.topic_state import PartitionState

log = logging.getLogger(__name__)

_APPEND, _REPLACE = "append", "replace"


class EventClock(NamedTuple):
    """The time of a look, and how far after it an event time counts; ms.

    One later than that counts as the look's own time: nobody knows when the row was appended.
    """

    now_ms: int
    after_max_ms: int = 60 * 60 * 1000

    def event_time_ms(self) -> Column:
        """Return the event time of a row by its timestamp."""
        is_future = F.col("timestamp_ms") > self.now_ms + self.after_max_ms
        return F.when(is_future, F.lit(self.now_ms)).otherwise(F.col("timestamp_ms"))


class Arrivals(NamedTuple):
    """What arrived until a snapshot; rows without partition or offset are in none of them."""

    snapshot: int
    by_partition: Mapping[int, ArrivedRows]
    topics: frozenset[str]
    unplaced: int = 0  # rows without partition or offset, which no rule ever judges


def look(
    rows: AdoptedRows,
    states: Mapping[int, PartitionState],
    seen: int | None,
    clock: EventClock,
) -> Arrivals | None:
    """Return what arrived since the snapshot `seen`; None for a table without a snapshot.

    Where the commits since then cannot tell it, all live rows count as arrived.
    """
    table = java_table(rows.spark, rows.table)
    current = table.currentSnapshot()
    if current is None:
        return None
    snapshot = int(current.snapshotId())
    since = None if seen is None else _since(rows.spark, table, seen)
    adding = [of for of in since or () if of.adds_rows]
    if since is not None and not adding:
        return Arrivals(snapshot, {}, frozenset())
    is_anew = since is None or not _can_tell(since)
    if is_anew:
        arrived = rows.at(snapshot)
        if states:
            log.warning("rows that arrived late cannot be told from others: all count as late")
    elif all(of.operation == _APPEND for of in adding):
        assert seen is not None
        arrived = rows.appended(seen, snapshot)
    else:
        added = F.col("file").isin(_added_files(rows.spark, table, adding))
        arrived = rows.at(snapshot).where(added)
    arrived = arrived.withColumn("event_ms", clock.event_time_ms())
    return _summed(rows, arrived, states, snapshot, _bytes_a_row(table), is_anew=is_anew)


def _since(spark: SparkSession, table: Any, seen: int) -> list[Committed] | None:
    """Return the commits since a snapshot; None where it is not in the table's history."""
    history = history_since(spark, table, seen)
    return history.commits if history.is_reached else None


def _can_tell(commits: list[Committed]) -> bool:
    """Return whether these commits tell which rows arrived.

    An append does, even if its files were rewritten since. A commit that also removes does by its
    files, as long as they are there.
    """
    are_appends = all(of.operation == _APPEND for of in commits if of.adds_rows)
    return are_appends or not any(of.operation == _REPLACE for of in commits)


def _added_files(spark: SparkSession, table: Any, commits: list[Committed]) -> list[str]:
    return [
        file.path
        for of in commits
        for sign, file in changed_files(spark, table, table.snapshot(of.id))
        if sign > 0 and file.is_data
    ]


def _bytes_a_row(table: Any) -> float:
    """Return the mean bytes of a row in the table's files, as the snapshot's summary has them."""
    summary = table.currentSnapshot().summary()
    size_bytes, rows = (
        int(summary.get(name) or 0) for name in ("total-files-size", "total-records")
    )
    return size_bytes / rows if rows else 0.0


def _summed(
    rows: AdoptedRows,
    arrived: DataFrame,
    states: Mapping[int, PartitionState],
    snapshot: int,
    bytes_a_row: float,
    *,
    is_anew: bool,
) -> Arrivals:
    placed = _with_segments(rows.spark, arrived, states)
    is_late = F.col("offset") < F.col("late_below")
    is_late_tombstone = is_late & F.col("is_tombstone")
    by_segment = placed.groupBy("partition", "first").agg(
        F.count("offset").alias("rows"),
        F.count(F.lit(1)).alias("all_rows"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min(F.when(F.col("timestamp_ms") >= 0, F.col("timestamp_ms"))).alias("first_ms"),
        F.max("timestamp_ms").alias("last_ms"),
        F.max("event_ms").alias("last_event_ms"),
        F.min("topic").alias("one_topic"),
        F.max("topic").alias("other_topic"),
        F.min(F.when(is_late, F.col("offset"))).alias("first_late"),
        F.slice(
            F.array_sort(F.collect_set(F.when(is_late_tombstone, F.col("offset")))), 1, MOST_LATE
        ).alias("late"),
        F.max(F.when(is_late_tombstone, F.col("offset"))).alias("last_late"),
    )
    found = by_segment.collect()
    unplaced = sum(r["all_rows"] for r in found if r["partition"] is None or not r["rows"])
    of_partitions: dict[int, list[Row]] = {}
    for row in found:
        if row["partition"] is not None and row["rows"]:
            of_partitions.setdefault(row["partition"], []).append(row)
    topics = {row[name] for row in found for name in ("one_topic", "other_topic")}
    arrivals = {
        partition: _of_partition(mine, bytes_a_row, is_anew=is_anew)
        for partition, mine in sorted(of_partitions.items())
    }
    _check_topic(rows, topics - {None})
    return Arrivals(snapshot, arrivals, frozenset(topics - {None}), unplaced)


def _with_segments(
    spark: SparkSession, arrived: DataFrame, states: Mapping[int, PartitionState]
) -> DataFrame:
    """Add the base offset of each row's segment, null in a new partition."""
    known = [
        (partition, first, last, late_below(state))
        for partition, state in states.items()
        for first, last in _ranges(state)
    ]
    frame = F.broadcast(small_frame(spark, known, ("of_partition", "first", "last", "late_below")))
    is_its = (
        (F.col("partition") == F.col("of_partition"))
        & (F.col("offset") >= F.col("first"))
        & (F.col("offset") <= F.col("last"))
    )
    return arrived.join(frame, is_its, how="left")


def _ranges(state: PartitionState) -> list[tuple[int, int]]:
    """Return the first and last offset of each segment; the last one takes all beyond it."""
    bases = [segment.base_offset for segment in state.segments]
    return list(zip(bases, [*(base - 1 for base in bases[1:]), MAX_LONG], strict=True))


def _of_partition(rows: list[Row], bytes_a_row: float, *, is_anew: bool) -> ArrivedRows:
    late = [row["first_late"] for row in rows if row["first_late"] is not None]
    sums = {
        row["first"] or 0: SegmentSums(
            round(row["rows"] * bytes_a_row),
            -1 if row["first_ms"] is None else row["first_ms"],
            row["last_ms"],
            row["rows"],
        )
        for row in rows
    }
    tombstones = [of for row in rows for of in _late_tombstones(row)]
    return ArrivedRows(
        first_offset=min(row["first_offset"] for row in rows),
        end_offset=max(row["last_offset"] for row in rows) + 1,
        by_segment=sums,
        first_late_offset=min(late, default=None),
        max_event_time_ms=max(row["last_event_ms"] for row in rows),
        late_tombstones=tombstones,
        are_all=is_anew,
    )


def _late_tombstones(row: Row) -> list[OffsetRange]:
    if row["last_late"] is None:
        return []
    if row["late"][-1] < row["last_late"]:  # there are more
        return [OffsetRange(row["late"][0], row["last_late"] + 1)]
    return [OffsetRange(offset, offset + 1) for offset in row["late"]]


def _check_topic(rows: AdoptedRows, topics: set[str]) -> None:
    known = topics if rows.ids.topic_name is None else topics | {rows.ids.topic_name}
    if len(known) > 1:
        raise NotCoveredError(
            f"expected the records of one topic in {rows.table}, found those of "
            f"{', '.join(sorted(known))}: several topics in one table are not covered yet"
        )
