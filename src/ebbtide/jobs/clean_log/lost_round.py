"""Give up a round in flight that cannot be finished, since another tool expired its snapshots.

The round has removed records, and the snapshot from before, which it had pinned, is expired.
Without that snapshot the sizes of compressed batches cannot be computed. So the headers are rebuilt
from the remaining records, and the next run starts a new round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.headers import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.rewritten_batches import RowChanges, changes_of, fewer_than_told, no_changes
from ebbtide.iceberg.batch_rows import prepare_changes
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.in_flight import CleaningRound, open_round
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    first_segments_now,
)
from ebbtide.jobs.clean_log.segment_round import read_records
from ebbtide.kafka.compaction import Round
from ebbtide.moments import minute
from ebbtide.spark.job_log import note
from ebbtide.spark.tasks import map_segments
from ebbtide.state.topic_state import ROUND

log = logging.getLogger(__name__)

# The driver holds the changes of at most this many headers, about 100 bytes each.
MAX_HEADERS = 500_000


def abandon_round(topic: Topic, lost: CleaningRound) -> Topic:
    """Rebuild the headers of the cleaned batches and end the round. Return the topic afterwards."""
    rebuilt = 0
    for changes in lost_headers(topic, lost):
        if not rebuilt:
            announce_removal(topic)
        rebuilt += rebuild_headers(topic, changes)
    note(
        log,
        f"the round begun at {minute(lost.now_ms)} UTC was given up, since another tool expired "
        f"the snapshots that it had pinned: {rebuilt} batch headers were rebuilt from the "
        "remaining records, and the sizes of compressed batches are estimates",
    )

    def forgotten(current: Topic) -> PropertyChanges | None:
        in_flight = open_round(current)
        return {ROUND: None} if in_flight is not None and in_flight.id == lost.id else None

    return compare_and_set(topic, Step.LOST_ROUND_STATE, forgotten)


def rebuild_headers(topic: Topic, changes: RowChanges) -> int:
    """Commit the changes of headers and return their number."""
    table, firsts_now = topic.name.batches_table, partial(first_segments_now, topic)
    prepared = prepare_changes(topic.spark, table, changes, {}, firsts_now=firsts_now)
    commit(Step.HEADERS_REBUILT, prepared)
    return changes.count


def lost_headers(topic: Topic, lost: CleaningRound) -> Iterator[RowChanges]:
    """Yield changes for the round's headers that count more records than remain.

    Each item changes a few segments, so that the caller can commit it before the next.
    """
    look = partial(_fewer, topic.config.message_timestamp_after_max_ms)
    for some in _some_segments(_segments_of(topic, lost)):
        headers = count_rows(segment.headers for segment in some)
        parts = map_segments(topic.spark, look, some, headers, "comparing headers of")
        changes = RowChanges.together(parts)
        if changes.count:
            yield changes


class _Segment(NamedTuple):
    """The headers and the records of a segment that a round may have cleaned."""

    headers: SegmentFiles
    records: SegmentFiles | None  # None if no record remains
    first_offset: int
    cleaned: Round


def _segments_of(topic: Topic, lost: CleaningRound) -> list[_Segment]:
    """Return the segments that the round covers, by partition and offset."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in lost.partitions.items()}
    planned = []
    for table in (name.records_table, name.batches_table):
        snapshot = current_snapshot(spark, table)
        planned.append([] if snapshot is None else plan_segments(spark, table, snapshot, ends))
    records_of = {(unit.partition, unit.segment): unit for unit in planned[0]}
    rounds = {
        partition: Round(
            lost.now_ms,
            lost.delete_retention_ms,
            part.first_uncleanable_offset,
            part.log_start_offset,
            part.first_dirty_offset,
            topic.partitions[partition].segments,
        )
        for partition, part in lost.partitions.items()
    }
    # Below `expired_end_offset`, retention may have removed single records that headers count.
    firsts = {
        partition: max(part.first_segment_offset, topic.partitions[partition].expired_end_offset)
        for partition, part in lost.partitions.items()
    }
    return [
        _Segment(
            headers,
            records_of.get((headers.partition, headers.segment)),
            firsts[headers.partition],
            rounds[headers.partition],
        )
        for headers in planned[1]
    ]


def _some_segments(segments: Iterable[_Segment]) -> Iterator[list[_Segment]]:
    """Yield lists of segments with at most MAX_HEADERS headers, or of one larger segment."""
    some: list[_Segment] = []
    for segment in segments:
        if some and count_rows(member.headers for member in [*some, segment]) > MAX_HEADERS:
            yield some
            some = []
        some.append(segment)
    if some:
        yield some


def _fewer(future_limit_ms: int, segment: _Segment) -> RowChanges:
    """Return changes for a segment's headers that count more records than remain, in a task."""
    unit = segment.headers
    headers = BatchHeaders(read_segment(unit, HEADER_COLUMNS, "base_offset").table)
    bases = headers.column("base_offset")
    covered = (bases >= segment.first_offset) & (bases < segment.cleaned.first_uncleanable_offset)
    headers = headers.where(np.asarray(covered, np.bool_))
    if not len(headers):
        return no_changes()
    rows = None
    if segment.records is not None:
        rows = read_records(segment.records).table
        held = np.isin(rows["batch"].to_numpy(), headers.column("base_offset"))
        rows = rows.filter(pa.array(held))
    fewer = fewer_than_told(rows, headers, segment.cleaned, future_limit_ms)
    changed = [(before, after, newest) for before, after, newest in fewer if after != before]
    return RowChanges.of(unit.partition, unit.segment, changes_of(changed))
