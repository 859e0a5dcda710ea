"""Judge the rounds of one of ebbtide's own topics, by its batch headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ebbtide.columns.headers import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.transaction_rows import (
    LogHeaders,
    LogOutline,
    Role,
    is_due,
    is_due_but_held_back,
)
from ebbtide.iceberg.batch_rows import look_at_headers
from ebbtide.iceberg.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.in_flight import CleaningRound, PartitionRound, check_no_merge
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import Topic, current_snapshot, first_replica_ends, read_again
from ebbtide.jobs.clean_log.choice import CleanableLog, Pins, RoundBounds
from ebbtide.jobs.clean_log.cleaner import effect_of
from ebbtide.jobs.clean_log.segment_round import RoundEffect
from ebbtide.kafka.compaction import Round, idle_reason, judge
from ebbtide.kafka.reasons import Reason
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools
from ebbtide.spark.tasks import is_on_driver, map_segments, start_workers
from ebbtide.state.topic_state import PartitionState


def newest_pins(topic: Topic) -> Pins | None:
    """Return the newest snapshots of both tables, or None if a table has no snapshot.

    Raise CommitConflictError if a merge moved rows meanwhile: the two tables may then differ in
    their segments.
    """
    records = current_snapshot(topic.spark, topic.name.records_table)
    batches = current_snapshot(topic.spark, topic.name.batches_table)
    check_no_merge(read_again(topic), since=topic)
    return None if records is None or batches is None else Pins(records, batches)


@dataclass(slots=True)
class BatchesJudge:
    """A judge of rounds on an own topic at `now_ms`. `read` sets the fields with defaults."""

    topic: Topic
    now_ms: int
    headers: Mapping[int, LogHeaders] = field(default_factory=dict)
    outlines: Mapping[int, LogOutline] = field(default_factory=dict)
    pins: Pins | None = None

    def reason_against(self, state: PartitionState) -> str | None:
        """Return why a partition's state rules out a round, or None if its headers decide."""
        is_clean = self.now_ms > state.cleaned_at_ms and state.is_clean_at(self.now_ms)
        deadline, end = self.topic.deadline, state.active_segment
        if deadline is not None and deadline.round_is_forced(state, self.now_ms, end):
            return None
        return Reason.CLEAN if is_clean else None

    def read(self, bounds: Mapping[int, RoundBounds]) -> dict[int, CleanableLog]:
        """Read the headers of these partitions. Return their logs, or none of an empty topic."""
        topic, states = self.topic, {p: self.topic.partitions[p] for p in bounds}
        # Start Python workers meanwhile, unless the driver will judge all records itself.
        most_records = sum(s.log_end_offset - s.log_start_offset for s in states.values())
        if not is_on_driver(topic.spark, most_records):
            start_workers(topic.spark, effect_of)
        self.pins = newest_pins(topic) if bounds else None
        if self.pins is None:
            return {}
        ends = first_replica_ends(topic)
        held_back = {p: end.offset for p, end in ends.items()}
        self.outlines = {
            p: LogOutline(
                state.log_start_offset,
                state.segments,
                self.now_ms,
                min(held_back.get(p, MAX_OFFSET), bounds[p].held_back_from),
            )
            for p, state in states.items()
        }
        table = topic.name.batches_table
        self.headers = look_at_headers(topic.spark, table, self.outlines, self.pins.batches)
        return {
            p: CleanableLog(
                states[p],
                headers.segments,
                headers.stable_offset(states[p].log_start_offset, states[p].log_end_offset),
                states[p].first_unmarked_offset,
                headers.oldest_open_transaction,
                ends.get(p),
                self.outlines[p].held_back_from,
            )
            for p, headers in self.headers.items()
        }

    def idle_reasons(self, parts: Mapping[int, PartitionRound]) -> dict[int, str]:
        """Return the reasons for rounds on logs that Kafka's cleaner would not pick."""
        assert self.pins is not None
        reasons: dict[int, str] = {}
        without_marker: dict[int, PartitionRound] = {}
        for partition, part in parts.items():
            if reason := _marker_reason(self.headers[partition].transactions, part, self.now_ms):
                reasons[partition] = reason
            else:
                without_marker[partition] = part
        for partition in _with_tombstones(self.topic, self._due(without_marker), self.pins):
            reasons[partition] = Reason.HORIZON_REACHED
        return reasons

    def held_back(self, parts: Mapping[int, PartitionRound]) -> dict[int, dict[str, int]]:
        """Count the tombstones and markers that are due but wait for replicas, by partition.

        A round counts those of its partitions. `parts` are the rounds that partitions do not get
        now, so that every nightly run reports the counts. A partition in which none waits is
        omitted.
        """
        if self.pins is None:
            return {}
        return _count_held_back(self.topic, self._due(parts, Role.HELD_BACK), self.pins)

    def _due(self, parts: Mapping[int, PartitionRound], role: Role = Role.DUE) -> dict[int, _Due]:
        """Return the segments that have a batch of this role within the round, by partition."""
        due: dict[int, _Due] = {}
        for partition, part in parts.items():
            headers, bound = self.headers[partition].in_role(role), part.first_uncleanable_offset
            bases = headers.column("base_offset")
            headers = headers.where((bases >= part.first_segment_offset) & (bases < bound))
            if len(headers):
                segments = frozenset(headers.column("segment").tolist())
                outline = self.outlines[partition]
                due[partition] = _Due(segments, outline, part.first_segment_offset, bound)
        return due

    def effect(self, this_round: CleaningRound, *, keeps_offsets: bool) -> RoundEffect:
        """Return the round's effect on the batches and their records."""
        return effect_of(self.topic, this_round, self.headers, keeps_offsets=keeps_offsets)


def _marker_reason(transactions: BatchHeaders, part: PartitionRound, now_ms: int) -> Reason | None:
    """Return the reason for a round if a marker is due or has outlived its data, or None."""
    bound, start = part.first_uncleanable_offset, part.log_start_offset
    this_round = Round(now_ms, 0, bound, start, held_back_from=part.held_back_from)
    log = transactions.where(transactions.column("base_offset") >= part.first_segment_offset)
    return idle_reason(judge(log.batches(), this_round, {}), this_round, ())


class _Due(NamedTuple):
    """The segments of a partition with batches whose horizon is due, and the round's bounds."""

    segments: frozenset[int]
    outline: LogOutline
    first_segment_offset: int
    first_uncleanable_offset: int

    def covers(self, headers: BatchHeaders) -> Bools:
        """Return a mask of the batches that the round would cover."""
        bases = headers.column("base_offset")
        is_covered = (bases >= self.first_segment_offset) & (bases < self.first_uncleanable_offset)
        return np.asarray(is_covered, np.bool_)


def _with_tombstones(topic: Topic, due: Mapping[int, _Due], pins: Pins) -> set[int]:
    """Return the partitions in which a batch whose horizon is due still has a tombstone."""
    units = [unit for unit in _due_units(topic, due, pins) if unit.records is not None]
    has = map_segments(
        topic.spark, _has_due_tombstone, units, _rows(units), "looking for tombstones in"
    )
    return {unit.batches.partition for unit, has_one in zip(units, has, strict=True) if has_one}


def _count_held_back(
    topic: Topic, due: Mapping[int, _Due], pins: Pins
) -> dict[int, dict[str, int]]:
    """Count the tombstones and markers of each partition that are due but wait for replicas."""
    units = _due_units(topic, due, pins)
    counts = map_segments(
        topic.spark, _held_back_in, units, _rows(units), "counting due tombstones and markers in"
    )
    found: dict[int, Counter[str]] = {}
    for unit, counted in zip(units, counts, strict=True):
        found.setdefault(unit.batches.partition, Counter()).update(counted)
    return {partition: dict(counted) for partition, counted in found.items() if counted.total()}


def _due_units(topic: Topic, due: Mapping[int, _Due], pins: Pins) -> list[_DueUnit]:
    if not due:
        return []
    ends = {partition: max(partition_due.segments) + 1 for partition, partition_due in due.items()}
    batches, records = (
        {
            (unit.partition, unit.segment): unit
            for unit in plan_segments(topic.spark, table, snapshot, ends)
            if unit.segment in due[unit.partition].segments
        }
        for table, snapshot in (
            (topic.name.batches_table, pins.batches),
            (topic.name.records_table, pins.records),
        )
    )
    return [
        _DueUnit(records.get(place), unit, due[unit.partition]) for place, unit in batches.items()
    ]


class _DueUnit(NamedTuple):
    """A segment with batches whose horizon is due."""

    records: SegmentFiles | None  # None if the records table has no file of the segment
    batches: SegmentFiles
    due: _Due

    def tombstones(self, is_in: Bools, headers: BatchHeaders) -> int:
        """Count the visible tombstones in the batches that the mask `is_in` selects."""
        if self.records is None:
            return 0
        rows = read_segment(self.records, ("offset", "batch", "is_tombstone")).table
        is_tombstone = rows["is_tombstone"].to_numpy()
        is_visible = rows["offset"].to_numpy() >= self.due.outline.log_start_offset
        batches = rows["batch"].to_numpy()[is_tombstone & is_visible]
        return int(np.count_nonzero(np.isin(batches, headers.column("base_offset")[is_in])))

    def headers(self) -> BatchHeaders:
        """Read the headers of the segment's batches."""
        return BatchHeaders(read_segment(self.batches, HEADER_COLUMNS, "base_offset").table)


def _rows(units: Sequence[_DueUnit]) -> int:
    return count_rows([unit.records for unit in units if unit.records is not None])


def _has_due_tombstone(unit: _DueUnit) -> bool:
    """Return whether a due batch of the segment has a tombstone, in a task."""
    headers = unit.headers()
    may_be = is_due(headers, unit.due.outline) & unit.due.covers(headers)
    return unit.tombstones(may_be, headers) > 0


def _held_back_in(unit: _DueUnit) -> dict[str, int]:
    """Count the segment's due tombstones and markers that wait for replicas, in a task."""
    headers = unit.headers()
    waits = is_due_but_held_back(headers, unit.due.outline) & unit.due.covers(headers)
    return {
        "tombstones": unit.tombstones(waits & ~headers.is_control, headers),
        "markers": int(np.count_nonzero(waits & headers.is_control)),
    }
