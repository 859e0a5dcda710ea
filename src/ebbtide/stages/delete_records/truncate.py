"""Move the log start offset, and remove what then lies below it.

The order makes it safe: log start offset first, then records, then batches. Every run removes
whatever still lies below, so the next run finishes a killed one. Held records are copied before
they are removed. Manifests tell which files may hold such rows; no other file is opened.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ebbtide.columns.header_columns import open_transactions
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.deletes import Leaving, delete_leaving, delete_segments, leaving_of
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.planned.planned_undo import check_no_undo
from ebbtide.iceberg.topics import Topic, current_snapshot, load, read_again
from ebbtide.log.holds import Hold
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.log.producers import last_records, remembered
from ebbtide.records.arrays import Int64s
from ebbtide.runs.held.keeping import KeptRows, add_kept, keep_leaving
from ebbtide.spark.tasks import map_segments
from ebbtide.text import number

log = logging.getLogger(__name__)

# How often rows are found anew where other work moves them meanwhile.
COMMIT_ATTEMPTS = 5


@dataclass(slots=True)
class Truncation:
    """The records that lay below the log start offsets and are removed."""

    rows: Counter[int] = field(default_factory=Counter)  # live rows, by partition
    files: int = 0  # data files of records that left as a whole
    file_bytes: int = 0  # of these files
    snapshot_ids: list[int] = field(default_factory=list)  # of both tables
    kept: KeptRows = field(default_factory=dict)  # by holds, before they left

    def add_records(self, leaving: Sequence[Leaving]) -> None:
        """Count the rows and files that leave the records table."""
        for of_segment in leaving:
            self.rows[of_segment.unit.partition] += of_segment.rows
            self.files += len(of_segment.dropped)
            self.file_bytes += sum(file.size_bytes for file in of_segment.dropped)


def truncate_below_start(topic: Topic, now_ms: int, more_holds: Sequence[Hold] = ()) -> Truncation:
    """Remove what lies below each log start offset.

    `more_holds` are of the topic's primary, where it is a replica.
    """
    current, done = load(topic.spark, topic.name), Truncation()

    def find_and_copy(snapshot: int) -> list[Leaving]:
        leaving = find_leaving_records(current, snapshot)
        if leaving:
            add_kept(done.kept, keep_leaving(current, {}, more_holds))
        return leaving

    steps = (Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS)
    for removed in _truncate(current, topic.name.records_table, find_and_copy, steps, done):
        done.add_records(removed)
    if rows := done.rows.total():
        log.info("removed %s records, %d whole files", number(rows), done.files)
    find_batches = partial(_leaving_batches, current, now_ms)
    steps = (Step.TRUNCATE_BATCHES, Step.TRUNCATE_BATCHES)
    for _ in _truncate(current, topic.name.batches_table, find_batches, steps, done):
        pass
    return done


def _truncate(
    topic: Topic,
    table: str,
    find: Callable[[int], list[Leaving]],
    steps: tuple[Step, Step],
    done: Truncation,
) -> Iterator[Sequence[Leaving]]:
    """Remove whole segments, then single rows; find them again where a merge moves them.

    Yield what has left by each commit, with whose snapshots `done` begins.
    """
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        snapshot = current_snapshot(topic.spark, table)
        # What an undo gives back from now on, the commit below finds in its way.
        check_no_undo(read_again(topic), since=topic)
        leaving = [] if snapshot is None else find(snapshot)
        if snapshot is None or not leaving:
            return
        announce_removal(topic)
        whole = [of_segment for of_segment in leaving if of_segment.is_whole]
        rest = [of_segment for of_segment in leaving if not of_segment.is_whole]
        try:
            if whole:
                segments: dict[int, list[int]] = {}
                for unit in (of_segment.unit for of_segment in whole):
                    segments.setdefault(unit.partition, []).append(unit.segment)
                made = delete_segments(topic.spark, table, snapshot, segments, steps[0], {})
                done.snapshot_ids += [] if made is None else [made]
                yield whole
            if rest:
                done.snapshot_ids += delete_leaving(topic.spark, table, rest, steps[1]).snapshots
                yield rest
            return
        except CommitConflictError as error:
            if attempt == COMMIT_ATTEMPTS:
                raise
            log.info("finds them again: %s", error)


def find_leaving_records(topic: Topic, snapshot: int) -> list[Leaving]:
    """Find records below the log start offsets; only files of a segment astride one are opened."""
    spark, table = topic.spark, topic.name.records_table
    starts = {p: s.log_start_offset for p, s in topic.partitions.items() if s.log_start_offset}
    if not starts:
        return []
    units = plan_segments(spark, table, snapshot, starts, bound="offset")
    whole = [unit for unit in units if _is_below(unit, starts[unit.partition])]
    astride = [unit for unit in units if not _is_below(unit, starts[unit.partition])]
    find = partial(_records_below, starts)
    parts = map_segments(spark, find, astride, count_rows(astride), "truncates")
    leaving = [Leaving(unit, unit.live_count, dropped=unit.files) for unit in whole]
    return [of_segment for of_segment in [*leaving, *parts] if of_segment.rows]


def _is_below(unit: SegmentFiles, start: int) -> bool:
    """Return whether a segment lies wholly below `start`, as far as its manifests tell."""
    return all(file.last is not None and file.last < start for file in unit.files)


def _records_below(starts: Mapping[int, int], unit: SegmentFiles) -> Leaving:
    """Return a segment's records below the log start offset; runs in a task."""
    rows = read_segment(unit, ("offset",))
    return leaving_of(unit, rows, rows.table["offset"].to_numpy() < starts[unit.partition])


def _leaving_batches(topic: Topic, now_ms: int, snapshot: int) -> list[Leaving]:
    """Batch rows before the first logical segment, except those that must stay."""
    spark, table = topic.spark, topic.name.batches_table
    firsts = {p: state.segments[0].base_offset for p, state in topic.partitions.items()}
    ends = {partition: first for partition, first in firsts.items() if first}
    units = plan_segments(spark, table, snapshot, ends) if ends else []
    if not units:
        return []
    outlines = {}
    for partition in {unit.partition for unit in units}:
        state = topic.partitions[partition]
        # With a segment at 0, no row comes back just for lying before the first segment.
        segments = (SegmentStart(0, 0), *state.segments)
        outlines[partition] = LogOutline(state.log_start_offset, segments)
    headers = look_at_headers(spark, table, outlines, snapshot)
    staying = {
        partition: _StayingBatches(
            _remembered(topic, of_partition, now_ms),
            outlines[partition].log_start_offset,
        )
        for partition, of_partition in headers.items()
    }
    find = partial(_batches_before, staying)
    parts = map_segments(spark, find, units, count_rows(units), "truncates headers of")
    return [of_segment for of_segment in parts if of_segment.rows]


@dataclass(frozen=True, slots=True)
class _StayingBatches:
    """Which batches of a partition stay although their segment went.

    Kafka remembers, without their segments, producers that have not expired and where an open
    transaction begins. And an ingest that appends meanwhile may still write at or above the log
    start offset into a segment that retention has rolled away.
    """

    remembered: Int64s  # base offsets
    log_start_offset: int


def _remembered(topic: Topic, headers: LogHeaders, now_ms: int) -> Int64s:
    """Return base offsets of batches that tell a producer's last record or an open transaction."""
    candidates = headers.producers.last_batches_of_producers.batches()
    expiration_ms = topic.config.producer_id_expiration_ms
    last = last_records(candidates, now_ms=now_ms, expiration_ms=expiration_ms)
    first_offsets = open_transactions(headers.transactions).first_offsets.values()
    return np.array(sorted({*first_offsets, *remembered(candidates, last)}), np.int64)


def _batches_before(staying: Mapping[int, _StayingBatches], unit: SegmentFiles) -> Leaving:
    """Return the batch rows of a segment that leave; runs in a task."""
    of_partition = staying[unit.partition]
    rows = read_segment(unit, ("base_offset", "last_offset"), "base_offset")
    stays = np.isin(rows.table["base_offset"].to_numpy(), of_partition.remembered)
    stays |= rows.table["last_offset"].to_numpy() >= of_partition.log_start_offset
    return leaving_of(unit, rows, ~stays)
