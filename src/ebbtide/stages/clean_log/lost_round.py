"""Give up a round in flight whose input is gone, so that it cannot be finished as planned.

Its records are deleted, but the snapshot from before that was expired although the round held it.
The sizes of compressed batches cannot be worked out without that snapshot. The headers are then
rebuilt from the remaining records, and the next round begins anew.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.row_changes import changes_of, in_segment
from ebbtide.columns.segment_records import COLUMNS
from ebbtide.columns.shrunk_batches import fewer_than_told
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.batch_rows import prepare_changes, read_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, read_segment
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.planned.planned_round import CleaningRound, PartitionRound, open_round
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, current_snapshot
from ebbtide.log.compaction import Round
from ebbtide.log.state.topic_state import ROUND
from ebbtide.spark.job_log import note
from ebbtide.text import moment

log = logging.getLogger(__name__)


def abandon_round(topic: Topic, lost: CleaningRound) -> Topic:
    """Rebuild the headers of what the round has cleaned, and forget it; the topic after that."""
    changes = lost_headers(topic, lost)
    if changes.num_rows:
        announce_removal(topic)
        prepared = prepare_changes(topic.spark, topic.name.batches_table, changes, {})
        commit(Step.HEADERS_REBUILT, prepared)
    note(
        log,
        f"the round begun at {moment(lost.now_ms)} UTC was given up, since another tool expired "
        f"the snapshots that it held: {changes.num_rows} batch headers were rebuilt from the "
        "records that are left, and the sizes of compressed ones are estimates",
    )

    def forgotten(current: Topic) -> PropertyChanges | None:
        in_flight = open_round(current)
        return {ROUND: None} if in_flight is not None and in_flight.id == lost.id else None

    return compare_and_set(topic, Step.LOST_ROUND_STATE, forgotten)


def lost_headers(topic: Topic, lost: CleaningRound) -> pa.Table:
    """Return changes for the round's headers that count more records than are left, by segment."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in lost.partitions.items()}
    snapshot = current_snapshot(spark, name.records_table)
    units = [] if snapshot is None else plan_segments(spark, name.records_table, snapshot, ends)
    headers = read_headers(spark, name.batches_table, lost.partitions)
    header_parts = [
        of_segment
        for partition, part in lost.partitions.items()
        for of_segment in _of_partition(
            topic,
            partition,
            part,
            headers[partition],
            lost,
            {unit.segment: unit for unit in units if unit.partition == partition},
        )
    ]
    return pa.concat_tables([in_segment(0, 0, changes_of([])), *header_parts])


def _of_partition(
    topic: Topic,
    partition: int,
    part: PartitionRound,
    headers: BatchHeaders,
    lost: CleaningRound,
    units: dict[int, SegmentFiles],
) -> list[pa.Table]:
    bases = headers.column("base_offset")
    # Below `expired_end_offset` retention may have taken single records, whose headers stay.
    first = max(part.first_segment_offset, topic.partitions[partition].expired_end_offset)
    covered = headers.where(
        np.asarray((bases >= first) & (bases < part.first_uncleanable_offset), np.bool_)
    )
    this_round = Round(
        lost.now_ms,
        lost.delete_retention_ms,
        part.first_uncleanable_offset,
        part.log_start_offset,
        part.first_dirty_offset,
        topic.partitions[partition].segments,
    )
    future_limit_ms = topic.config.message_timestamp_after_max_ms
    tables = []
    segments = covered.column("segment")
    for segment in np.unique(segments).tolist():
        mine = covered.where(np.asarray(segments == segment, np.bool_))
        rows = None
        if segment in units:
            rows = read_segment(units[segment], COLUMNS).table
            held = np.isin(rows["batch"].to_numpy(), mine.column("base_offset"))
            rows = rows.filter(pa.array(held))
        changed = [
            (before, after, newest_ms)
            for before, after, newest_ms in fewer_than_told(rows, mine, this_round, future_limit_ms)
            if after != before
        ]
        tables.append(in_segment(partition, segment, changes_of(changed)))
    return tables
