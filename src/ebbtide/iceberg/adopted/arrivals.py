"""Rows that arrived in an adopted table since the last round, by partition and segment."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.adopted.rows import AdoptedRows, small_frame
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.history import history_since
from ebbtide.iceberg.manifests import changed_files
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.kafka.adopted_segments import ArrivedRows, late_below, no_rows
from ebbtide.moments import later
from ebbtide.numbers import MAX_LONG
from ebbtide.spark.expressions import any_column, number_sets
from ebbtide.state.covered_offsets import MOST_LATE, PRIME, Expected, OffsetRange, with_arrivals
from ebbtide.state.logical_segments import SegmentSums
from ebbtide.state.topic_state import NEVER, PartitionState

# New rows: the rows of an append have its snapshot. If a commit also removes rows, its new rows are
# those of the files that it added, unless a later commit moved them.


_APPEND, _REPLACE = "append", "replace"


class CountedRows(NamedTuple):
    """Live rows to sum up, with a column `is_new`."""

    rows: DataFrame
    are_all: bool  # all live rows of the table, old ones too
    are_all_new: bool = False  # the commits do not show which rows are new: `is_new` is always true


def counted_rows(
    rows: AdoptedRows, table: Table, snapshot: int, seen: int | None
) -> CountedRows | None:
    """Return the rows of `snapshot` to sum up, or None if nothing changed since snapshot `seen`.

    These are only the new rows if no other tool has deleted rows since `seen`, else all live rows.
    """
    since = None if seen is None else _Since.of(table, seen, snapshot)
    if since is not None and not (since.adding or since.removing):
        return None
    if since is not None and since.are_appends:
        assert seen is not None
        return CountedRows(rows.appended(seen, snapshot).withColumn("is_new", F.lit(True)), False)
    live = rows.at(snapshot)
    marked = None if since is None else _marked(rows, live, table, since)
    if marked is not None:
        return CountedRows(marked, are_all=True)
    return CountedRows(live.withColumn("is_new", F.lit(True)), are_all=True, are_all_new=True)


class _Since(NamedTuple):
    """Commits after snapshot `seen`, up to snapshot `until`.

    `adding` and `removing` are foreign ones only: the state already has the rows that ebbtide
    itself added or deleted.
    """

    seen: int
    until: int
    adding: Sequence[Snapshot]
    removing: Sequence[Snapshot]
    moving: Sequence[Snapshot]

    @classmethod
    def of(cls, table: Table, seen: int, until: int) -> _Since | None:
        """Read the table's history up to a snapshot, or return None if it does not reach `seen`."""
        history = history_since(table, seen)
        if not history.is_reached:
            return None
        commits = history.until(until)
        others = [commit for commit in commits if not commit.is_own]
        return cls(
            seen,
            until,
            adding=[commit for commit in others if commit.adds_rows],
            removing=[commit for commit in others if commit.may_remove_rows],
            moving=[commit for commit in commits if _moves_rows(commit)],
        )

    @property
    def add_by_appends(self) -> bool:
        """True if every commit that added rows was an append."""
        return all(commit.operation == _APPEND for commit in self.adding)

    @property
    def are_appends(self) -> bool:
        """True if other tools have only appended."""
        return self.add_by_appends and not self.removing


def _moves_rows(commit: Snapshot) -> bool:
    """Return whether a commit may have moved rows to other files."""
    return commit.operation == _REPLACE or (commit.is_own and commit.adds_rows)


def _marked(rows: AdoptedRows, live: DataFrame, table: Table, since: _Since) -> DataFrame | None:
    """Return the live rows with `is_new`, or None if the commits do not show which rows are new."""
    added = files_changed(table, since.adding, sign=1)
    if not added & files_changed(table, since.moving, sign=-1):
        files = pa.table({"new_file": pa.array(sorted(added), pa.string())})
        new = F.broadcast(rows.spark.createDataFrame(files))
        marked = live.join(new, F.col("file") == F.col("new_file"), "left")
        return marked.withColumn("is_new", F.col("new_file").isNotNull()).drop("new_file")
    if not since.add_by_appends:
        return None
    # Rows that moved since keep their offsets.
    appended = rows.appended(since.seen, since.until)
    new = appended.select(
        F.col("partition").alias("new_partition"), F.col("offset").alias("new_offset")
    ).distinct()
    is_same = (F.col("partition") == F.col("new_partition")) & (
        F.col("offset") == F.col("new_offset")
    )
    marked = live.join(new, is_same, "left")
    return marked.withColumn("is_new", F.col("new_offset").isNotNull()).drop(*new.columns)


def files_changed(table: Table, commits: Iterable[Snapshot], *, sign: int) -> set[str]:
    """Return the data files that commits added (`sign` is 1) or removed (`sign` is -1)."""
    return {
        file.path
        for commit in commits
        for changed, file in changed_files(table, commit)
        if changed == sign and file.is_data
    }


log = logging.getLogger(__name__)

_KNOWN = ("of_partition", "first", "last", "late_below", "log_end")


class EventClock(NamedTuple):
    """Clock for event times: a later time than `now_ms` plus `after_max_ms` counts as `now_ms`.

    The append time of a row is not known.
    """

    now_ms: int
    after_max_ms: int = 60 * 60 * 1000

    def event_time_ms(self) -> Column:
        """Return the event time of a row, in ms since the epoch."""
        is_future = F.col("timestamp_ms") > later(self.now_ms, self.after_max_ms)
        return F.when(is_future, F.lit(self.now_ms)).otherwise(F.col("timestamp_ms"))


class Arrivals(NamedTuple):
    """Rows that arrived up to a snapshot, by partition."""

    snapshot: int
    by_partition: Mapping[int, ArrivedRows]
    topics: frozenset[str]
    unplaced: int = 0  # rows without partition or offset, which no rule ever judges


def look(
    rows: AdoptedRows,
    states: Mapping[int, PartitionState],
    seen: int | None,
    clock: EventClock,
    until: int | None = None,
) -> Arrivals | None:
    """Sum up the rows that arrived after snapshot `seen`; return None if the table has no snapshot.

    If the commits do not show which rows are new, all live rows count as new. If another tool
    deleted rows, all live rows are counted again. Rows that ebbtide wrote are not new. `until` is
    the snapshot to read; default: the newest. Raise NotCoveredError if the table has records of
    several topics.
    """
    table = open_table(rows.spark, rows.table)
    current = table.current
    if current is None:
        return None
    snapshot = until or current.id
    counted = counted_rows(rows, table, snapshot, seen)
    if counted is None:
        return Arrivals(snapshot, {}, frozenset())
    if states and counted.are_all_new:
        log.warning(
            "cannot tell which rows arrived late: all below the end of the last round count as late"
        )
    size_bytes, count = (
        int(current.summary.get(name) or 0) for name in ("total-files-size", "total-records")
    )
    bytes_a_row = size_bytes / count if count else 0.0
    frame = counted.rows.withColumn("event_ms", clock.event_time_ms())
    found = _by_segment(rows.spark, frame, states)
    placed: dict[int, list[Row]] = {}
    for row in found:
        if row["partition"] is not None and row["rows"]:
            placed.setdefault(row["partition"], []).append(row)
    arrived = {
        partition: _of_partition(
            mine, bytes_a_row, is_known=partition in states, are_all=counted.are_all
        )
        for partition, mine in sorted(placed.items())
    }
    arrived = _with_missing(counted.rows, placed, states, arrived)
    topics = {row[name] for row in found for name in ("one_topic", "other_topic")} - {None}
    _check_topic(rows, frozenset(topics))
    gone = {p: no_rows(state) for p, state in states.items()} if counted.are_all else {}
    unplaced = sum(row["unplaced"] for row in found)
    return Arrivals(snapshot, gone | arrived, frozenset(topics), unplaced)


def _by_segment(
    spark: SparkSession, counted: DataFrame, states: Mapping[int, PartitionState]
) -> list[Row]:
    """Sum up the rows of each partition by its segments."""
    is_late = F.col("is_new") & (F.col("offset") < F.col("late_below"))
    is_late_tombstone = is_late & F.col("is_tombstone")
    is_unplaced = F.col("partition").isNull() | F.col("offset").isNull()
    is_first = F.col("is_new") & (F.col("offset") == 0)
    is_beyond = F.col("is_new") & (F.col("offset") >= F.coalesce(F.col("log_end"), F.lit(0)))
    beyond = F.when(is_beyond, F.col("offset"))
    rest = beyond % PRIME
    placed = _with_segments(spark, counted, states)
    return (
        placed.groupBy("partition", "first")
        .agg(
            F.count("offset").alias("rows"),
            F.count(F.when(F.col("is_new"), F.col("offset"))).alias("new_rows"),
            F.count(F.when(F.col("is_new") & is_unplaced, 1)).alias("unplaced"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min(F.when(F.col("timestamp_ms") >= 0, F.col("timestamp_ms"))).alias("first_ms"),
            F.max(F.when(~is_unplaced, F.col("timestamp_ms"))).alias("last_ms"),
            F.max("event_ms").alias("last_event_ms"),
            F.max(F.when(is_first, F.col("timestamp_ms"))).alias("first_again_ms"),
            F.min("topic").alias("one_topic"),
            F.max("topic").alias("other_topic"),
            F.min(F.when(is_late, F.col("offset"))).alias("first_late"),
            F.slice(
                F.array_sort(F.collect_set(F.when(is_late_tombstone, F.col("offset")))),
                1,
                MOST_LATE,
            ).alias("late"),
            F.max(F.when(is_late_tombstone, F.col("offset"))).alias("last_late"),
            F.count(beyond).alias("beyond"),
            F.min(beyond).alias("beyond_first"),
            # Null beyond 2^32 rows, which are then read again.
            F.try_sum(rest).alias("beyond_sum"),
            F.try_sum(rest * rest % PRIME).alias("beyond_squares"),
            F.bit_xor(beyond).alias("beyond_xor"),
        )
        .collect()
    )


def _with_missing(
    rows: DataFrame,
    found: Mapping[int, list[Row]],
    states: Mapping[int, PartitionState],
    arrivals: Mapping[int, ArrivedRows],
) -> dict[int, ArrivedRows]:
    """Add the offsets that never arrived; if the sums show a gap, the offsets are read again."""
    expected: dict[int, Expected] = {}
    asked: dict[int, int] = {}
    for partition, arrived in arrivals.items():
        mine = [row for row in found[partition] if row["beyond"]]
        if partition in states:
            mine = [row for row in mine if row["first"] is not None]
            first, missing = states[partition].log_end_offset, states[partition].missing
        else:
            first, missing = min((row["beyond_first"] for row in mine), default=0), ()
        expectation = expected[partition] = Expected(first, max(arrived.end_offset, first))
        count, total, squares = (
            sum(row[name] or 0 for row in mine)
            for name in ("beyond", "beyond_sum", "beyond_squares")
        )
        xor = reduce(operator.xor, (row["beyond_xor"] for row in mine), 0)
        if missing or not expectation.is_met_by(count, total, squares, xor):
            asked[partition] = min([first, *(of_range.first for of_range in missing)])
    offsets = _offsets_from(rows, asked) if asked else {}
    return {
        partition: arrived._replace(
            missing=with_arrivals(
                states[partition].missing if partition in states else (),
                states[partition].log_start_offset if partition in states else 0,
                expected[partition],
                offsets.get(partition, BitMap64()) if partition in asked else None,
            )
        )
        for partition, arrived in arrivals.items()
    }


def _offsets_from(rows: DataFrame, starts: Mapping[int, int]) -> dict[int, BitMap64]:
    """Return the offsets of new rows at or above each partition's start."""
    is_asked = any_column(
        (F.col("partition") == partition) & (F.col("offset") >= start)
        for partition, start in starts.items()
    )
    wanted = rows.where(F.col("is_new") & is_asked)
    return {p: offsets for (p,), offsets in number_sets(wanted, ["partition"], "offset").items()}


def _with_segments(
    spark: SparkSession, counted: DataFrame, states: Mapping[int, PartitionState]
) -> DataFrame:
    """Add the base offset of each row's segment; it is null in a new partition."""
    known = [
        (partition, first, last, late_below(state), state.log_end_offset)
        for partition, state in states.items()
        for first, last in _ranges(state)
    ]
    frame = F.broadcast(small_frame(spark, known, _KNOWN))
    is_its = (
        (F.col("partition") == F.col("of_partition"))
        & (F.col("offset") >= F.col("first"))
        & (F.col("offset") <= F.col("last"))
    )
    return counted.join(frame, is_its, how="left")


def _ranges(state: PartitionState) -> list[tuple[int, int]]:
    """Return the first and last offset of each segment; the last segment has no upper bound."""
    bases = [segment.base_offset for segment in state.segments]
    return list(zip(bases, [*(base - 1 for base in bases[1:]), MAX_LONG], strict=True))


def _of_partition(
    rows: list[Row], bytes_a_row: float, *, is_known: bool, are_all: bool
) -> ArrivedRows:
    """Sum up a partition's rows; in a known one, rows without a segment are below its start."""
    late = [row["first_late"] for row in rows if row["first_late"] is not None]
    again_ms = [row["first_again_ms"] for row in rows if row["first_again_ms"] is not None]
    last_offset = max(row["last_offset"] for row in rows)
    last_event_ms = max(row["last_event_ms"] for row in rows)
    below = [row for row in rows if row["first"] is None] if is_known else []
    if is_known:
        rows = [row for row in rows if row["first"] is not None]
    sums = {
        row["first"] or 0: SegmentSums(
            round(row["rows"] * bytes_a_row),
            -1 if row["first_ms"] is None else row["first_ms"],
            row["last_ms"],
            row["rows"],
        )
        for row in rows
    }
    tombstones = [tombstone_range for row in rows for tombstone_range in _late_tombstones(row)]
    return ArrivedRows(
        end_offset=last_offset + 1,
        by_segment=sums,
        first_late_offset=min(late, default=None),
        max_event_time_ms=last_event_ms,
        late_tombstones=tombstones,
        are_all=are_all,
        grown=frozenset(row["first"] or 0 for row in rows if row["new_rows"]),
        below_start=_range_of(below),
        newest_below_ms=max((row["last_ms"] for row in below), default=NEVER),
        first_again_ms=max(again_ms, default=NEVER),
    )


def _range_of(rows: list[Row]) -> OffsetRange | None:
    if not rows:
        return None
    last = max(row["last_offset"] for row in rows)
    return OffsetRange(min(row["first_offset"] for row in rows), last + 1)


def _late_tombstones(row: Row) -> list[OffsetRange]:
    if row["last_late"] is None:
        return []
    if row["late"][-1] < row["last_late"]:  # there are more
        return [OffsetRange(row["late"][0], row["last_late"] + 1)]
    return [OffsetRange(offset, offset + 1) for offset in row["late"]]


def _check_topic(rows: AdoptedRows, topics: frozenset[str]) -> None:
    known = topics if rows.ids.topic_name is None else topics | {rows.ids.topic_name}
    if len(known) > 1:
        raise NotCoveredError(
            f"expected records of one topic in {rows.table}, which was adopted as one topic, found "
            f"records of {', '.join(sorted(known))}. Run abandon_table, then adopt_table: it "
            "adopts each of them as its own topic"
        )
