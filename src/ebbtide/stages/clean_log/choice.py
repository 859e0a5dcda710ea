"""Choose which logs get a cleaner round now: those that Kafka's cleaner picks, and a few more.

A log that Kafka would leave alone also gets a round where a tombstone or marker is due to go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.columns.rewritten_batches import ORDINARY
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.files.segment_planning import plan_segments
from ebbtide.iceberg.planned.planned_merge import check_no_merge
from ebbtide.iceberg.planned.planned_round import PartitionRound
from ebbtide.iceberg.replica_tables import held_back_from
from ebbtide.iceberg.topics import Topic, current_snapshot, read_again
from ebbtide.log.batch_header import Batch
from ebbtide.log.compaction import MAX_OFFSET, Round, idle_reason, is_past_horizon, judge
from ebbtide.log.logical_segments import Bounds, Cleanable, cleanable
from ebbtide.log.results import Reason
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.spark.tasks import map_segments


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


class _Offer(NamedTuple):
    """One partition's round, if it is picked."""

    part: PartitionRound
    dirty_ratio: float

    @property
    def reason(self) -> str:
        """Why Kafka's cleaner would pick it, or why not."""
        return f"dirty ratio {self.dirty_ratio:.2f}{' is too low' if self.part.is_idle else ''}"


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


def choose(topic: Topic, candidates: Sequence[int], pins: Pins, now_ms: int) -> Choice:
    """Pick as Kafka's cleaner picks; beside that, logs in which a horizon or a marker waits."""
    outlines = {
        p: LogOutline(state.log_start_offset, state.segments, now_ms)
        for p, state in topic.partitions.items()
        if p in candidates
    }
    headers = look_at_headers(topic.spark, topic.name.batches_table, outlines, pins.batches)
    held_back = held_back_from(topic)
    offers = {
        partition: _offer(topic, partition, of_partition, now_ms, held_back)
        for partition, of_partition in headers.items()
    }
    parts = {p: offer.part for p, offer in offers.items() if not offer.part.is_idle}
    reasons = {p: offer.reason for p, offer in offers.items()}
    if topic.config.cleans_idle:
        idle = {p: offer.part for p, offer in offers.items() if offer.part.is_idle}
        for partition, reason in _idle_reasons(topic, headers, idle, pins, now_ms).items():
            parts[partition], reasons[partition] = idle[partition], reason
    ratios = {p: offer.dirty_ratio for p, offer in offers.items()}
    return Choice(pins, headers, {p: parts[p] for p in headers if p in parts}, reasons, ratios)


def _offer(
    topic: Topic,
    partition: int,
    headers: LogHeaders,
    now_ms: int,
    held_back: Mapping[int, int],
) -> _Offer:
    """Return the partition's round; it is idle where the dirty ratio is too low."""
    state = topic.partitions[partition]
    log = _cleanable(state, headers, topic.config, now_ms)
    is_picked = log.is_picked(topic.config.min_cleanable_dirty_ratio)
    part = PartitionRound(
        log_start_offset=state.log_start_offset,
        first_segment_offset=state.first_segment,
        first_dirty_offset=log.first_dirty_offset,
        first_uncleanable_offset=log.first_uncleanable_offset,
        is_idle=not is_picked,
        held_back_from=held_back.get(partition, MAX_OFFSET),
    )
    return _Offer(part, log.ratio)


def _cleanable(
    state: PartitionState, headers: LogHeaders, config: TopicConfig, now_ms: int
) -> Cleanable:
    bounds = Bounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=headers.stable_offset(state.log_start_offset, state.log_end_offset),
        first_unmarked_offset=state.first_unmarked_offset,
    )
    return cleanable(headers.segments, bounds, config, now_ms)


def _idle_reasons(
    topic: Topic,
    headers: Mapping[int, LogHeaders],
    parts: Mapping[int, PartitionRound],
    pins: Pins,
    now_ms: int,
) -> dict[int, str]:
    """Return, by partition, why a log that Kafka would leave alone gets a round all the same."""
    reasons: dict[int, str] = {}
    due: dict[int, list[Batch]] = {}
    rounds = {p: _idle_round(part, now_ms) for p, part in parts.items()}
    for partition, part in parts.items():
        notable = headers[partition].notable
        log = notable.where(notable.column("base_offset") >= part.first_segment_offset)
        transactional = log.where(log.is_in_transaction).batches()
        verdicts = judge(transactional, rounds[partition], {})
        if reason := idle_reason(verdicts, rounds[partition], ()):
            reasons[partition] = reason
        elif batches := _due_batches(log, rounds[partition]):
            due[partition] = batches
    for partition, bases in _with_tombstones(topic, due, pins.records).items():
        verdicts = ((batch, ORDINARY) for batch in due[partition])
        if reason := idle_reason(verdicts, rounds[partition], bases):
            reasons[partition] = reason
    return reasons


def _idle_round(part: PartitionRound, now_ms: int) -> Round:
    bound, start = part.first_uncleanable_offset, part.log_start_offset
    return Round(now_ms, 0, bound, start, held_back_from=part.held_back_from)


def _due_batches(headers: BatchHeaders, this_round: Round) -> list[Batch]:
    """Return the data batches whose horizon is reached; they may hold no tombstone any more."""
    may_be = headers.has_bit(DELETE_HORIZON) & ~headers.is_control
    may_be &= headers.column("base_offset") < this_round.first_uncleanable_offset
    return [
        batch
        for batch in headers.where(may_be).batches()
        if is_past_horizon(batch, this_round.now_ms) and not this_round.is_held_back(batch)
    ]


def _with_tombstones(
    topic: Topic, due: Mapping[int, list[Batch]], records_snapshot: int
) -> dict[int, set[int]]:
    """Return the base offsets of the `due` batches that still hold a tombstone, by partition."""
    bases = {partition: {batch.base_offset for batch in of} for partition, of in due.items()}
    ends = {partition: max(of) + 1 for partition, of in bases.items()}
    if not ends:
        return {}
    units = plan_segments(topic.spark, topic.name.records_table, records_snapshot, ends)
    still_held: dict[int, set[int]] = {partition: set() for partition in due}
    find = partial(_tombstone_batches, bases)
    by_unit = map_segments(topic.spark, find, units, count_rows(units), "looks for tombstones in")
    for unit, of_segment in zip(units, by_unit, strict=True):
        still_held[unit.partition] |= of_segment
    return still_held


def _tombstone_batches(bases: Mapping[int, set[int]], unit: SegmentFiles) -> set[int]:
    """Return which of the batches hold a tombstone of the segment; runs in a task."""
    rows = read_segment(unit, ("offset", "batch", "is_tombstone")).table
    batches = set(rows["batch"].to_numpy()[rows["is_tombstone"].to_numpy()].tolist())
    return batches & bases[unit.partition]
