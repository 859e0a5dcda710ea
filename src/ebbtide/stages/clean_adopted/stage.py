"""clean_log on an adopted table: look at what arrived, choose logs, and run the round (KIP-534).

A round's order: what arrived goes to the state, then the round; rows leave; the state ends it. A
killed round is finished where its commit is in the table's history, else planned again on the
newest snapshot with its clock and bounds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyroaring import BitMap64

from ebbtide.iceberg.adopted.arrivals import EventClock, look
from ebbtide.iceberg.adopted.removal import prepare_removal
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.planned.planned_round import (
    CleaningRound,
    new_round_id,
    open_round,
    start_round,
)
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    find_snapshot,
)
from ebbtide.log.adopted.horizons import next_horizon_ms, with_late
from ebbtide.log.adopted.missing import count_missing
from ebbtide.log.plans.guards import Removal
from ebbtide.log.plans.summary import LeavingRows, PartitionSummary, RuleNumbers, partition_summary
from ebbtide.log.state.topic_state import (
    ADOPTED_SEEN,
    NEVER,
    ROUND,
    PartitionState,
    to_properties,
)
from ebbtide.moments import minute
from ebbtide.runs.held.keeping import keep_leaving
from ebbtide.runs.holds_table import holds_at, pauses_on
from ebbtide.runs.proposals import Proposal, Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_adopted.choice import choose
from ebbtide.stages.clean_adopted.state_after import state_after
from ebbtide.stages.clean_adopted.victims import RULES, Victims, find_victims
from ebbtide.stages.clean_log.choice import RoundBounds, bounds_of_round
from ebbtide.stages.clean_log.effect_summary import nothing_leaves
from ebbtide.stages.table_layout import AdoptedTable, ObservedLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdoptedPlan(Proposal):
    """The plan of clean_log for an adopted topic; without a round where there is nothing to do.

    `topic` and `states` have the partitions as this look has found them.
    """

    topic: Topic
    look: ObservedLog | None  # None with a round in flight, and for an empty table
    states: Mapping[int, PartitionState]
    round: CleaningRound | None
    victims: Victims
    reasons: Mapping[int, str]
    dirty_ratios: Mapping[int, float] = field(default_factory=dict)

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan, which are those of its execution too."""
        outcome = JobOutcome(rows_removed=self.victims.rows)
        for partition, state in self.states.items():
            numbers: dict[str, Any] = {
                "log_start_offset": state.log_start_offset,
                "low_watermark": state.log_start_offset,
                "log_end_offset": state.log_end_offset,
                "picked": False,
                "reason": self.reasons.get(partition, "finishing the round in flight"),
            }
            if state.missing:
                numbers["missing_offsets"] = count_missing(state.missing)
            if partition in self.dirty_ratios:
                numbers["dirty_ratio"] = round(self.dirty_ratios[partition], 4)
            outcome.partitions[partition] = numbers | self._numbers(partition)
        outcome.bytes_removed = sum(self._bytes(p) for p in self.states)
        if self.victims.files.all:
            read, of_all = self.victims.files
            outcome.topic |= {"files_read": read, "files": of_all}
        if self.look is not None and self.look.notes:
            outcome.topic["note"] = "; ".join(self.look.notes)
        return outcome

    def _numbers(self, partition: int) -> dict[str, Any]:
        """Return what the round does to a partition; nothing where it is not of it."""
        if self.round is None or partition not in self.round.partitions:
            return {}
        state = self.states[partition]
        by_rule = self.victims.by_rule.get(partition, Counter())
        records = sum(of.record_count for of in state.sums)
        size_bytes = sum(of.size_bytes for of in state.sums)
        after = state_after(state, self.round, partition)
        return {
            "picked": True,
            "records_before": records,
            "records_after": records - by_rule.total(),
            "bytes_before": size_bytes,
            "bytes_after": size_bytes - self._bytes(partition),
            **{rule: by_rule[rule] for rule in RULES},
            "next_horizon_ms": next_horizon_ms(after.horizons, self.round.now_ms),
        }

    def _bytes(self, partition: int) -> int:
        """Return the bytes that leave, as the sums of the segments have them."""
        state = self.states[partition]
        removed = self.victims.by_segment.get(partition, Counter())
        return sum(
            of.size_bytes * removed[segment.base_offset] // of.record_count
            for segment, of in zip(state.segments, state.sums, strict=True)
            if of.record_count
        )

    @property
    def removal(self) -> Removal | None:
        """What the round removes, for the guards; None of a round that has begun."""
        if self.look is None:
            return None
        return Removal(self.victims.rows, sum(self._bytes(p) for p in self.states))

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records that leave."""
        return dict(self.victims.offsets)

    def touches(self) -> Touched:
        """Return the partitions of a new round; one in flight was noted when it began."""
        if self.look is None or self.round is None:
            return Touched()
        return Touched(set(self.round.partitions), records_snapshot=self.look.snapshot)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return where the round ends in each partition."""
        return bounds_of_round(self.round)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what leaves by which rule."""
        return {
            partition: self._summary(partition)
            if self.victims.by_rule.get(partition)
            else nothing_leaves(self.reasons.get(partition, ""))
            for partition in self.states
        }

    def _summary(self, partition: int) -> PartitionSummary:
        by_rule = self.victims.by_rule[partition]
        return partition_summary(
            LeavingRows(records=by_rule.total()),
            {rule: RuleNumbers(records=by_rule[rule]) for rule in RULES},
            bytes_removed=self._bytes(partition),
        )


def plan_adopted(
    topic: Topic, now_ms: int, bounds: Mapping[int, RoundBounds] | None = None
) -> AdoptedPlan:
    """Plan a round on the adopted topic at `now_ms`, or the one in flight.

    `bounds` are a kept plan's, by partition; others are not cleaned.
    """
    rows = AdoptedRows.of(topic)
    if (in_flight := open_round(topic)) is not None:
        log.info("finishes the round begun at %s UTC", minute(in_flight.now_ms))
        return _resumed(topic, rows, in_flight)
    ends = {p: of.first_uncleanable_offset for p, of in (bounds or {}).items()}
    look = AdoptedTable(topic).observe(now_ms, ends)
    if look is None or look.snapshot is None:
        return AdoptedPlan(topic, None, {}, None, Victims(), {})
    pauses = pauses_on(look.observed, holds_at(topic, now_ms))
    choice = choose(topic, rows, look.snapshot, look.states, now_ms, bounds, pauses)
    plan = AdoptedPlan(
        look.observed, look, look.states, None, Victims(), choice.reasons, choice.dirty_ratios
    )
    if not choice.parts:
        return plan
    new_round = CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=topic.config.delete_retention_ms,
        producer_id_expiration_ms=topic.config.producer_id_expiration_ms,
        segment_bytes=topic.config.segment_bytes,
        records_snapshot=look.snapshot,
        batches_snapshot=NEVER,
        partitions=choice.parts,
    )
    return _judged(plan, rows, new_round, plan.states)


def _judged(
    plan: AdoptedPlan,
    rows: AdoptedRows,
    this_round: CleaningRound,
    states: Mapping[int, PartitionState],
) -> AdoptedPlan:
    """Return the plan with the round, and what it removes from its snapshot."""
    victims = find_victims(rows, this_round, states)
    removed = {partition: dict(counts) for partition, counts in victims.by_segment.items()}
    return replace(plan, round=replace(this_round, removed=removed), victims=victims)


def _resumed(topic: Topic, rows: AdoptedRows, in_flight: CleaningRound) -> AdoptedPlan:
    """Return the plan of a round that a killed job left; with its commit made, nothing leaves."""
    snapshot = current_snapshot(topic.spark, topic.name.records_table)
    plan = AdoptedPlan(topic, None, topic.partitions, in_flight, Victims(), {})
    if snapshot is None or _is_committed(topic, in_flight):
        return plan
    now_round = replace(in_flight, records_snapshot=snapshot)
    return _judged(plan, rows, now_round, _with_late(topic, rows, in_flight.now_ms))


def _with_late(topic: Topic, rows: AdoptedRows, now_ms: int) -> dict[int, PartitionState]:
    """Return the states with the tombstones that arrived late since the round began.

    They wait for the next round's horizon, whichever range they lie in.
    """
    seen = topic.properties.get(ADOPTED_SEEN)
    since = None if seen is None else int(seen)
    arrivals = look(rows, topic.partitions, since, EventClock(now_ms))
    arrived = {} if arrivals is None else arrivals.by_partition
    return {
        partition: replace(
            state, horizons=with_late(state.horizons, arrived[partition].late_tombstones)
        )
        if partition in arrived
        else state
        for partition, state in topic.partitions.items()
    }


def _is_committed(topic: Topic, this_round: CleaningRound) -> bool:
    table = topic.name.records_table
    return find_snapshot(topic.spark, table, ROUND, this_round.id) is not None


def execute_adopted(plan: AdoptedPlan) -> JobOutcome:
    """Run the plan's round; also without one, what arrived goes to the state."""
    outcome, topic = plan.outcome(), plan.topic
    if plan.look is not None:
        topic = plan.look.write_down()
    if plan.round is None:
        return outcome
    this_round = plan.round
    start_round(topic, this_round)
    if plan.victims.positions:
        snapshot = this_round.records_snapshot
        if kept := keep_leaving(topic, plan.victims.offsets, snapshot=snapshot):
            outcome.topic["kept_by_holds"] = kept
        properties = {
            ROUND: this_round.id,
            ROWS: str(plan.victims.rows),
            TOPIC: str(topic.name),
        }
        table = topic.name.records_table
        prepared = prepare_removal(topic.spark, table, snapshot, plan.victims.positions, properties)
        outcome.snapshot_ids.append(commit(Step.ROUND_RECORDS, prepared))
    compare_and_set(topic, Step.ROUND_STATE, partial(_finished, this_round))
    return outcome


def _finished(this_round: CleaningRound, current: Topic) -> PropertyChanges | None:
    """Return the changes that end the round; None where it is no longer in flight."""
    in_flight = open_round(current)
    if in_flight is None or in_flight.id != this_round.id:
        return None
    changes: dict[str, str | None] = {ROUND: None}
    for partition in in_flight.partitions:
        after = state_after(current.partitions[partition], in_flight, partition)
        changes |= to_properties(partition, after)
    return changes
