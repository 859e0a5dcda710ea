"""clean_log: which logs get a cleaner round now, and the round itself (KIP-534).

Order of a round: written down, records, batches, state. Each step is left out when its commit is
in the history already, so a killed round ends where an unbroken one would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.log.batches import Batch
from ebbtide.log.cleaning import Round, is_past_horizon, judge
from ebbtide.log.config import TopicConfig
from ebbtide.log.segments import Bounds, Cleanable, Segment, cleanable, merged, with_sizes
from ebbtide.log.state import ROUND, PartitionState, to_properties
from ebbtide.tables.batches import merge_changes, read_batches, read_segments, read_undecided
from ebbtide.tables.commits import Step, commit, snapshot_properties
from ebbtide.tables.deletes import delete_rows
from ebbtide.tables.rounds import (
    CleaningRound,
    PartitionRound,
    new_round_id,
    open_round,
    start_round,
)
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.cleaner import RoundEffect, effect_of
from ebbtide.tables.topics import (
    Changes,
    Topic,
    compare_and_set,
    current_snapshot,
    find_snapshot,
    load,
)

VICTIMS_VIEW = "ebbtide_victims"


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What a run of clean_log will do to one topic; no round where nothing is to be done."""

    topic: Topic
    round: CleaningRound | None
    effect: RoundEffect | None
    reasons: Mapping[int, str]  # why a partition is or is not cleaned

    def outcome(self) -> Outcome:
        """The numbers of the plan, which are those of its execution too."""
        outcome = Outcome()
        for partition, state in self.topic.partitions.items():
            outcome.partitions[partition] = {
                "log_start_offset": state.log_start_offset,
                "low_watermark": state.log_start_offset,
                "log_end_offset": state.log_end_offset,
                "picked": False,
                "reason": self.reasons.get(partition, "finishing the round in flight"),
            }
        if self.round is not None and self.effect is not None:
            for partition, numbers in self.effect.numbers.items():
                outcome.partitions[partition] |= {"picked": True, **numbers}
            outcome.rows_removed = self.effect.victims
            outcome.bytes_removed = self.effect.bytes_removed
        return outcome


def plan_clean(topic: Topic, now_ms: int) -> CleanPlan:
    """The round to run on the topic at `now_ms`, or the one in flight, with what it will do."""
    in_flight = open_round(topic)
    if in_flight is not None:
        return CleanPlan(topic, in_flight, effect_of(topic, in_flight), {})
    config = topic.config
    reasons = {p: _why_not(state, config, now_ms) for p, state in topic.partitions.items()}
    candidates = {p: topic.partitions[p] for p, reason in reasons.items() if reason is None}
    chosen: dict[int, PartitionRound] = {}
    if candidates:
        for partition, (part, reason) in _choose(topic, candidates, config, now_ms).items():
            reasons[partition] = reason
            if part is not None:
                chosen[partition] = part
    shown = {p: reason or "" for p, reason in reasons.items()}
    if not chosen:
        return CleanPlan(topic, None, None, shown)
    new_round = _new_round(topic, config, chosen, now_ms)
    return CleanPlan(topic, new_round, effect_of(topic, new_round), shown)


def _why_not(state: PartitionState, config: TopicConfig, now_ms: int) -> str | None:
    if not config.is_compacted:
        return "cleanup.policy does not hold compact"
    if now_ms <= state.cleaned_at_ms:
        return f"now is not later than the last round's, {state.cleaned_at_ms} ms"
    if state.is_clean_at(now_ms):
        return "nothing new, and no horizon reached"
    return None


def _choose(
    topic: Topic, states: Mapping[int, PartitionState], config: TopicConfig, now_ms: int
) -> dict[int, tuple[PartitionRound | None, str]]:
    """Pick as Kafka's cleaner picks; beside that, logs in which a horizon or a marker waits."""
    batches = topic.spark.table(topic.name.batches_table)
    segments = read_segments(batches, states)
    undecided = read_undecided(batches)
    offers = {
        p: _offer(state, segments[p], undecided.get(p, {}), config, now_ms)
        for p, state in states.items()
    }
    choices: dict[int, tuple[PartitionRound | None, str]] = {}
    unpicked = []
    for partition, offer in offers.items():
        if offer.is_picked(config.min_cleanable_dirty_ratio):
            part = _part(states[partition], offer, is_idle=False)
            choices[partition] = part, f"dirty ratio {offer.ratio:.2f}"
        else:
            choices[partition] = None, f"dirty ratio {offer.ratio:.2f} is too low"
            unpicked.append(partition)
    if config.cleans_idle and unpicked:
        logs = read_batches(batches, unpicked)
        holders = _tombstone_batches(topic, unpicked)
        for partition in unpicked:
            part = _part(states[partition], offers[partition], is_idle=True)
            log = part.retained(logs.get(partition, []))
            if reason := _idle_reason(log, part, holders[partition], now_ms):
                choices[partition] = part, reason
    return choices


def _tombstone_batches(topic: Topic, partitions: list[int]) -> dict[int, set[int]]:
    """Base offsets of the batches that hold a tombstone."""
    holders: dict[int, set[int]] = {partition: set() for partition in partitions}
    records = topic.spark.table(topic.name.records_table)
    found = records.where(F.col("is_tombstone") & F.col("partition").isin(partitions))
    for row in found.select("partition", "batch").distinct().collect():
        holders[row["partition"]].add(row["batch"])
    return holders


def _offer(
    state: PartitionState,
    segments: list[Segment],
    open_transactions: Mapping[int, int],
    config: TopicConfig,
    now_ms: int,
) -> Cleanable:
    bounds = Bounds(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        last_stable_offset=min(open_transactions.values(), default=state.log_end_offset),
        first_unmarked_offset=state.first_unmarked_offset,
    )
    return cleanable(segments, bounds, config, now_ms)


def _part(state: PartitionState, offer: Cleanable, *, is_idle: bool) -> PartitionRound:
    return PartitionRound(
        log_start_offset=state.log_start_offset,
        first_segment_offset=state.segments[0][0],
        first_dirty_offset=offer.first_dirty_offset,
        first_uncleanable_offset=offer.first_uncleanable_offset,
        is_idle=is_idle,
    )


def _idle_reason(
    log: list[Batch], part: PartitionRound, tombstone_batches: set[int], now_ms: int
) -> str | None:
    """Why a log that Kafka would leave alone gets a round all the same."""
    this_round = Round(now_ms, 0, part.first_uncleanable_offset, part.log_start_offset)
    for batch, verdict in judge(log, this_round, {}):
        is_marker = batch.is_control and batch.record_count > 0
        may_wait = is_marker or batch.base_offset in tombstone_batches
        if may_wait and is_past_horizon(batch, now_ms):
            return "a delete horizon is reached"
        if is_marker and verdict.is_marker_of_empty_transaction and not batch.delete_horizon_ms:
            return "a transaction marker has outlived its data"
    return None


def _new_round(
    topic: Topic, config: TopicConfig, parts: dict[int, PartitionRound], now_ms: int
) -> CleaningRound:
    records = current_snapshot(topic.spark, topic.name.records_table)
    batches = current_snapshot(topic.spark, topic.name.batches_table)
    assert records is not None
    assert batches is not None
    return CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        segment_bytes=config.segment_bytes,
        records_snapshot=records,
        batches_snapshot=batches,
        partitions=parts,
    )


def execute_clean(plan: CleanPlan) -> Outcome:
    """Run the plan's round; a step whose commit is in the history is not done again."""
    outcome = plan.outcome()
    if plan.round is None or plan.effect is None:
        return outcome
    topic, this_round, effect = plan.topic, plan.round, plan.effect
    start_round(topic, this_round)
    tables = (topic.name.records_table, topic.name.batches_table)
    if effect.victims and not _is_done(topic, tables[0], this_round):
        _delete_victims(topic, this_round, effect)
    if effect.changes.num_rows and not _is_done(topic, tables[1], this_round):
        with snapshot_properties(topic.spark, _summary(this_round, effect.changes.num_rows)):
            commit(
                Step.ROUND_BATCHES, lambda: merge_changes(topic.spark, tables[1], effect.changes)
            )
    compare_and_set(topic, Step.ROUND_STATE, lambda current: _finished(current, this_round, effect))
    effect.judged.unpersist()
    found = (find_snapshot(topic.spark, table, ROUND, this_round.id) for table in tables)
    outcome.snapshot_ids = [snapshot for snapshot in found if snapshot is not None]
    return outcome


def finish_round(topic: Topic) -> Topic:
    """Finish the round that a killed run left; the topic as it is then."""
    if open_round(topic) is None:
        return topic
    execute_clean(plan_clean(topic, 0))
    return load(topic.spark, topic.name)


def _is_done(topic: Topic, table: str, this_round: CleaningRound) -> bool:
    return find_snapshot(topic.spark, table, ROUND, this_round.id) is not None


def _summary(this_round: CleaningRound, rows: int) -> dict[str, str]:
    return {ROUND: this_round.id, "ebbtide.rows": str(rows)}


def _delete_victims(topic: Topic, this_round: CleaningRound, effect: RoundEffect) -> None:
    victims: DataFrame = effect.judged.where("rule IS NOT NULL").select("partition", "offset")
    victims.createOrReplaceTempView(VICTIMS_VIEW)
    bounds = " OR ".join(
        f"(`partition` = {p} AND segment < {part.first_uncleanable_offset})"
        for p, part in this_round.partitions.items()
    )
    delete_rows(
        topic.spark,
        topic.name.records_table,
        f"({bounds}) AND EXISTS (SELECT 1 FROM {VICTIMS_VIEW} AS victim "
        f"WHERE victim.`partition` = {topic.name.records_table}.`partition` "
        f"AND victim.offset = {topic.name.records_table}.offset)",
        Step.ROUND_RECORDS,
        _summary(this_round, effect.victims),
    )


def _finished(current: Topic, this_round: CleaningRound, effect: RoundEffect) -> Changes | None:
    in_flight = open_round(current)
    if in_flight is None or in_flight.id != this_round.id:
        return None
    changes: dict[str, str | None] = {ROUND: None}
    for partition, part in this_round.partitions.items():
        state = current.partitions[partition]
        changes |= to_properties(
            partition, _state_after(state, part, this_round, effect, partition)
        )
    return changes


def _state_after(
    state: PartitionState,
    part: PartitionRound,
    this_round: CleaningRound,
    effect: RoundEffect,
    partition: int,
) -> PartitionState:
    segments = with_sizes(state.segments, effect.logs[partition])
    after = merged(segments, part.first_uncleanable_offset, this_round.segment_bytes)
    first_dirty = state.first_dirty_offset if part.is_idle else part.first_uncleanable_offset
    moved: dict[str, Any] = {
        "first_dirty_offset": first_dirty,
        "segments": tuple((segment.base_offset, segment.modified_ms) for segment in after),
        "cleaned_at_ms": this_round.now_ms,
        "cleaned_end_offset": state.log_end_offset,
        "next_clean_ms": _next_clean(after, first_dirty, effect.next_clean_ms[partition]),
    }
    return state.moved(**moved)


def _next_clean(segments: list[Segment], first_dirty: int, waits_until_ms: int) -> int:
    """At once where dirty segments were left behind, since their time depends on the clock."""
    has_dirty = any(first_dirty <= segment.base_offset for segment in segments[:-1])
    return 0 if has_dirty else waits_until_ms
