"""Choose the logs that get a cleaner round now: those that Kafka's cleaner would pick, and more.

A log that Kafka's cleaner would not pick gets a round of its clean part if a tombstone or a marker
there is due. The setting ebbtide.clean.without.new.data turns these rounds off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ebbtide.iceberg.in_flight import CleaningRound, PartitionRound
from ebbtide.iceberg.topics import ReplicaEnd
from ebbtide.kafka.reasons import Reason
from ebbtide.kafka.transactions import OpenTransaction
from ebbtide.ledger.plans import Bounds
from ebbtide.moments import minute
from ebbtide.numbers import MAX_OFFSET
from ebbtide.settings.config import TopicConfig
from ebbtide.state.deadline import Deadline
from ebbtide.state.logical_segments import Bounds as LogBounds
from ebbtide.state.logical_segments import Cleanable, Segment, cleanable
from ebbtide.state.topic_state import PartitionState

# The first words of a reason that gives the dirty ratio.
DIRTY_RATIO = "dirty ratio"


class Pins(NamedTuple):
    """The snapshots that a round reads."""

    records: int
    batches: int  # NEVER for an adopted table, which has no batches


class RoundBounds(NamedTuple):
    """The bounds of a round in one partition."""

    first_uncleanable_offset: int = MAX_OFFSET
    held_back_from: int = MAX_OFFSET  # from here on, tombstones and markers wait for replicas


UNBOUNDED = RoundBounds()


def bounds_of_plan(bounds: Bounds | None) -> dict[int, RoundBounds] | None:
    """Return a stored plan's bounds by partition, or None without a plan."""
    return None if bounds is None else {p: RoundBounds(**numbers) for p, numbers in bounds.items()}


def bounds_of_round(planned: CleaningRound | None) -> dict[int, dict[str, int]]:
    """Return a round's bounds by partition, in the form of a stored plan."""
    parts = {} if planned is None else planned.partitions
    return {
        p: RoundBounds(part.first_uncleanable_offset, part.held_back_from)._asdict()
        for p, part in parts.items()
    }


class CleanableLog(NamedTuple):
    """One partition's log, and the offsets that limit a round in it."""

    state: PartitionState
    segments: Sequence[Segment]
    last_stable_offset: int
    first_unmarked_offset: int
    open_transaction: OpenTransaction | None = None  # the oldest
    replica_end: ReplicaEnd | None = None  # of the replica whose log ends first
    held_back_from: int = MAX_OFFSET

    def cleanable(self, config: TopicConfig, now_ms: int, end: int, stable: int) -> Cleanable:
        """Return the part that may be cleaned, given the plan's end and a last stable offset."""
        bounds = LogBounds(
            log_start_offset=self.state.log_start_offset,
            log_end_offset=self.state.log_end_offset,
            first_dirty_offset=self.state.first_dirty_offset,
            last_stable_offset=stable,
            first_unmarked_offset=self.first_unmarked_offset,
            end_of_plan=end,
        )
        return cleanable(self.segments, bounds, config, now_ms)


@dataclass(slots=True)
class Choice:
    """The partitions that get a round, the partitions that do not, and the reasons."""

    parts: dict[int, PartitionRound] = field(default_factory=dict)  # the chosen rounds
    left: dict[int, PartitionRound] = field(default_factory=dict)  # the rounds not chosen
    reasons: dict[int, str] = field(default_factory=dict)
    dirty_ratios: dict[int, float] = field(default_factory=dict)
    blockers: dict[int, OpenTransaction] = field(default_factory=dict)  # that shorten a round
    replica_ends: dict[int, ReplicaEnd] = field(default_factory=dict)


def choose(
    logs: Mapping[int, CleanableLog],
    config: TopicConfig,
    bounds: Mapping[int, RoundBounds],
    now_ms: int,
    idle_reasons: Callable[[Mapping[int, PartitionRound]], Mapping[int, str]],
    deadline: Deadline | None = None,
) -> Choice:
    """Choose the logs that Kafka's cleaner would pick, and logs with tombstones or markers due.

    No round exceeds its `bounds`. Of the logs that Kafka would not pick, `idle_reasons` returns
    those that get a round, each with the reason. A log also gets a round if a later one would miss
    the deadline of erasure.
    """
    choice, idle = Choice(), dict[int, PartitionRound]()
    least_ratio = config.min_cleanable_dirty_ratio
    for partition, log in logs.items():
        end = bounds[partition].first_uncleanable_offset
        part = log.cleanable(config, now_ms, end, log.last_stable_offset)
        is_picked = part.is_picked(least_ratio)
        too_low = "" if is_picked else " is too low"
        choice.reasons[partition] = f"{DIRTY_RATIO} {part.ratio:.2f}{too_low}"
        choice.dirty_ratios[partition] = part.ratio
        if (transaction := log.open_transaction) is not None:
            free = log.cleanable(config, now_ms, end, log.state.log_end_offset)
            if free.first_uncleanable_offset > part.first_uncleanable_offset:
                choice.blockers[partition] = transaction
                if free.is_picked(least_ratio) and not is_picked:
                    choice.reasons[partition] = transaction.in_words(now_ms)
        if log.replica_end is not None:
            choice.replica_ends[partition] = log.replica_end
            if not is_picked and (waits := _waits_for(log.state, log.replica_end, now_ms)):
                choice.reasons[partition] = waits
        if not is_picked and deadline is not None:
            bound, clean_end = part.first_uncleanable_offset, part.clean_end_offset
            if is_picked := deadline.round_is_forced(log.state, now_ms, bound, clean_end):
                choice.reasons[partition] = Reason.DEADLINE
        # An idle round ends where the dirty part begins: no record of that part has superseded its
        # key's older records yet, so if one of its tombstones went, they would count again.
        bound = part.first_uncleanable_offset if is_picked else part.clean_end_offset
        (choice.parts if is_picked else idle)[partition] = PartitionRound(
            log_start_offset=log.state.log_start_offset,
            first_segment_offset=log.state.first_segment,
            first_dirty_offset=part.first_dirty_offset,
            first_uncleanable_offset=bound,
            is_idle=not is_picked,
            held_back_from=log.held_back_from,
        )
    if waiting := _may_be_due(idle, logs, config, now_ms, deadline):
        for partition, reason in idle_reasons(waiting).items():
            choice.parts[partition], choice.reasons[partition] = idle[partition], reason
    choice.parts = {p: choice.parts[p] for p in logs if p in choice.parts}
    choice.left = {p: part for p, part in idle.items() if p not in choice.parts}
    return choice


def _may_be_due(
    idle: Mapping[int, PartitionRound],
    logs: Mapping[int, CleanableLog],
    config: TopicConfig,
    now_ms: int,
    deadline: Deadline | None,
) -> Mapping[int, PartitionRound]:
    """Return the rounds that may be held without new data."""
    if config.cleans_without_new_data:
        return idle
    if deadline is None:
        return {}
    return {
        partition: part
        for partition, part in idle.items()
        if deadline.removal_is_forced(logs[partition].state, now_ms)
    }


def _waits_for(state: PartitionState, end: ReplicaEnd, now_ms: int) -> str:
    """Return a reason if a due delete horizon waits for a replica, or an empty text."""
    horizon_ms = state.next_horizon_ms
    if horizon_ms is None or horizon_ms > now_ms or end.offset >= state.log_end_offset:
        return ""
    return (
        f"a delete horizon has been due since {minute(horizon_ms)} UTC and waits for the replica "
        f"{end.in_words()}"
    )
