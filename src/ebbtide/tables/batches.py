"""Batch rows as values: read for the decisions in `log`, and changed by their results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.frames.batches import segment_totals, undecided_transactions
from ebbtide.log.batches import Batch
from ebbtide.log.segments import Segment, segment_of
from ebbtide.log.state import PartitionState

CHANGED = ("attributes", "base_timestamp_ms", "max_timestamp_ms", "record_count", "size_bytes")
CHANGES_VIEW = "ebbtide_batch_changes"


def read_batches(batches: DataFrame, partitions: Iterable[int]) -> dict[int, list[Batch]]:
    """The headers of whole partitions, in offset order."""
    rows = (
        batches.where(F.col("partition").isin(list(partitions)))
        .select("partition", *Batch._fields)
        .toArrow()
        .sort_by([("partition", "ascending"), ("base_offset", "ascending")])
    )
    columns = [rows.column(name).to_pylist() for name in ("partition", *Batch._fields)]
    logs: dict[int, list[Batch]] = defaultdict(list)
    for partition, *header in zip(*columns, strict=True):
        logs[partition].append(Batch(*header))
    return logs


def read_segments(
    batches: DataFrame, states: Mapping[int, PartitionState]
) -> dict[int, list[Segment]]:
    """Each partition's logical segments with what their batches add up to.

    Rows before the first segment (what is kept of producers only) count for none.
    """
    totals = {
        partition: {base: Segment(base, modified) for base, modified in state.segments}
        for partition, state in states.items()
    }
    bases = {partition: list(segments) for partition, segments in totals.items()}
    for row in segment_totals(batches).orderBy("partition", "segment").collect():
        segments = totals.get(row["partition"])
        if segments is None or row["segment"] < bases[row["partition"]][0]:
            continue
        base = segment_of(bases[row["partition"]], row["segment"])
        segments[base] = _with(segments[base], row.asDict())
    return {partition: list(segments.values()) for partition, segments in totals.items()}


def _with(segment: Segment, row: Mapping[str, int]) -> Segment:
    """The segment with one more source file's totals; files come in offset order."""
    first_ms = segment.first_batch_timestamp_ms
    return segment._replace(
        size_bytes=segment.size_bytes + row["size_bytes"],
        max_timestamp_ms=max(segment.max_timestamp_ms, row["max_timestamp_ms"]),
        first_batch_timestamp_ms=row["first_batch_timestamp_ms"] if first_ms is None else first_ms,
        max_event_time_ms=max(segment.max_event_time_ms, row["max_event_time_ms"]),
        max_append_time_ms=max(segment.max_append_time_ms, row["max_append_time_ms"]),
    )


def read_undecided(batches: DataFrame) -> dict[int, dict[int, int]]:
    """First offset of each open transaction: {partition: {producer id: offset}}."""
    undecided: dict[int, dict[int, int]] = defaultdict(dict)
    for row in undecided_transactions(batches).collect():
        undecided[row["partition"]][row["producer_id"]] = row["first_offset"]
    return undecided


def changes_table(changes: Iterable[tuple[int, Batch, Batch | None, int]]) -> pa.Table:
    """Rows for `merge_changes`: (partition, before, after or None, max event time in ms)."""
    rows = [
        {
            "partition": partition,
            "base_offset": before.base_offset,
            "is_removed": after is None,
            "max_event_time_ms": max_event_time_ms,
            **{name: getattr(after or before, name) for name in CHANGED},
        }
        for partition, before, after, max_event_time_ms in changes
    ]
    return pa.Table.from_pylist(rows, schema=_CHANGES_SCHEMA)


_CHANGES_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("is_removed", pa.bool_()),
        ("max_event_time_ms", pa.int64()),
        ("attributes", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("record_count", pa.int32()),
        ("size_bytes", pa.int32()),
    ]
)


def merge_changes(spark: SparkSession, batches_table: str, changes: pa.Table) -> None:
    """Rewrite or remove the batch rows named by `changes`, in one commit."""
    spark.createDataFrame(changes).createOrReplaceTempView(CHANGES_VIEW)
    partitions = ", ".join(str(p) for p in sorted(set(changes.column("partition").to_pylist())))
    assignments = ", ".join(
        f"batch.{name} = change.{name}" for name in (*CHANGED, "max_event_time_ms")
    )
    spark.sql(
        f"""
        MERGE INTO {batches_table} AS batch USING {CHANGES_VIEW} AS change
        ON batch.`partition` = change.`partition` AND batch.base_offset = change.base_offset
            AND batch.`partition` IN ({partitions})
        WHEN MATCHED AND change.is_removed THEN DELETE
        WHEN MATCHED THEN UPDATE SET {assignments}, batch.crc = NULL
        """
    )
