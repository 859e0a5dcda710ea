"""Work out what a cleaner round does to a topic, from the snapshots that the round pins.

The driver judges the few batches that need rules of their own: transactions, markers and empty
batches. Tasks judge the records, one segment each: first the dirty ones for the offset map, then
once all that the round covers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.header_columns import BatchHeaders, batches_of_affected_producers
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.columns.rewritten_batches import ORDINARY
from ebbtide.columns.row_changes import after_changes, changes_of, in_segment, no_changes
from ebbtide.columns.segment_cleaning import IsSuperseded, clean_segment, dirty_keys
from ebbtide.columns.segment_records import COLUMNS
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, deletion_of, read_segment
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.planned.planned_round import CleaningRound
from ebbtide.iceberg.topics import Topic
from ebbtide.log.batch_header import HEADER_BYTES, Batch
from ebbtide.log.compaction import (
    Round,
    Survivors,
    Verdict,
    judge,
    needs_horizon,
    rewrite,
)
from ebbtide.log.logical_segments import segment_of
from ebbtide.log.producers import carried, last_records
from ebbtide.log.state.topic_state import NEVER
from ebbtide.records.varint import varint_size
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import Shared, shared
from ebbtide.stages.clean_log.effect_numbers import (
    JudgedPartition,
    PartitionEffect,
    RoundEffect,
    UnitEffect,
    add_numbers,
    described,
)
from ebbtide.stages.clean_log.offset_map import map_with_superseded
from ebbtide.text import number

log = logging.getLogger(__name__)


class _Rules(NamedTuple):
    """The part of one partition's round that tasks need."""

    this_round: Round
    verdicts: dict[int, Verdict]  # of data batches, by base offset; those that are not ORDINARY

    @classmethod
    def of(cls, judged: JudgedPartition) -> _Rules:
        """Return the rules of a partition that the driver has judged."""
        of_data = {
            batch.base_offset: verdict
            for batch, verdict in judged.verdicts
            if not batch.is_control and batch.record_count and verdict != ORDINARY
        }
        return cls(judged.this_round, of_data)


class _Unit(NamedTuple):
    """One segment's share of the round, as a task gets it."""

    records: SegmentFiles
    batches: SegmentFiles


class _Known(NamedTuple):
    """The input of the work on each segment."""

    rules: Mapping[int, _Rules]  # by partition
    units: Sequence[_Unit]
    future_limit_ms: int


def effect_of(
    topic: Topic, cleaning: CleaningRound, headers: Mapping[int, LogHeaders] | None = None
) -> RoundEffect:
    """Work out the round's effect, which follows from the round and its snapshots alone.

    `headers` are those of the round's batches snapshot, if they have been read before.
    """
    name = topic.name
    if headers is None:
        outlines = {
            p: LogOutline(part.log_start_offset, topic.partitions[p].segments, cleaning.now_ms)
            for p, part in cleaning.partitions.items()
        }
        headers = look_at_headers(
            topic.spark, name.batches_table, outlines, cleaning.batches_snapshot
        )
    judged = {
        partition: _judge(topic, partition, headers[partition].notable, cleaning)
        for partition in cleaning.partitions
    }
    units = _clean_units(topic, cleaning, judged)
    effect = RoundEffect(segments={p: of.segments for p, of in headers.items()})
    tables = []
    by_partition: dict[int, list[UnitEffect]] = {partition: [] for partition in judged}
    for unit in units:
        by_partition[unit.partition].append(unit)
    for partition, of_partition in judged.items():
        mine = by_partition[partition]
        after = list(_after(of_partition, {unit.first_base_offset for unit in mine}))
        notable = headers[partition].notable
        changes = _changes(partition, notable, after, mine)
        known = notable.with_more(unit.newest_left for unit in mine)
        tables.append(_with_carried(partition, known, of_partition, changes))
        add_numbers(effect, partition, PartitionEffect(of_partition, after, mine))
    log_partitions(log, {p: described(numbers) for p, numbers in effect.numbers.items()})
    effect.changes = pa.concat_tables(tables) if tables else no_changes()
    effect.deletions = [deletion for unit in units for deletion in unit.deletions]
    return effect


def _judge(
    topic: Topic, partition: int, notable: BatchHeaders, cleaning: CleaningRound
) -> JudgedPartition:
    """Judge the partition's transactions, markers, empty batches and the batches that must stay."""
    part = cleaning.partitions[partition]
    bound = part.first_uncleanable_offset
    this_round = Round(
        cleaning.now_ms,
        cleaning.delete_retention_ms,
        bound,
        part.log_start_offset,
        part.first_dirty_offset,
        topic.partitions[partition].segments,
        part.held_back_from,
    )
    last = last_records(
        notable.last_batches_of_producers.batches(),
        now_ms=cleaning.now_ms,
        expiration_ms=cleaning.producer_id_expiration_ms,
    )
    last_offsets = notable.column("last_offset")
    is_special = notable.is_in_transaction | (notable.column("record_count") == 0)
    is_special |= notable.is_astride(part.log_start_offset)
    is_special |= np.isin(
        last_offsets, [r.last_data_offset for r in last.values() if r.last_data_offset is not None]
    )
    is_special |= last_offsets == bound - 1
    is_special &= notable.column("base_offset") >= part.first_segment_offset
    special = notable.where(is_special).batches()
    return JudgedPartition(this_round, part, last, list(judge(special, this_round, last)))


def _clean_units(
    topic: Topic, cleaning: CleaningRound, judged: Mapping[int, JudgedPartition]
) -> list[UnitEffect]:
    """Return the offset map from the dirty segments, then each segment of the round."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in cleaning.partitions.items()}
    batches = {
        (unit.partition, unit.segment): unit
        for unit in plan_segments(spark, name.batches_table, cleaning.batches_snapshot, ends)
    }
    # Where no batch is left, no record is left either: the file's rows are all deleted.
    units = [
        _Unit(unit, batches[unit.partition, unit.segment])
        for unit in plan_segments(spark, name.records_table, cleaning.records_snapshot, ends)
        if (unit.partition, unit.segment) in batches
    ]
    future_limit_ms = topic.config.message_timestamp_after_max_ms
    dirty = [unit.records for unit in _dirty_units(units, judged)]
    rules = {partition: _Rules.of(of_partition) for partition, of_partition in judged.items()}
    log.info("judges %d segments, of which %d may hold dirty records", len(units), len(dirty))
    started = time.monotonic()
    of_records = [unit.records for unit in units]
    rows = count_rows(of_records)
    with shared(spark, _Known(rules, units, future_limit_ms), rows) as known:
        find, clean = partial(_dirty_keys, known), partial(_clean_unit, known)
        effects = map_with_superseded(spark, of_records, dirty, find, clean)
    log.info("judged %s rows of files in %.1f s", number(rows), time.monotonic() - started)
    return [effect for effect in effects if effect is not None]


def _dirty_units(units: Sequence[_Unit], judged: Mapping[int, JudgedPartition]) -> list[_Unit]:
    """Return the segments that hold dirty records; none in an idle round."""
    by_partition: dict[int, list[_Unit]] = {}
    for unit in units:
        by_partition.setdefault(unit.records.partition, []).append(unit)
    dirty = []
    for partition, mine in by_partition.items():
        first, end = judged[partition].part.dirty
        if first < end:
            start = segment_of([unit.records.segment for unit in mine], first)
            dirty += [unit for unit in mine if unit.records.segment >= start]
    return dirty


def _dirty_keys(known: Shared[_Known], unit: SegmentFiles) -> pa.Table:
    """Return the offset of each key's last record in a dirty segment; runs in a task."""
    this_round, verdicts = known.value.rules[unit.partition]
    rows = read_segment(unit, ("offset", "batch", "key")).table
    discarded = [base for base, verdict in verdicts.items() if verdict.discards_records]
    return dirty_keys(rows, discarded, this_round.first_dirty_offset)


def _clean_unit(
    known: Shared[_Known], number: int, is_superseded: IsSuperseded
) -> UnitEffect | None:
    """Run the round over one segment, in a task; return None where it holds no record."""
    rules, units, future_limit_ms = known.value
    unit = units[number]
    partition, segment = unit.records.partition, unit.records.segment
    this_round, verdicts = rules[partition]
    segment_rows = read_segment(unit.records, COLUMNS)
    is_covered = segment_rows.table["offset"].to_numpy() >= this_round.log_start_offset
    rows = (
        segment_rows.table if is_covered.all() else segment_rows.table.filter(pa.array(is_covered))
    )
    if not rows.num_rows:
        return None
    headers = BatchHeaders(read_segment(unit.batches, HEADER_COLUMNS, "base_offset").table)
    done = clean_segment(rows, headers, verdicts, is_superseded, this_round, future_limit_ms)
    gone = np.flatnonzero(is_covered)[done.is_victim]
    files, positions = segment_rows.files[gone], segment_rows.positions[gone]
    return UnitEffect(
        partition,
        rows["batch"][0].as_py(),
        [
            deletion_of(unit.records.store, file, positions[files == number])
            for number, file in enumerate(unit.records.files)
            if np.any(files == number)
        ],
        done.by_rule,
        done.tombstones_kept,
        done.tombstones_held_back,
        done.rewriting._replace(changes=in_segment(partition, segment, done.rewriting.changes)),
        done.newest_left,
    )


def _after(judged: JudgedPartition, seen: Container[int]) -> Iterator[tuple[Batch, Batch | None]]:
    """Yield each batch whose records no task has seen, with what becomes of it.

    `seen` holds the base offsets that tasks have seen. The others are control batches, empty
    batches, and one that begins below the log start offset and has no record left at or above
    it.
    """
    for batch, verdict in judged.verdicts:
        if batch.is_control or not batch.record_count:
            left = _control_left(batch, verdict, judged.this_round)
        elif judged.this_round.is_astride(batch) and batch.base_offset not in seen:
            left = Survivors(0, hidden=batch.record_count)
        else:
            continue
        yield batch, rewrite(batch, verdict, left, judged.this_round)


def _control_left(batch: Batch, verdict: Verdict, this_round: Round) -> Survivors:
    """Return a control batch holds one record; its delta grows when its horizon is set."""
    if verdict.discards_records or not batch.record_count:
        return Survivors(0)
    at_ms = batch.max_timestamp_ms
    left = Survivors(batch.record_count, first_timestamp_ms=at_ms, max_timestamp_ms=at_ms)
    if not needs_horizon(batch, verdict, left):
        return left
    horizon_ms = this_round.now_ms + this_round.delete_retention_ms
    # A control record's length fits in one varint byte: it stays below 64.
    body_bytes = batch.size_bytes - HEADER_BYTES - 1
    body_bytes -= varint_size(at_ms - batch.base_timestamp_ms)
    body_bytes += varint_size(at_ms - horizon_ms)
    return left._replace(records_bytes=body_bytes + varint_size(body_bytes))


def _changes(
    partition: int,
    headers: BatchHeaders,
    after: Sequence[tuple[Batch, Batch | None]],
    units: Sequence[UnitEffect],
) -> pa.Table:
    """Return all changes of the partition's rows, batches without data included."""
    changed = [(before, batch, NEVER) for before, batch in after if batch != before]
    by_segment = _by_segment(partition, headers, changed)
    return pa.concat_tables(
        [no_changes(), *by_segment, *(unit.rewriting.changes for unit in units)]
    )


def _by_segment(
    partition: int, headers: BatchHeaders, changed: Sequence[tuple[Batch, Batch | None, int]]
) -> list[pa.Table]:
    segments = headers.column("segment")
    rows = np.searchsorted(
        headers.column("base_offset"), [before.base_offset for before, _, _ in changed]
    )
    by_segment: dict[int, list[tuple[Batch, Batch | None, int]]] = {}
    for row, change in zip(rows, changed, strict=True):
        by_segment.setdefault(int(segments[row]), []).append(change)
    return [in_segment(partition, segment, changes_of(of)) for segment, of in by_segment.items()]


def _with_carried(
    partition: int, headers: BatchHeaders, judged: JudgedPartition, changes: pa.Table
) -> pa.Table:
    """Return the changes, with those of rows that take over producers' facts from removed rows."""
    removed = changes.filter(changes["is_removed"])["base_offset"].to_numpy()
    first_segment = judged.part.first_segment_offset
    told = batches_of_affected_producers(headers, removed, first_segment)
    if not len(told):
        return changes
    log = [after_changes(batch, changes) for batch in told.batches()]
    newest_ms = dict(zip(told.column("base_offset"), told.column("max_event_time_ms"), strict=True))
    moved = [
        (before, after, int(newest_ms[before.base_offset]))
        for before, after in carried(log, set(removed), judged.last_records, first_segment)
    ]
    is_moved = np.isin(changes["base_offset"], [before.base_offset for before, _, _ in moved])
    kept = changes.filter(pa.array(~is_moved))
    return pa.concat_tables([kept, *_by_segment(partition, headers, moved)])
