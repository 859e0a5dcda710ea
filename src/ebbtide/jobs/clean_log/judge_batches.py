"""Judge the rounds of a topic in ebbtide's own tables, by the headers of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ebbtide.columns.headers import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.transaction_rows import LogHeaders, LogOutline, Role, is_due
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
from ebbtide.spark.tasks import is_on_driver, map_segments, start_workers
from ebbtide.state.topic_state import PartitionState


def newest_pins(topic: Topic) -> Pins | None:
    """Return the newest snapshots of both tables; None for a topic that holds nothing.

    Raise CommitConflictError where a merge is moving rows meanwhile, since the two tables may
    then differ in their segments.
    """
    records = current_snapshot(topic.spark, topic.name.records_table)
    batches = current_snapshot(topic.spark, topic.name.batches_table)
    check_no_merge(read_again(topic), since=topic)
    return None if records is None or batches is None else Pins(records, batches)


@dataclass(slots=True)
class BatchesJudge:
    """Judges rounds on a topic at `now_ms`, by the headers that `read` has read."""

    topic: Topic
    now_ms: int
    headers: Mapping[int, LogHeaders] = field(default_factory=dict)
    outlines: Mapping[int, LogOutline] = field(default_factory=dict)
    pins: Pins | None = None

    def reason_against(self, state: PartitionState) -> str | None:
        """Return why a partition's state rules out a round; None if its headers must decide."""
        is_clean = self.now_ms > state.cleaned_at_ms and state.is_clean_at(self.now_ms)
        return Reason.CLEAN if is_clean else None

    def read(self, bounds: Mapping[int, RoundBounds]) -> dict[int, CleanableLog]:
        """Return the logs of these partitions; none of a topic that holds nothing."""
        topic, states = self.topic, {p: self.topic.partitions[p] for p in bounds}
        # Python workers start meanwhile if the driver may not judge all records itself.
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
        """Return why logs that Kafka would leave alone get a round all the same, by partition."""
        assert self.pins is not None
        reasons: dict[int, str] = {}
        due: dict[int, _Due] = {}
        for partition, part in parts.items():
            headers, bound = self.headers[partition], part.first_uncleanable_offset
            if reason := _marker_reason(headers.transactions, part, self.now_ms):
                reasons[partition] = reason
                continue
            of_data = headers.in_role(Role.DUE)
            bases = of_data.column("base_offset")
            of_data = of_data.where((bases >= part.first_segment_offset) & (bases < bound))
            if len(of_data):
                segments = frozenset(of_data.column("segment").tolist())
                outline = self.outlines[partition]
                due[partition] = _Due(segments, outline, part.first_segment_offset, bound)
        for partition in _with_tombstones(self.topic, due, self.pins):
            reasons[partition] = Reason.HORIZON_REACHED
        return reasons

    def effect(self, this_round: CleaningRound, *, keeps_offsets: bool) -> RoundEffect:
        """Return the round's effect on the batches and their records."""
        return effect_of(self.topic, this_round, self.headers, keeps_offsets=keeps_offsets)


def _marker_reason(transactions: BatchHeaders, part: PartitionRound, now_ms: int) -> Reason | None:
    """Return why a marker of the log makes a round worth it, if any does."""
    bound, start = part.first_uncleanable_offset, part.log_start_offset
    this_round = Round(now_ms, 0, bound, start, held_back_from=part.held_back_from)
    log = transactions.where(transactions.column("base_offset") >= part.first_segment_offset)
    return idle_reason(judge(log.batches(), this_round, {}), this_round, ())


class _Due(NamedTuple):
    """The segments of a partition with data whose horizon is reached, and the round's bounds."""

    segments: frozenset[int]
    outline: LogOutline
    first_segment_offset: int
    first_uncleanable_offset: int


def _with_tombstones(topic: Topic, due: Mapping[int, _Due], pins: Pins) -> set[int]:
    """Return the partitions in which a batch whose horizon is reached still holds a tombstone."""
    if not due:
        return set()
    spark, name = topic.spark, topic.name
    ends = {partition: max(partition_due.segments) + 1 for partition, partition_due in due.items()}
    batches = {
        (unit.partition, unit.segment): unit
        for unit in plan_segments(spark, name.batches_table, pins.batches, ends)
    }
    units = [
        _DueUnit(unit, batches[unit.partition, unit.segment], due[unit.partition])
        for unit in plan_segments(spark, name.records_table, pins.records, ends)
        if unit.segment in due[unit.partition].segments
    ]
    rows = count_rows([unit.records for unit in units])
    has = map_segments(spark, _has_due_tombstone, units, rows, "looks for tombstones in")
    return {unit.records.partition for unit, has_one in zip(units, has, strict=True) if has_one}


class _DueUnit(NamedTuple):
    """A segment with data whose horizon is reached."""

    records: SegmentFiles
    batches: SegmentFiles
    due: _Due


def _has_due_tombstone(unit: _DueUnit) -> bool:
    """Return whether a due batch of the segment holds a tombstone; runs in a task."""
    due = unit.due
    headers = BatchHeaders(read_segment(unit.batches, HEADER_COLUMNS, "base_offset").table)
    bases = headers.column("base_offset")
    may_be = is_due(headers, due.outline) & (bases >= due.first_segment_offset)
    bases = bases[may_be & (bases < due.first_uncleanable_offset)]
    rows = read_segment(unit.records, ("offset", "batch", "is_tombstone")).table
    with_tombstone = rows["batch"].to_numpy()[rows["is_tombstone"].to_numpy()]
    return bool(np.isin(with_tombstone, bases).any())
