"""Take a slice of a source that tells no record batches: append its records, then their batches.

Batches are worked out from the records in the table, so a killed slice is finished without the
source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.brokers.kafka_source import live_records
from ebbtide.columns.live_records import ActiveSegment
from ebbtide.columns.slices import slices_by_value
from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.live_offsets import Range, Ranges, Slice
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.runs.application import to_ms
from ebbtide.spark.conditions import any_of
from ebbtide.stages.ingest_segments.append import (
    IngestOutcome,
    add_ingested,
    add_slice,
    append_batches,
    append_records,
    outcome_of,
    state_changes,
)
from ebbtide.stages.ingest_segments.event_time import event_time_of, failing_clearly
from ebbtide.stages.ingest_segments.source_log import HeldLog, SourceLog
from ebbtide.stages.ingest_segments.table_ends import read_ingested
from ebbtide.stages.ingest_topic.slice_batches import batches_of_slice

# The changes of the state with which a slice ends, beside those of its partitions.
OnEnd = Callable[[Topic], PropertyChanges]


def check_ends(current: Topic, planned: Topic, ranges: Ranges) -> None:
    """Raise CommitConflictError where another ingest has moved an end since the slice's plan."""
    ends, expected = log_ends(current), log_ends(planned)
    for partition in ranges:
        if ends.get(partition) != expected.get(partition):
            raise CommitConflictError(
                f"expected the log end offset of {current.name} partition {partition} to be as "
                "planned, found that another ingest moved it; run the job again"
            )


def log_ends(topic: Topic) -> dict[int, int]:
    """Return the log end offset of each partition."""
    return {partition: state.log_end_offset for partition, state in topic.partitions.items()}


def append_slice(topic: Topic, piece: Slice, source: DataFrame) -> int:
    """Append the slice's rows of the source, cut into batches and segments; the snapshot's id."""
    rows = live_records(source, _active_segments(topic, piece), topic.config, piece.now)
    return append_records(topic, rows, event_time_of(topic.spark, topic.config.event_time))


def _active_segments(topic: Topic, piece: Slice) -> dict[int, ActiveSegment]:
    """Return the segment of each partition that goes on growing, and what it holds."""
    active = {}
    for partition, offsets in piece.ranges.items():
        state = topic.partitions.get(partition)
        begun = (
            SegmentStart(offsets.start, to_ms(piece.now)) if state is None else state.segments[-1]
        )
        active[partition] = ActiveSegment(*begun)
    is_active = any_of(
        f"`partition` = {p} AND base_offset >= {segment.base_offset}"
        for p, segment in active.items()
    )
    first_ms = "CASE WHEN attributes & 8 != 0 THEN max_timestamp_ms ELSE base_timestamp_ms END"
    sums = (
        topic.spark.table(topic.name.batches_table)
        .where(is_active)
        .groupBy("partition")
        .agg(F.sum("size_bytes"), F.min_by(F.expr(first_ms), "base_offset"))
        .collect()
    )
    for partition, *sum_and_first in sums:
        base_and_created = active[partition][:2]
        active[partition] = ActiveSegment(*base_and_created, *sum_and_first)
    return active


def held_before(topic: Topic, piece: Slice) -> dict[int, HeldLog]:
    """Return where each partition ended before the slice, which nobody has begun."""
    return {partition: HeldLog(topic.partitions.get(partition)) for partition in piece.ranges}


def finish_slice(
    topic: Topic, piece: Slice, held: Mapping[int, HeldLog], done: IngestOutcome, on_end: OnEnd
) -> Topic:
    """Append the batches of the slice's records, which are in their table, and move the state."""
    event_time = event_time_of(topic.spark, topic.config.event_time)
    headers = batches_of_slice(topic, piece)
    headers_of = dict(slices_by_value(headers, "partition"))
    logs = {
        partition: _log(
            headers_of.get(partition, headers.slice(0, 0)),
            offsets,
            held[partition],
            to_ms(piece.now),
        )
        for partition, offsets in piece.ranges.items()
    }
    with failing_clearly(topic.config.event_time):
        ingested = read_ingested(topic, logs, to_ms(piece.now), event_time)
    outcome = outcome_of(topic, logs)
    outcome.snapshot_ids += append_batches(topic, ingested)
    topic = set_counted(
        topic,
        Step.INGEST_STATE,
        lambda now: {**state_changes(now, logs, ingested), **on_end(now)},
    )
    add_ingested(outcome, ingested)
    add_slice(done, outcome)
    return topic


def _log(batches: pa.Table, offsets: Range, held: HeldLog, now_ms: int) -> SourceLog:
    """Return the slice's part of one partition, as every ingest takes it."""
    begun = {offsets.start: now_ms} if held.state is None else dict(held.state.segments[-1:])
    begun |= dict.fromkeys(pc.unique(batches["segment"]).to_pylist(), now_ms)
    return SourceLog(
        held,
        log_start_offset=offsets.start if held.state is None else held.state.log_start_offset,
        visible_from=offsets.start,
        first_offset=offsets.start,
        log_end_offset=offsets.end,
        batches=batches,
        segments=tuple(SegmentStart(*segment) for segment in sorted(begun.items())),
    )
