"""What a cleaner round does to a topic, worked out from the snapshots that the round pins.

The driver judges the few batches that rules look at (transactions, markers, empty ones), tasks
judge records, a segment each: first the dirty ones for the offset map, then all that the round
covers, once.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.batch_headers import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.batch_headers import BatchHeaders, of_bereaved
from ebbtide.columns.compaction import IsSuperseded, clean_segment, dirty_keys
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.columns.rewritten_batches import ORDINARY, Rewriting
from ebbtide.columns.row_changes import after_changes, changes_of, in_segment, no_changes
from ebbtide.columns.segment_records import COLUMNS
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import (
    DeletionVector,
    SegmentFiles,
    count_rows,
    deletion_of,
    plan_segments,
    read_segment,
)
from ebbtide.iceberg.topics import Topic
from ebbtide.iceberg.unfinished.planned_round import CleaningRound, PartitionRound
from ebbtide.log.batch_header import HEADER_BYTES, Batch
from ebbtide.log.compaction import (
    MAX_OFFSET,
    Round,
    Survivors,
    Verdict,
    judge,
    needs_horizon,
    rewrite,
)
from ebbtide.log.logical_segments import Segment, segment_of
from ebbtide.log.producers import LastRecord, carried, last_records
from ebbtide.log.state.topic_state import NEVER
from ebbtide.records.varint import varint_size
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import Shared, shared
from ebbtide.stages.clean_log.offset_map import map_with_superseded
from ebbtide.text import moment, number, size

log = logging.getLogger(__name__)


# Numbers of a partition, in words.
_REMOVED = {
    "superseded": "superseded",
    "aborted": "aborted",
    "keyless": "without a key",
    "tombstones_removed": "tombstones",
    "markers_removed": "transaction markers",
}


@dataclass(slots=True)
class RoundEffect:
    """What a round removes and changes, before anything of it is committed."""

    deletions: list[DeletionVector] = field(default_factory=list)
    changes: pa.Table = field(default_factory=no_changes)
    victims: int = 0
    bytes_removed: int = 0
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_clean_ms: dict[int, int] = field(default_factory=dict)
    segments: dict[int, Sequence[Segment]] = field(default_factory=dict)  # before the round


class _Rules(NamedTuple):
    """What tasks have to know of one partition's round."""

    this_round: Round
    verdicts: dict[int, Verdict]  # of data batches, by base offset; those that are not ORDINARY


class _Judged(NamedTuple):
    """One partition's round: its parameters, and the batches that rules look at."""

    this_round: Round
    part: PartitionRound
    last_records: dict[int, LastRecord]
    verdicts: list[tuple[Batch, Verdict]]

    def rules(self) -> _Rules:
        """What tasks have to know of it."""
        of_data = {
            batch.base_offset: verdict
            for batch, verdict in self.verdicts
            if not batch.is_control and batch.record_count and verdict != ORDINARY
        }
        return _Rules(self.this_round, of_data)


class _Unit(NamedTuple):
    """One segment's share of the round, as a task gets it."""

    records: SegmentFiles
    batches: SegmentFiles


class _Known(NamedTuple):
    """What the work on each segment looks at."""

    rules: Mapping[int, _Rules]  # by partition
    units: Sequence[_Unit]
    future_limit_ms: int


class _UnitEffect(NamedTuple):
    """What the round does to one segment's data batches that hold records."""

    partition: int
    first_base_offset: int
    deletions: list[DeletionVector]
    by_rule: dict[str, int]
    tombstones_kept: int
    tombstones_held_back: int
    rewriting: Rewriting
    newest_left: BatchHeaders  # of each producer


def effect_of(
    topic: Topic, cleaning: CleaningRound, headers: Mapping[int, LogHeaders] | None = None
) -> RoundEffect:
    """Work out the round; a pure function of it and of the snapshots it names.

    `headers` are those of the round's batches snapshot, if somebody has looked at them before.
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
    by_partition: dict[int, list[_UnitEffect]] = {partition: [] for partition in judged}
    for unit in units:
        by_partition[unit.partition].append(unit)
    for partition, of_partition in judged.items():
        mine = by_partition[partition]
        after = list(_after(of_partition, {unit.first_base_offset for unit in mine}))
        notable = headers[partition].notable
        changes = _changes(partition, notable, after, mine)
        known = notable.with_more(unit.newest_left for unit in mine)
        tables.append(_with_carried(partition, known, of_partition, changes))
        _describe(effect, partition, (of_partition, after), mine)
    log_partitions(log, {p: _decided(numbers) for p, numbers in effect.numbers.items()})
    effect.changes = pa.concat_tables(tables) if tables else no_changes()
    effect.deletions = [deletion for unit in units for deletion in unit.deletions]
    return effect


def _decided(numbers: Mapping[str, Any]) -> str:
    """What the round does to a partition, as its log says it."""
    removed = [
        f"{number(count)} {what}" for name, what in _REMOVED.items() if (count := numbers.get(name))
    ]
    return (
        f"removes {', '.join(removed) or 'no record'}; "
        f"{size(numbers['bytes_before'])} become {size(numbers['bytes_after'])}; "
        f"{number(numbers['tombstones_kept'])} tombstones stay, next horizon "
        f"{moment(numbers['next_horizon_ms'])}"
    )


def _judge(topic: Topic, partition: int, notable: BatchHeaders, cleaning: CleaningRound) -> _Judged:
    """Verdicts on transactions, markers, empty batches and those that must not go."""
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
        notable.of_last_records.batches(),
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
    return _Judged(this_round, part, last, list(judge(special, this_round, last)))


def _clean_units(
    topic: Topic, cleaning: CleaningRound, judged: Mapping[int, _Judged]
) -> list[_UnitEffect]:
    """The offset map from the dirty segments, then each segment of the round."""
    spark, name = topic.spark, topic.name
    ends = {p: part.first_uncleanable_offset for p, part in cleaning.partitions.items()}
    batches = {
        (unit.partition, unit.segment): unit
        for unit in plan_segments(spark, name.batches_table, cleaning.batches_snapshot, ends)
    }
    # Where no batch is left, no record is: what the file holds is deleted.
    units = [
        _Unit(unit, batches[unit.partition, unit.segment])
        for unit in plan_segments(spark, name.records_table, cleaning.records_snapshot, ends)
        if (unit.partition, unit.segment) in batches
    ]
    future_limit_ms = topic.config.message_timestamp_after_max_ms
    dirty = [unit.records for unit in _dirty_units(units, judged)]
    rules = {partition: of_partition.rules() for partition, of_partition in judged.items()}
    log.info("judges %d segments, of which %d may hold dirty records", len(units), len(dirty))
    started = time.monotonic()
    of_records = [unit.records for unit in units]
    rows = count_rows(of_records)
    with shared(spark, _Known(rules, units, future_limit_ms), rows) as known:
        find, clean = partial(_dirty_keys, known), partial(_clean_unit, known)
        effects = map_with_superseded(spark, of_records, dirty, find, clean)
    log.info("judged %s rows of files in %.1f s", number(rows), time.monotonic() - started)
    return [effect for effect in effects if effect is not None]


def _dirty_units(units: Sequence[_Unit], judged: Mapping[int, _Judged]) -> list[_Unit]:
    """Segments that hold dirty records; none in an idle round."""
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
    """In a task: where each key of a dirty segment was written last."""
    this_round, verdicts = known.value.rules[unit.partition]
    rows = read_segment(unit, ("offset", "batch", "key")).table
    discarded = [base for base, verdict in verdicts.items() if verdict.discards_records]
    return dirty_keys(rows, discarded, this_round.first_dirty_offset)


def _clean_unit(
    known: Shared[_Known], number: int, is_superseded: IsSuperseded
) -> _UnitEffect | None:
    """In a task: the round over one segment; None where it holds no record."""
    rules, units, future_limit_ms = known.value
    unit = units[number]
    partition, segment = unit.records.partition, unit.records.segment
    this_round, verdicts = rules[partition]
    found = read_segment(unit.records, COLUMNS)
    is_covered = found.table["offset"].to_numpy() >= this_round.log_start_offset
    rows = found.table if is_covered.all() else found.table.filter(pa.array(is_covered))
    if not rows.num_rows:
        return None
    headers = BatchHeaders(read_segment(unit.batches, HEADER_COLUMNS, "base_offset").table)
    done = clean_segment(rows, headers, verdicts, is_superseded, this_round, future_limit_ms)
    gone = np.flatnonzero(is_covered)[done.is_victim]
    files, positions = found.files[gone], found.positions[gone]
    return _UnitEffect(
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


def _after(judged: _Judged, seen: Container[int]) -> Iterator[tuple[Batch, Batch | None]]:
    """What becomes of each batch whose records no task has seen, as `seen` tells.

    Those are control batches, empty ones, and one astride the log start all of whose records that
    are left lie below it.
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
    """A control batch holds one record; its delta grows when its horizon is set."""
    if verdict.discards_records or not batch.record_count:
        return Survivors(0)
    at_ms = batch.max_timestamp_ms
    left = Survivors(batch.record_count, first_timestamp_ms=at_ms, max_timestamp_ms=at_ms)
    if not needs_horizon(batch, verdict, left):
        return left
    horizon_ms = this_round.now_ms + this_round.delete_retention_ms
    # One byte tells a control record's length, which stays below 64.
    body_bytes = batch.size_bytes - HEADER_BYTES - 1
    body_bytes -= varint_size(at_ms - batch.base_timestamp_ms)
    body_bytes += varint_size(at_ms - horizon_ms)
    return left._replace(records_bytes=body_bytes + varint_size(body_bytes))


def _changes(
    partition: int,
    headers: BatchHeaders,
    after: Sequence[tuple[Batch, Batch | None]],
    units: Sequence[_UnitEffect],
) -> pa.Table:
    """All changes of the partition's rows, those of batches without data among them."""
    changed = [(before, batch, NEVER) for before, batch in after if batch != before]
    own = _by_segment(partition, headers, changed)
    return pa.concat_tables([no_changes(), *own, *(unit.rewriting.changes for unit in units)])


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
    partition: int, headers: BatchHeaders, judged: _Judged, changes: pa.Table
) -> pa.Table:
    """The changes, and those of rows that must go on saying what removed rows said."""
    removed = changes.filter(changes["is_removed"])["base_offset"].to_numpy()
    first_segment = judged.part.first_segment_offset
    told = of_bereaved(headers, removed, first_segment)
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


def _describe(
    effect: RoundEffect,
    partition: int,
    before: tuple[_Judged, Sequence[tuple[Batch, Batch | None]]],
    units: Sequence[_UnitEffect],
) -> None:
    """Add the partition's numbers to the effect."""
    judged, after = before
    rewritings = [unit.rewriting for unit in units]
    by_rule = sum((Counter(unit.by_rule) for unit in units), Counter[str]())
    waits = [of.next_horizon_ms for of in rewritings if of.next_horizon_ms is not None]
    waits += list(_waiting_markers(judged, after, rewritings))
    totals = _totals(effect.segments[partition], after, rewritings)
    effect.victims += by_rule.total()
    effect.bytes_removed += totals["bytes_before"] - totals["bytes_after"]
    effect.next_clean_ms[partition] = min(waits, default=NEVER)
    effect.numbers[partition] = totals | {
        "superseded": by_rule["superseded"],
        "aborted": by_rule["aborted"],
        "keyless": by_rule["keyless"],
        "tombstones_kept": sum(unit.tombstones_kept for unit in units),
        "tombstones_removed": by_rule["tombstone"],
        **_markers(after),
        "next_horizon_ms": min((wait for wait in waits if wait), default=None),
    }
    if judged.part.held_back_from < MAX_OFFSET:
        tombstones = sum(unit.tombstones_held_back for unit in units)
        held_back = {"tombstones": tombstones, "markers": _markers_held_back(judged)}
        effect.numbers[partition]["held_back"] = held_back


def _totals(
    segments: Sequence[Segment],
    after: Sequence[tuple[Batch, Batch | None]],
    rewritings: Sequence[Rewriting],
) -> dict[str, Any]:
    """Records of data and bytes before and after, as the headers of the segments count them."""
    records = sum(segment.record_count for segment in segments)
    size_bytes = sum(segment.size_bytes for segment in segments)
    records_removed = sum(of.records_removed for of in rewritings)
    bytes_removed = sum(of.bytes_removed for of in rewritings)
    for batch, left in after:
        bytes_removed += batch.size_bytes - (left.size_bytes if left else 0)
        if not batch.is_control:
            records_removed += batch.record_count - (left.record_count if left else 0)
    return {
        "records_before": records,
        "records_after": records - records_removed,
        "bytes_before": size_bytes,
        "bytes_after": size_bytes - bytes_removed,
    }


def _markers(after: Sequence[tuple[Batch, Batch | None]]) -> dict[str, int]:
    markers = [left for batch, left in after if batch.is_control and batch.record_count]
    removed = sum(1 for left in markers if left is None or left.record_count == 0)
    return {"markers_removed": removed, "markers_kept": len(markers) - removed}


def _markers_held_back(judged: _Judged) -> int:
    """How many markers would go if it were not for a replica that ends before them."""
    everything = judged.this_round._replace(held_back_from=MAX_OFFSET)
    freely = judge([batch for batch, _ in judged.verdicts], everything, judged.last_records)
    pairs = zip(judged.verdicts, freely, strict=True)
    return sum(1 for (_, held), (_, free) in pairs if free != held)


def _waiting_markers(
    judged: _Judged,
    after: Sequence[tuple[Batch, Batch | None]],
    rewritings: Sequence[Rewriting],
) -> Iterator[int]:
    """When each marker left may go; 0 for one without horizon that has outlived its data."""
    bases = [batch.base_offset for batch, _ in judged.verdicts]
    removed = {base for of in rewritings for base in np.intersect1d(of.removed, bases).tolist()}
    control = {before.base_offset: batch for before, batch in after}
    left = [
        batch
        for before, _ in judged.verdicts
        if (batch := control.get(before.base_offset, before)) is not None
        and before.base_offset not in removed
    ]
    for batch, verdict in judge(left, judged.this_round, {}):
        if not batch.is_control or not batch.record_count or judged.this_round.is_hidden(batch):
            continue
        if batch.delete_horizon_ms is not None:
            yield batch.delete_horizon_ms
        elif verdict.is_marker_of_empty_transaction:
            yield 0
