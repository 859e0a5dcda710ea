"""Take a slice of a source that tells no record batches: append its records, then their batches.

Batches are worked out from the records in the table, so a killed slice is finished without the
source.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.brokers.kafka_source import live_records
from ebbtide.columns.live_records import ActiveSegment
from ebbtide.columns.slices import slices_by_value
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.rows_beyond import RowsBeyond
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.live_offsets import Range, Slice
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.runs.application import to_ms
from ebbtide.spark.conditions import any_of
from ebbtide.stages.ingest_segments.append import (
    IngestOutcome,
    add_ingested,
    add_slice,
    append_batches,
    append_records,
    ended,
    outcome_of,
    state_changes,
)
from ebbtide.stages.ingest_segments.event_time import event_time_of, failing_clearly
from ebbtide.stages.ingest_segments.source_log import HeldLog, SourceLog
from ebbtide.stages.ingest_segments.table_ends import Ends, find_ends, read_ingested
from ebbtide.stages.ingest_topic.slice_batches import batches_of_slice

# The changes of the state with which a slice ends, beside those of its partitions.
OnEnd = Callable[[Topic], PropertyChanges]


def log_ends(topic: Topic) -> dict[int, int]:
    """Return the log end offset of each partition."""
    return {partition: state.log_end_offset for partition, state in topic.partitions.items()}


def append_slice(topic: Topic, piece: Slice, source: DataFrame, beyond: RowsBeyond) -> int:
    """Append the slice's rows of the source, cut into batches and segments; the snapshot's id."""
    rows = live_records(source, _active_segments(topic, piece), topic.config, piece.now)
    event_time = event_time_of(topic.spark, topic.config.event_time)
    return append_records(topic, rows, event_time, beyond, piece.id)


def finish_killed(
    topic: Topic, name: str, piece: Slice, done: IngestOutcome, on_end: OnEnd = lambda _: {}
) -> Topic:
    """Finish a slice whose records are in the table; the topic afterwards."""
    ends = find_ends(topic, piece.ranges)
    if ends.left_batches:
        ends.batches.drop(Step.LEFT_BATCHES)
    return finish_slice(topic, name, piece, ends, done, on_end)


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


def finish_slice(
    topic: Topic, name: str, piece: Slice, ends: Ends, done: IngestOutcome, on_end: OnEnd
) -> Topic:
    """Append the batches of the slice's records, which are in their table, and move the state."""
    event_time = event_time_of(topic.spark, topic.config.event_time)
    headers = batches_of_slice(topic, piece)
    headers_of = dict(slices_by_value(headers, "partition"))
    logs = {
        partition: _log(
            headers_of.get(partition, headers.slice(0, 0)),
            offsets,
            ends.held[partition],
            to_ms(piece.now),
        )
        for partition, offsets in piece.ranges.items()
    }
    with failing_clearly(topic.config.event_time):
        ingested = read_ingested(topic, logs, to_ms(piece.now), event_time)
    outcome = outcome_of(topic, logs)
    outcome.snapshot_ids += append_batches(topic, ingested, ends.batches)
    topic = set_counted(
        topic,
        Step.INGEST_STATE,
        lambda now: {
            **ended(now, name, piece),
            **state_changes(now, logs, ingested),
            **on_end(now),
        },
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
