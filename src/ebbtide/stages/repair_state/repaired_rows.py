"""Find rows that cannot stay after a foreign change, and headers that count too many records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import table_exists
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.deletes import Deleted, delete_positions
from ebbtide.iceberg.planned.planned_round import CleaningRound, PartitionRound, new_round_id
from ebbtide.iceberg.topics import Topic, current_snapshot
from ebbtide.log.erasures import ERASURES, REPORTED
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.rebuilding import LogInTables
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.number_sets import number_sets
from ebbtide.stages.clean_log.lost_round import lost_headers, rebuild_headers
from ebbtide.stages.planned_rows import PlannedRows

BEYOND, COPY, NO_BATCH, ERASED = "beyond the end", "copies", "without a batch", "erased"


class StrayRows(NamedTuple):
    """Rows of a table that cannot stay: how many by partition and reason, and where they lie.

    `leaving` describes records by partition for a plan that is kept.
    """

    by_reason: dict[int, dict[str, int]]
    positions: dict[str, BitMap64]  # by file
    leaving: dict[int, PlannedRows]

    @property
    def total(self) -> int:
        """The number of rows that go."""
        return sum(len(of) for of in self.positions.values())


def read_log_in_tables(topic: Topic) -> dict[int, LogInTables]:
    """Read where each partition's log starts and ends, from its batch rows."""
    if current_snapshot(topic.spark, topic.name.batches_table) is None:
        return {}
    rows = (
        topic.spark.table(topic.name.batches_table)
        .groupBy("partition", "segment")
        .agg(
            F.min("base_offset").alias("start"),
            F.max("last_offset").alias("last"),
            F.max("max_timestamp_ms").alias("newest_ms"),
            F.max("max_event_time_ms").alias("event_ms"),
        )
        .orderBy("partition", "segment")
        .collect()
    )
    held: dict[int, LogInTables] = {}
    for row in rows:
        one = LogInTables(
            row["start"],
            row["last"] + 1,
            (SegmentStart(row["segment"], -1 if row["newest_ms"] is None else row["newest_ms"]),),
            -1 if row["event_ms"] is None else row["event_ms"],
        )
        before = held.get(row["partition"], one)
        held[row["partition"]] = LogInTables(
            min(before.start, one.start),
            max(before.end, one.end),
            one.segments if before is one else before.segments + one.segments,
            max(before.max_event_time_ms, one.max_event_time_ms),
        )
    return held


def doubled_rows(topic: Topic) -> list[str]:
    """Return how many rows each table has a second time, a line for each partition with some."""
    lines: list[str] = []
    for what, table, offset in (
        ("records", topic.name.records_table, "offset"),
        ("batches", topic.name.batches_table, "base_offset"),
    ):
        if current_snapshot(topic.spark, table) is None:
            continue
        counts = (
            topic.spark.table(table)
            .groupBy("partition")
            .agg((F.count(offset) - F.countDistinct(offset)).alias("copies"))
            .where("copies > 0")
            .orderBy("partition")
        )
        lines += [
            f"{what}: {row['copies']} rows of partition {row['partition']} are there twice"
            for row in counts.collect()
        ]
    return lines


def find_removals(
    topic: Topic, states: Mapping[int, PartitionState], *, keeps_offsets: bool = False
) -> dict[str, StrayRows]:
    """Find rows beyond the log end, duplicates, rows without a batch, and erased rows."""
    spark, name = topic.spark, topic.name
    ends = spark.createDataFrame(
        pa.table(
            {
                "partition": pa.array(states, pa.int32()),
                "end": pa.array([of.log_end_offset for of in states.values()], pa.int64()),
            }
        )
    )
    removals = {}
    if current_snapshot(spark, name.batches_table) is not None:
        batches = _numbered(topic, name.batches_table, "base_offset").join(ends, "partition")
        reason = F.when(F.col("base_offset") >= F.col("end"), BEYOND).when(F.col("copy") > 1, COPY)
        removals["batches"] = _removal(batches, reason, keeps_offsets=False)
    if current_snapshot(spark, name.records_table) is not None:
        told = spark.table(name.batches_table).select(
            "partition", F.col("base_offset").alias("batch"), F.lit(True).alias("is_told")
        )
        records = _with_erased(topic, _numbered(topic, name.records_table, "offset"))
        records = records.join(ends, "partition").join(
            told.distinct(), ["partition", "batch"], "left"
        )
        reason = (
            F.when(F.col("offset") >= F.col("end"), BEYOND)
            .when(F.col("copy") > 1, COPY)
            .when(F.col("is_told").isNull(), NO_BATCH)
            .when(F.col("offset") < F.col("erased_before"), ERASED)
        )
        removals["records"] = _removal(records, reason, keeps_offsets=keeps_offsets)
    return removals


def find_taken_back(topic: Topic, snapshot: int) -> dict[int, PlannedRows]:
    """Find the records that the log has no more once their table is back at a snapshot."""
    table = topic.name.records_table
    versions = ("", f" VERSION AS OF {snapshot}")
    current, before = (
        number_sets(
            topic.spark.sql(f"SELECT `partition`, offset FROM {table}{version}"),
            ["partition"],
            "offset",
        )
        for version in versions
    )
    leaving = {p: of - before.get((p,), BitMap64()) for (p,), of in current.items()}
    return {partition: PlannedRows(offsets) for partition, offsets in leaving.items() if offsets}


def _numbered(topic: Topic, table: str, offset: str) -> DataFrame:
    """Return the rows with their places; of those with the same offset the oldest has number 1."""
    return topic.spark.sql(
        f"SELECT *, _file AS file, _pos AS pos, row_number() OVER (PARTITION BY `partition`, "
        f"{offset} ORDER BY _last_updated_sequence_number, _file, _pos) AS copy FROM {table}"
    )


def _with_erased(topic: Topic, records: DataFrame) -> DataFrame:
    """Add `erased_before`: the offset below which an erasure removed the record's key."""
    spark = topic.spark
    if not table_exists(spark, ERASURES.in_catalog()):
        return records.withColumn("erased_before", F.lit(None).cast("long"))
    erased = (
        spark.table(ERASURES.in_catalog())
        .where((F.col("topic") == str(topic.name)) & (F.col("status") == REPORTED))
        .where(F.col("out_of_table_at").isNotNull() & F.col("tombstone_offset").isNotNull())
        .groupBy("partition", "key_sha256")
        .agg(F.max("tombstone_offset").alias("erased_before"))
    )
    hashed = records.withColumn("key_sha256", F.sha2("key", 256))
    return hashed.join(F.broadcast(erased), ["partition", "key_sha256"], "left")


def _removal(rows: DataFrame, reason: Column, *, keeps_offsets: bool) -> StrayRows:
    stray = rows.withColumn("reason", reason).where(F.col("reason").isNotNull())
    by_reason: dict[int, dict[str, int]] = {}
    by_file: dict[str, BitMap64] = {}
    of_groups = number_sets(stray, ["file", "partition", "reason"], "pos")
    for (file, partition, why), positions in of_groups.items():
        of_partition = by_reason.setdefault(partition, {})
        of_partition[why] = of_partition.get(why, 0) + len(positions)
        of_file = by_file.setdefault(file, BitMap64())
        of_file |= positions
    return StrayRows(by_reason, by_file, _described(stray) if keeps_offsets else {})


def _described(stray: DataFrame) -> dict[int, PlannedRows]:
    """Return the offsets of the records, their first and last event time, and two keys."""
    offsets = number_sets(stray, ["partition"], "offset")
    times = [F.unix_millis(side("event_time")) for side in (F.min, F.max)]
    keys = [side("key") for side in (F.min, F.max)]
    described = {}
    for partition, oldest, newest, *of_keys in (
        stray.groupBy("partition").agg(*times, *keys).collect()
    ):
        described[partition] = PlannedRows(
            offsets[(partition,)],
            tuple(ms for ms in (oldest, newest) if ms is not None),
            tuple(dict.fromkeys(bytes(key) for key in of_keys if key is not None)),
        )
    return described


def remove_rows(topic: Topic, table: str, removal: StrayRows, step: Step) -> Deleted:
    """Delete them as one commit."""
    ends = dict.fromkeys(removal.by_reason, MAX_OFFSET)
    return delete_positions(topic.spark, table, ends, removal.positions, step)


def rebuild_all_headers(topic: Topic, now_ms: int) -> int:
    """Rebuild the headers that count more records than there are; return how many."""
    whole_log = _whole_log(topic.config, topic.partitions, now_ms)
    return sum(rebuild_headers(topic, changes) for changes in lost_headers(topic, whole_log))


def _whole_log(
    config: TopicConfig, states: Mapping[int, PartitionState], now_ms: int
) -> CleaningRound:
    """Return a round that covers all that the partitions hold."""
    parts = {
        partition: PartitionRound(
            log_start_offset=state.log_start_offset,
            first_segment_offset=state.first_segment,
            first_dirty_offset=state.log_start_offset,
            first_uncleanable_offset=state.log_end_offset,
            is_idle=True,
        )
        for partition, state in states.items()
    }
    return CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        segment_bytes=config.segment_bytes,
        records_snapshot=-1,
        batches_snapshot=-1,
        partitions=parts,
    )
