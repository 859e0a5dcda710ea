"""Plan what a run copies of a table: its rows by partition and offsets, and those that are late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.copied_rows import Window, window_until
from ebbtide.iceberg.adopted.rows import small_frame
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.adopted.copied import PARTS_OF_SLICE, CopiedTable, RowsOfOffsets
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.ingest_table.source import OpenedTable
from ebbtide.stages.ingest_topic.slices import log_ends

# In place of a number of offsets: rows below where the run before ended, and below the log end.
_BELOW, _TAKEN = -1, -2


@dataclass(slots=True)
class PlannedPartition:
    """A partition's new rows in order of offsets, and where they begin; how many lie below."""

    first_offset: int
    parts: list[RowsOfOffsets] = field(default_factory=list)
    below: int = 0  # rows below the end that the run before left: repeats, or late

    @property
    def rows(self) -> int:
        """How many rows are new, repeats included."""
        return sum(part.rows for part in self.parts)

    @property
    def end_offset(self) -> int:
        """The log end offset once they are copied."""
        return self.parts[-1].end_offset if self.parts else self.first_offset


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The rows that a run copies of one snapshot, and the state that says so."""

    topic: Topic
    source: OpenedTable
    window: Window
    copied: CopiedTable  # with `until` and `ends` of this window
    partitions: Mapping[int, PlannedPartition]
    unplaced: int = 0  # rows without partition or offset

    @property
    def is_told_by_offsets(self) -> bool:
        """Whether offsets alone tell what is new, so that nobody can tell late rows."""
        return self.window.seen is None and bool(self.copied.ends)

    @property
    def seen(self) -> CopiedTable:
        """The source once all of the window's rows are copied."""
        return replace(self.copied, seen=self.window.until, until=None, ends={})

    def notes(self) -> list[str]:
        """Return what the numbers do not say."""
        notes = [self.source.profile.warning] if self.copied.seen is None else []
        if self.is_told_by_offsets:
            notes.append(
                "the table's snapshots do not tell which rows came since the last run, so rows are "
                "taken from the log end offsets on; whether any came below them meanwhile, nobody "
                "can tell"
            )
        if self.unplaced:
            notes.append(f"{self.unplaced} rows have no partition or no offset: none was copied")
        return [note for note in notes if note]

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic=described(self.source, self.window.until))
        for partition, of in self.partitions.items():
            state = self.topic.partitions.get(partition)
            start = of.first_offset if state is None else state.log_start_offset
            outcome.partitions[partition] = {
                "log_start_offset": start,
                "low_watermark": self.topic.low_watermark(start),
                "log_end_offset": of.end_offset,
                "offsets": of.end_offset - of.first_offset,
                "rows": of.rows,
                "rows_below": of.below,
            }
        if notes := self.notes():
            outcome.topic["note"] = "; ".join(notes)
        return outcome


def described(source: OpenedTable, snapshot: int) -> dict[str, Any]:
    """Return what is to be said of the source."""
    of = source.rows.layout
    parts = ("partition", "offset", "timestamp", "key", "headers", "topic", "mark")
    found = ((part, getattr(of, part)) for part in parts)
    columns = [f"{part}: {column.name}" for part, column in found if column is not None]
    columns += [f"value: {column.name}" for column in of.values]
    if not of.values:
        columns.append("value: JSON of the other columns")
    return {
        "source": source.upstream,
        "layout": f"{source.profile.writer} ({source.profile.source})",
        "columns": columns,
        "source_snapshot": str(snapshot),
    }


def plan_copy(topic: Topic, source: OpenedTable, most: int) -> CopyPlan | None:
    """Plan the window that a killed run began, or else all up to the newest snapshot.

    None where the table has no snapshot that is not copied.
    """
    rows, copied = source.rows, source.copied
    until, ends = copied.until, copied.ends
    if until is None or not rows.can_read(until):
        until, ends = current_snapshot(rows.spark, rows.table), log_ends(topic)
    if until is None or until == copied.seen:
        return None
    is_stamped = topic.config.message_timestamp_type == "LogAppendTime"
    window = window_until(rows, until, copied.seen, is_stamped=is_stamped)
    copied = replace(copied, until=until, ends=ends)
    if window.records is None:
        return CopyPlan(topic, source, window, copied, {})
    width = max(1, most // PARTS_OF_SLICE)
    partitions, unplaced = _counted(topic, window.records, ends, width)
    if window.seen is None:  # all rows of the table, most of them copied long ago
        for of in partitions.values():
            of.below = 0
    return CopyPlan(topic, source, window, copied, partitions, unplaced)


def _counted(
    topic: Topic, records: DataFrame, ends: Mapping[int, int], width: int
) -> tuple[dict[int, PlannedPartition], int]:
    """Count the rows of each partition by `width` offsets; also those that have no place."""
    now = log_ends(topic)
    is_taken, is_below = F.col("offset") < F.col("log_end"), F.col("offset") < F.col("end_before")
    from_start = F.col("offset") - F.coalesce(F.col("log_end"), F.lit(0))
    part = F.when(is_below, _BELOW).when(is_taken, _TAKEN).otherwise(F.floor(from_start / width))
    counts = (
        with_ends(topic.spark, records, {p: (ends.get(p, 0), end) for p, end in now.items()})
        .select("partition", "offset", part.alias("part"))
        .groupBy("partition", "part")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        .collect()
    )
    partitions: dict[int, PlannedPartition] = {}
    unplaced = sum(of["rows"] for of in counts if None in (of["partition"], of["part"]))
    placed = [of for of in counts if None not in (of["partition"], of["part"])]
    for row in sorted(placed, key=lambda of: of["part"]):
        partition = row["partition"]
        first = now.get(partition, row["first"])
        planned = partitions.setdefault(partition, PlannedPartition(first))
        if row["part"] == _BELOW:
            planned.below = row["rows"]
        elif row["part"] != _TAKEN:
            planned.parts.append(RowsOfOffsets(row["rows"], row["last"] + 1))
    return dict(sorted(partitions.items())), unplaced


def with_ends(
    spark: SparkSession, records: DataFrame, ends: Mapping[int, tuple[int, int]]
) -> DataFrame:
    """Add the log end offsets of a window's begin and of now, null for a new partition."""
    known = [(partition, *both) for partition, both in ends.items()]
    frame = small_frame(spark, known, ("of_partition", "end_before", "log_end"))
    is_its = F.col("partition") == F.col("of_partition")
    return records.join(F.broadcast(frame), is_its, "left")
