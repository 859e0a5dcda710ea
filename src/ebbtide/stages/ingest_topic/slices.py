"""Take a slice of a source that tells no record batches: append its records, then their batches.

Batches are worked out from the records in the table, so a killed slice is finished without the
source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.brokers.kafka_source import live_records
from ebbtide.columns.live_records import ActiveSegment
from ebbtide.columns.slices import slices_by_value
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic
from ebbtide.log.live_offsets import Range, Ranges, Slice
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.state.topic_state import COPIED_SLICE, SLICE
from ebbtide.runs.application import to_ms
from ebbtide.spark.conditions import any_of
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.ingest_segments.append import (
    NO_CHANGES,
    SUMMED,
    IngestOutcome,
    add_slice,
    append_records,
    appended_slice,
    claim,
    drop_left_behind,
    end_slice,
)
from ebbtide.stages.ingest_segments.event_time import event_time_of
from ebbtide.stages.ingest_segments.source_log import HeldLog, SourceLog
from ebbtide.stages.ingest_segments.table_ends import Ends, find_ends
from ebbtide.stages.ingest_topic.slice_batches import batches_of_slice
from ebbtide.stages.unfinished import settle

log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """A kind of slice: the job that takes it, the property that claims it, and that commit."""

    job: str
    claim: str
    step: Step


LIVE = Kind("ingest_topic", SLICE, Step.LIVE_SLICE)
COPIED = Kind("ingest_table", COPIED_SLICE, Step.COPY_SLICE)


def log_ends(topic: Topic) -> dict[int, int]:
    """Return the log end offset of each partition."""
    return {partition: state.log_end_offset for partition, state in topic.partitions.items()}


def take_slice(
    kind: Kind,
    topic: Topic,
    piece: Slice,
    source: Callable[[Topic, Ranges], AbstractContextManager[DataFrame]],
    done: IngestOutcome,
    *,
    claimed: PropertyChanges = NO_CHANGES,
    on_end: PropertyChanges = NO_CHANGES,
) -> Topic:
    """Write the slice down, append its records of the source, and finish it.

    `claimed` are written with the claim, `on_end` with the partitions' states: if another ingest
    takes the slice over, it is not from this source.
    """
    ends = find_ends(topic, piece.ranges)
    topic = drop_left_behind(topic, ends, piece.now)
    topic = claim(topic, kind.step, kind.claim, piece, claimed)
    ranges = {partition: offsets for partition, offsets in piece.ranges.items() if offsets.offsets}
    taken = {p: f"takes offsets {each.start} to {each.end}" for p, each in ranges.items()}
    log_partitions(log, taken)
    if ranges:
        event_time = event_time_of(topic.spark, topic.config.event_time)
        with source(topic, ranges) as frame:
            rows = live_records(frame, _active_segments(topic, piece), topic.config, piece.now)
            snapshot = append_records(topic, rows, event_time, ends.records, piece.id)
        done.snapshot_ids.append(snapshot)
    return _finish_slice(kind, topic, piece, ends, done, on_end)


def finish_killed(
    kind: Kind, topic: Topic, done: IngestOutcome, on_end: PropertyChanges = NO_CHANGES
) -> Topic:
    """Finish a slice that a killed run has appended, if there is one; the topic afterwards."""
    piece = appended_slice(topic, kind.claim)
    if piece is None:
        return topic
    ends = find_ends(topic, piece.ranges)
    if ends.left_batches:
        ends.batches.drop(Step.LEFT_BATCHES)
    return settle(_finish_slice(kind, topic, piece, ends, done, on_end), kind.job)


def numbers_of_run(done: IngestOutcome, topic: Topic, partition: int) -> dict[str, Any]:
    """Return what the run's slices say of a partition, or that there was nothing new of it."""
    nothing = {**dict.fromkeys((*SUMMED, "segments"), 0), "skipped": ["nothing new"]}
    return {**done.partitions.get(partition, nothing), **topic.offsets_of(partition)}


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


def _finish_slice(
    kind: Kind,
    topic: Topic,
    piece: Slice,
    ends: Ends,
    done: IngestOutcome,
    on_end: PropertyChanges,
) -> Topic:
    """Append the batches of the slice's records, which are in their table, and move the state."""
    event_time = event_time_of(topic.spark, topic.config.event_time)
    headers, now_ms = batches_of_slice(topic, piece), to_ms(piece.now)
    headers_of = dict(slices_by_value(headers, "partition"))
    nothing = headers.slice(0, 0)
    logs = {
        partition: _log(headers_of.get(partition, nothing), offsets, ends.held[partition], now_ms)
        for partition, offsets in piece.ranges.items()
    }
    topic, outcome = end_slice(
        topic, kind.claim, piece, logs, ends.batches, now_ms, event_time, lambda *_: on_end
    )
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
