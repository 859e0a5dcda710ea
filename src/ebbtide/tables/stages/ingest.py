"""ingest_segments: what a log directory holds beyond the tables' ends goes into the tables.

Order: records, batches, state. Each table is resumed from its own end, so a killed ingest is
finished without a duplicate or a hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CorruptSegmentError, EbbtideError, ForeignLogError
from ebbtide.log.names import TopicName
from ebbtide.log.state import PartitionState, to_properties
from ebbtide.records.log_directory import Manifest, PartitionDirectory
from ebbtide.tables.batches import read_undecided
from ebbtide.tables.commits import Step, commit
from ebbtide.tables.runs import Outcome
from ebbtide.tables.schema import create_topic
from ebbtide.tables.sources import (
    FileToWalk,
    RecordsToRead,
    log_append_batches,
    records_frame,
    walk_files,
)
from ebbtide.tables.stages.source_log import HeldLog, SourceLog, take_log
from ebbtide.tables.topics import Changes, Topic, compare_and_set, current_snapshot, exists, load

# A batch may be larger than max.message.bytes, which can be lowered; it is corrupt beyond this.
MAX_BATCH_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """What one run ingests from, and what it may accept."""

    directories: Sequence[PartitionDirectory]
    manifest: Manifest | None
    now: datetime
    accept_gap: bool = False

    def of(self, name: TopicName) -> list[PartitionDirectory]:
        """The partitions of one topic."""
        return [directory for directory in self.directories if directory.topic == name.topic]


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The part of each partition's source log that the tables do not hold yet."""

    topic: Topic
    source: Source
    logs: dict[int, SourceLog]

    def outcome(self) -> Outcome:
        """The numbers of the plan; `error` where a part of the source was refused."""
        outcome = Outcome()
        for partition, log in self.logs.items():
            outcome.partitions[partition] = {
                "log_start_offset": log.log_start_offset,
                "low_watermark": log.log_start_offset,
                "log_end_offset": log.log_end_offset,
                "records": log.records,
                "batches": log.batches.num_rows,
                "bytes": log.bytes,
                "segments": len({*log.batches.column("segment").to_pylist()}),
                "skipped": log.skipped,
            }
        errors = [error for log in self.logs.values() for error in log.errors]
        if errors:
            outcome.error = errors[0] if len(errors) == 1 else _joined(errors)
        return outcome


def _joined(errors: Sequence[EbbtideError]) -> EbbtideError:
    return type(errors[0])("\n".join(str(error) for error in errors))


def ingest_topic(
    spark: SparkSession, name: TopicName, source: Source, *, is_plan_only: bool = False
) -> Outcome:
    """Create the topic where it is new and take what is new; one bad file stops its partition."""
    _create(spark, name, source)
    refused: dict[str, str] = {}
    while True:
        plan = plan_ingest(load(spark, name), source, refused)
        try:
            return plan.outcome() if is_plan_only else execute_ingest(plan)
        except PythonException as error:
            # A batch whose CRC is right and whose records are not shows only when it is decoded.
            path, message = _undecodable(error, plan)
            refused[path] = message


def _undecodable(error: PythonException, plan: IngestPlan) -> tuple[str, str]:
    text = str(error)
    marker = f"{CorruptSegmentError.__name__}: "
    if marker in text:
        message = text.split(marker, 1)[1].splitlines()[0]
        for log in plan.logs.values():
            for path in log.paths:
                if path in message:
                    return path, message
    raise error


def _create(spark: SparkSession, name: TopicName, source: Source) -> None:
    topic_ids = {d.topic_id for d in source.of(name) if d.topic_id is not None}
    if len(topic_ids) > 1:
        raise ForeignLogError(
            f"expected one topic id in the partition.metadata files of {name.topic}, found "
            f"{', '.join(sorted(topic_ids))}: partitions of different topics were mixed"
        )
    if exists(spark, name):
        return
    config = {} if source.manifest is None else source.manifest.topic_configs.get(name.topic, {})
    properties = {f"kafka.{setting}": value for setting, value in config.items()}
    if topic_ids:
        properties["kafka.topic.id"] = topic_ids.pop()
    commit(Step.CREATE_TOPIC, lambda: create_topic(spark, name, properties))


def plan_ingest(topic: Topic, source: Source, refused: Mapping[str, str]) -> IngestPlan:
    """Walk the source's files and decide how much of each partition is taken."""
    config = topic.config
    directories = {d.partition: d for d in source.of(topic.name)}
    _check_topic_id(topic, directories.values())
    files = [
        FileToWalk(d.partition, file.path, file.base_offset, file is d.segments[-1])
        for d in directories.values()
        for file in _unread(d, topic.partitions.get(d.partition))
    ]
    limit = max(MAX_BATCH_BYTES, config.max_message_bytes)
    walked = walk_files(topic.spark, files, limit) if files else None
    held = _held(topic, directories)
    undecided = read_undecided(topic.spark.table(topic.name.batches_table))
    logs = {
        partition: take_log(
            directory,
            walked,
            held[partition],
            undecided.get(partition, {}),
            refused,
            is_gap_allowed=config.is_compacted or source.accept_gap,
            is_compacted=config.is_compacted,
        )
        for partition, directory in directories.items()
    }
    return IngestPlan(topic, source, logs)


def _check_topic_id(topic: Topic, directories: Any) -> None:
    expected = topic.config.topic_id
    for directory in directories:
        found = directory.topic_id
        if expected is not None and found is not None and found != expected:
            raise ForeignLogError(
                f"expected topic id {expected} for {topic.name}, found {found} in "
                f"{directory.path}: the topic was deleted and created anew; ingest it under "
                "another cluster name, or drop the table to begin anew"
            )


def _unread(directory: PartitionDirectory, state: PartitionState | None) -> Sequence[Any]:
    """Segment files from the one on that holds the last batch of the table."""
    segments = directory.segments
    if state is None:
        return segments
    starts = [i for i, f in enumerate(segments) if f.base_offset < max(state.log_end_offset, 1)]
    return segments[starts[-1] if starts else 0 :]


def _held(topic: Topic, directories: Mapping[int, PartitionDirectory]) -> dict[int, HeldLog]:
    """Where each table's copy of each partition ends."""
    spark, states = topic.spark, topic.partitions
    record_ends = _ends(spark, topic.name.records_table, "offset")
    batch_ends = _ends(spark, topic.name.batches_table, "last_offset")
    last_batches = _last_batches(topic) if states else {}
    return {
        partition: HeldLog(
            states.get(partition),
            records_end=record_ends.get(partition, 0),
            batches_end=batch_ends.get(partition, 0),
            last_batch=last_batches.get(partition),
        )
        for partition in directories
    }


def _ends(spark: SparkSession, table: str, column: str) -> dict[int, int]:
    """One past the largest `column` that each partition's files hold, from manifests alone."""
    rows = spark.sql(
        f"SELECT partition.`partition` AS p, max(readable_metrics.{column}.upper_bound) AS last "
        f"FROM {table}.data_files GROUP BY 1"
    ).collect()
    return {row["p"]: row["last"] + 1 for row in rows}


def _last_batches(topic: Topic) -> dict[int, dict[str, Any]]:
    columns = "struct(base_offset, last_offset, leader_epoch, attributes, record_count, crc)"
    rows = (
        topic.spark.table(topic.name.batches_table)
        .groupBy("partition")
        .agg(F.max(F.expr(columns)).alias("last"))
        .collect()
    )
    return {row["partition"]: row["last"].asDict() for row in rows}


def execute_ingest(plan: IngestPlan) -> Outcome:
    """Append the planned records, then their batches, then move the state."""
    outcome = plan.outcome()
    topic = plan.topic
    spark, name = topic.spark, topic.name
    append_time = pa.scalar(plan.source.now, pa.timestamp("us", tz="UTC"))
    ranges = [r for p, log in plan.logs.items() for r in _ranges(p, log)]
    if ranges:
        frame = records_frame(spark, ranges, append_time)
        commit(Step.INGEST_RECORDS, frame.writeTo(name.records_table).append)
        outcome.snapshot_ids.append(current_snapshot(spark, name.records_table) or -1)
    new = [log.batches_to_write(partition) for partition, log in plan.logs.items()]
    headers = pa.concat_tables([table for table in new if table.num_rows] or new[:1])
    if headers.num_rows:
        rows = _batch_rows(topic, headers, plan)
        commit(Step.INGEST_BATCHES, rows.writeTo(name.batches_table).append)
        outcome.snapshot_ids.append(current_snapshot(spark, name.batches_table) or -1)
    compare_and_set(topic, Step.INGEST_STATE, lambda current: _ingested(current, plan))
    return outcome


def _ranges(partition: int, log: SourceLog) -> list[RecordsToRead]:
    """One byte range a file that has records which the records table does not hold."""
    return [
        RecordsToRead(
            partition,
            file.path,
            file.from_position,
            file.to_position,
            max(log.records_from, log.log_start_offset),
            file.segment,
            log_append_batches(file.header),
        )
        for file in log.record_files()
    ]


def _batch_rows(topic: Topic, headers: pa.Table, plan: IngestPlan) -> DataFrame:
    """Headers with the largest event time of their records, which are in the table by now."""
    spark = topic.spark
    starts = {p: int(log.batches_from) for p, log in plan.logs.items()}
    first = min(starts.values(), default=0)
    append_ms = F.unix_millis("append_time")
    event_ms = F.unix_millis("event_time")
    limit = append_ms + topic.config.message_timestamp_after_max_ms
    newest = (
        spark.table(topic.name.records_table)
        .where(F.col("partition").isin(list(starts)) & (F.col("offset") >= first))
        .groupBy(F.col("partition"), F.col("batch").alias("base_offset"))
        .agg(
            F.max(F.when(event_ms > limit, append_ms).otherwise(event_ms)).alias("_event_ms"),
            F.max(append_ms).alias("_append_ms"),
        )
    )
    now_ms = int(plan.source.now.timestamp() * 1000)
    return (
        spark.createDataFrame(headers)
        .join(newest, ["partition", "base_offset"], "left")
        .withColumn("max_event_time_ms", F.coalesce("_event_ms", F.lit(-1)))
        .withColumn("append_time_ms", F.coalesce("_append_ms", F.lit(now_ms)))
        .select(*spark.table(topic.name.batches_table).columns)
    )


def _ingested(current: Topic, plan: IngestPlan) -> Changes:
    spark, name = current.spark, current.name
    newest = {
        row["partition"]: row["newest"]
        for row in spark.table(name.batches_table)
        .groupBy("partition")
        .agg(F.max("max_event_time_ms").alias("newest"))
        .collect()
    }
    changes: dict[str, str | None] = {}
    for partition, log in plan.logs.items():
        state = current.partitions.get(partition)
        after = log.state_after(state, newest.get(partition, -1))
        if after is not None and after != state:
            changes |= to_properties(partition, after)
    return changes
