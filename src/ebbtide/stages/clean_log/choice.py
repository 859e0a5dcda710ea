"""Choose which logs get a cleaner round now: those that Kafka's cleaner picks, and a few more.

A log that Kafka would leave alone also gets a round where a tombstone or marker is due to go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ebbtide.columns.header_columns import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.log_headers import LogHeaders, LogOutline, Role, is_due
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.planned.planned_merge import check_no_merge
from ebbtide.iceberg.planned.planned_round import CleaningRound, PartitionRound
from ebbtide.iceberg.replica_tables import ReplicaEnd, first_replica_ends
from ebbtide.iceberg.topics import Topic, current_snapshot, read_again
from ebbtide.log.compaction import Round, idle_reason, judge
from ebbtide.log.logical_segments import Bounds as LogBounds
from ebbtide.log.logical_segments import Cleanable, cleanable
from ebbtide.log.plans.plan import Bounds
from ebbtide.log.reasons import Reason
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.log.transactions import OpenTransaction
from ebbtide.moments import minute
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.tasks import map_segments

# What a reason begins with that the dirty ratio is.
DIRTY_RATIO = "dirty ratio"


class Pins(NamedTuple):
    """The snapshots that a round reads."""

    records: int
    batches: int


class Choice(NamedTuple):
    """The partitions that get a round, among those whose headers were read."""

    pins: Pins
    headers: Mapping[int, LogHeaders]
    parts: Mapping[int, PartitionRound]  # of the picked partitions alone
    reasons: Mapping[int, str]  # for a round, or against one
    dirty_ratios: Mapping[int, float]
    blockers: Mapping[int, OpenTransaction]  # of the partitions that one holds back
    replica_ends: Mapping[int, ReplicaEnd]  # by partition, of the replica whose log ends first


class _Offer(NamedTuple):
    """One partition's round, if it is picked; `blocker` is the transaction that shortens it."""

    part: PartitionRound
    dirty_ratio: float
    blocker: OpenTransaction | None = None
    reason_against: str = ""  # what alone keeps Kafka's cleaner from picking it, if known

    @property
    def reason(self) -> str:
        """Why Kafka's cleaner would pick it, or why not."""
        if self.part.is_idle and self.reason_against:
            return self.reason_against
        too_low = " is too low" if self.part.is_idle else ""
        return f"{DIRTY_RATIO} {self.dirty_ratio:.2f}{too_low}"


def newest_pins(topic: Topic) -> Pins | None:
    """Return the newest snapshots of both tables; None for a topic that holds nothing.

    Raise CommitConflictError where a merge is moving rows meanwhile, since the two tables may
    then differ in their segments.
    """
    records = current_snapshot(topic.spark, topic.name.records_table)
    batches = current_snapshot(topic.spark, topic.name.batches_table)
    check_no_merge(read_again(topic), since=topic)
    return None if records is None or batches is None else Pins(records, batches)


def reason_against(state: PartitionState, config: TopicConfig, now_ms: int) -> str | None:
    """Return why a partition's state rules out a round; None where its headers must decide."""
    if not config.is_compacted:
        return Reason.NOT_COMPACTED
    if now_ms <= state.cleaned_at_ms:
        return f"now is not later than the last round's, {state.cleaned_at_ms} ms"
    if state.is_clean_at(now_ms):
        return Reason.CLEAN
    return None


class RoundBounds(NamedTuple):
    """Bounds of a partition's round: where it ends, and from where on tombstones are held back."""

    first_uncleanable_offset: int = MAX_OFFSET
    held_back_from: int = MAX_OFFSET


UNBOUNDED = RoundBounds()


def bounds_of_plan(bounds: Bounds | None) -> dict[int, RoundBounds] | None:
    """Return a kept plan's bounds of each partition; None without a plan."""
    return None if bounds is None else {p: RoundBounds(**of) for p, of in bounds.items()}


def bounds_of_round(planned: CleaningRound | None) -> dict[int, dict[str, int]]:
    """Return a round's bounds of each partition, as a kept plan has them."""
    parts = {} if planned is None else planned.partitions
    return {
        p: RoundBounds(part.first_uncleanable_offset, part.held_back_from)._asdict()
        for p, part in parts.items()
    }


def choose(topic: Topic, bounds: Mapping[int, RoundBounds], pins: Pins, now_ms: int) -> Choice:
    """Pick as Kafka's cleaner picks; beside that, logs in which a horizon or a marker waits.

    Only partitions that have bounds are picked; no round goes beyond them.
    """
    ends = first_replica_ends(topic)
    held_back = {p: end.offset for p, end in ends.items()}
    outlines = {
        p: LogOutline(
            state.log_start_offset,
            state.segments,
            now_ms,
            min(held_back.get(p, MAX_OFFSET), bounds[p].held_back_from),
        )
        for p, state in topic.partitions.items()
        if p in bounds
    }
    headers = look_at_headers(topic.spark, topic.name.batches_table, outlines, pins.batches)
    offers = {
        partition: _offer(topic, partition, of_partition, outlines[partition], bounds[partition])
        for partition, of_partition in headers.items()
    }
    parts = {p: offer.part for p, offer in offers.items() if not offer.part.is_idle}
    reasons = {p: offer.reason for p, offer in offers.items()}
    for partition in ends.keys() & offers.keys():
        if offers[partition].part.is_idle:
            state, end = topic.partitions[partition], ends[partition]
            reasons[partition] = _waits_for(state, end, now_ms) or reasons[partition]
    if topic.config.cleans_idle:
        idle = {p: offer.part for p, offer in offers.items() if offer.part.is_idle}
        for partition, reason in _idle_reasons(topic, headers, idle, pins, outlines).items():
            parts[partition], reasons[partition] = idle[partition], reason
    ratios = {p: offer.dirty_ratio for p, offer in offers.items()}
    blockers = {p: offer.blocker for p, offer in offers.items() if offer.blocker is not None}
    picked = {p: parts[p] for p in headers if p in parts}
    return Choice(pins, headers, picked, reasons, ratios, blockers, ends)


def _waits_for(state: PartitionState, end: ReplicaEnd, now_ms: int) -> str:
    """Return which replica keeps a delete horizon waiting; empty if none is due or it has all."""
    horizon_ms = state.next_horizon_ms
    if horizon_ms is None or horizon_ms > now_ms or end.offset >= state.log_end_offset:
        return ""
    return (
        f"a delete horizon was reached at {minute(horizon_ms)} UTC, and the replica {end.replica} "
        f"ends at offset {end.offset}: run replicate_log"
    )


def _offer(
    topic: Topic, partition: int, headers: LogHeaders, outline: LogOutline, bounds: RoundBounds
) -> _Offer:
    """Return the partition's round; it is idle where the dirty ratio is too low."""
    state, end = topic.partitions[partition], bounds.first_uncleanable_offset
    stable = headers.stable_offset(state.log_start_offset, state.log_end_offset)
    log = _cleanable(state, headers, topic.config, outline.now_ms, end, stable)
    least_ratio = topic.config.min_cleanable_dirty_ratio
    is_picked = log.is_picked(least_ratio)
    blocker, against = None, ""
    if (transaction := headers.oldest_open_transaction) is not None:
        all_log = state.log_end_offset
        free = _cleanable(state, headers, topic.config, outline.now_ms, end, all_log)
        if free.first_uncleanable_offset > log.first_uncleanable_offset:
            blocker = transaction
            if free.is_picked(least_ratio):
                against = transaction.in_words(outline.now_ms)
    part = PartitionRound(
        log_start_offset=state.log_start_offset,
        first_segment_offset=state.first_segment,
        first_dirty_offset=log.first_dirty_offset,
        first_uncleanable_offset=log.first_uncleanable_offset,
        is_idle=not is_picked,
        held_back_from=outline.held_back_from,
    )
    return _Offer(part, log.ratio, blocker, against)


def _cleanable(
    state: PartitionState,
    headers: LogHeaders,
    config: TopicConfig,
    now_ms: int,
    end_of_plan: int,
    last_stable_offset: int,
) -> Cleanable:
    bounds = LogBounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=last_stable_offset,
        first_unmarked_offset=state.first_unmarked_offset,
        end_of_plan=end_of_plan,
    )
    return cleanable(headers.segments, bounds, config, now_ms)


def _idle_reasons(
    topic: Topic,
    headers: Mapping[int, LogHeaders],
    parts: Mapping[int, PartitionRound],
    pins: Pins,
    outlines: Mapping[int, LogOutline],
) -> dict[int, str]:
    """Return, by partition, why a log that Kafka would leave alone gets a round all the same."""
    reasons: dict[int, str] = {}
    due: dict[int, _Due] = {}
    for partition, part in parts.items():
        now_ms, bound = outlines[partition].now_ms, part.first_uncleanable_offset
        if reason := _marker_reason(headers[partition].transactions, part, now_ms):
            reasons[partition] = reason
            continue
        of_data = headers[partition].in_role(Role.DUE)
        bases = of_data.column("base_offset")
        of_data = of_data.where((bases >= part.first_segment_offset) & (bases < bound))
        if len(of_data):
            segments = frozenset(of_data.column("segment").tolist())
            due[partition] = _Due(segments, outlines[partition], part.first_segment_offset, bound)
    for partition in _with_tombstones(topic, due, pins):
        reasons[partition] = Reason.HORIZON_REACHED
    return reasons


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
    ends = {partition: max(of.segments) + 1 for partition, of in due.items()}
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
