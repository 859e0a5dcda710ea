"""Rows of a copied table that came below the log end offset: repeats, and late rows.

A log takes records at its end only: readers, marks and rounds have passed what is below. So a late
row goes to the quarantine table, whole, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.columns.ingested_records import INGESTED_SCHEMA
from ebbtide.columns.live_records import to_records
from ebbtide.iceberg.adopted.copied_rows import records_of
from ebbtide.iceberg.topics import Topic
from ebbtide.stages.ingest_table.window_plan import CopyPlan, with_ends
from ebbtide.stages.ingest_topic.slices import log_ends
from ebbtide.stages.mark_tombstones.quarantine import RunOf, copy_to_quarantine

LATE_ROW = "late_row"
_PLACE = ["partition", "offset"]
_TIME = pa.timestamp("us", tz="UTC")


class LateOffsets(NamedTuple):
    """Late rows of a partition: how many, and the least and greatest of their offsets."""

    rows: int
    first_offset: int
    last_offset: int


class LateRows(NamedTuple):
    """Late rows by partition; the snapshot that holds those new to the quarantine, if any are."""

    by_partition: Mapping[int, LateOffsets]
    snapshot: int | None

    def note(self, table: str) -> str:
        """Return which rows are late, and where they are now."""
        places = ", ".join(
            f"{of.rows} of partition {partition} with offsets {of.first_offset} to {of.last_offset}"
            for partition, of in self.by_partition.items()
        )
        return (
            f"rows came below the log end offset after it had been copied: {places}; the log takes "
            f"none there, so they are in {table}, with the reason {LATE_ROW}"
        )


def take_late_rows(topic: Topic, plan: CopyPlan, run: RunOf) -> LateRows:
    """Put the window's late rows into the quarantine; those of a killed run are there already.

    A row is a repeat if the table had it before the window, or if the topic has it.
    """
    found = _late(topic, plan).persist()
    try:
        by_partition = _by_partition(found)
        if not by_partition:
            return LateRows({}, None)
        as_rows = partial(_as_records, run.now)
        return LateRows(by_partition, copy_to_quarantine(topic, found, LATE_ROW, run, as_rows))
    finally:
        found.unpersist()


def _late(topic: Topic, plan: CopyPlan) -> DataFrame:
    window, spark, rows = plan.window, topic.spark, plan.source.rows
    assert window.records is not None
    assert window.seen is not None
    ends = {partition: (plan.copied.ends.get(partition, 0), 0) for partition in log_ends(topic)}
    is_below = F.col("offset") < F.col("end_before")
    candidates = with_ends(spark, window.records, ends).where(is_below)
    candidates = candidates.drop("of_partition", "end_before", "log_end")
    candidates = candidates.dropDuplicates(_PLACE)
    held = spark.table(topic.name.records_table).select(_PLACE)
    late = candidates.join(held, _PLACE, "left_anti")
    if rows.can_read(window.seen):
        before = records_of(rows, rows.at(window.seen), is_stamped=False).select(_PLACE)
        late = late.join(before, _PLACE, "left_anti")
    return late


def _by_partition(found: DataFrame) -> dict[int, LateOffsets]:
    sums = found.groupBy("partition").agg(F.count(F.lit(1)), F.min("offset"), F.max("offset"))
    return {partition: LateOffsets(*of) for partition, *of in sorted(sums.collect())}


def _as_records(now: datetime, rows: DataFrame) -> DataFrame:
    """Return rows of the Kafka source as records, each a batch and a segment of its own."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at = pa.scalar(now, _TIME)
        for batch in batches:
            table = pa.Table.from_batches([batch])
            offsets = table["offset"].to_numpy()
            records = to_records(table, offsets, offsets, at).select(INGESTED_SCHEMA.names)
            yield from records.cast(INGESTED_SCHEMA).to_batches()

    schema = from_arrow_schema(INGESTED_SCHEMA)
    return rows.mapInArrow(convert, schema)  # type: ignore[arg-type]
