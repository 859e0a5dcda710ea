"""clean_log: which logs get a cleaner round now, and the round itself (KIP-534).

Order of a round: written down, records, that they are done, batches, state. The commits on the
tables are tagged, and so are the snapshots that they were planned on, until the state has moved: a
killed round is planned again on what it had read, and a step that was done is left out, so that it
ends where an unbroken one would, also when other tools have rewritten files or expired snapshots.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ebbtide.columns.batch_headers import BatchHeaders
from ebbtide.columns.log_headers import LogHeaders, LogOutline
from ebbtide.columns.rewritten_batches import ORDINARY
from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.batch_rows import look_at_headers, prepare_changes
from ebbtide.iceberg.files.data_files import SegmentFiles, count_rows, plan_segments, read_segment
from ebbtide.iceberg.files.file_commits import Commit, RowDelta, prepare_row_delta
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.holds import Hold, held_by, release
from ebbtide.iceberg.replica_tables import held_back_from
from ebbtide.iceberg.topics import (
    Changes,
    Topic,
    compare_and_set,
    current_snapshot,
    find_snapshot,
    load,
    read_again,
)
from ebbtide.iceberg.unfinished.planned_merge import check_no_merge
from ebbtide.iceberg.unfinished.planned_round import (
    CleaningRound,
    PartitionRound,
    is_open,
    new_round_id,
    open_round,
    start_round,
)
from ebbtide.log.batch_header import Batch
from ebbtide.log.compaction import MAX_OFFSET, Round, idle_reason, is_past_horizon, judge
from ebbtide.log.logical_segments import Bounds, Cleanable, Segment, cleanable, merged
from ebbtide.log.results import Reason
from ebbtide.log.settings.config import TopicConfig
from ebbtide.log.state.topic_state import NEVER, ROUND, PartitionState, to_properties
from ebbtide.records.attributes import DELETE_HORIZON
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import MOST_LINES, log_partitions
from ebbtide.spark.tasks import is_on_driver, map_segments, start_workers
from ebbtide.stages.clean_log.cleaner import RoundEffect, effect_of
from ebbtide.stages.clean_log.lost_round import abandon_round
from ebbtide.text import moment

log = logging.getLogger(__name__)

# How often the batches are prepared anew where other tools move them meanwhile.
COMMIT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """What a run of clean_log will do to one topic; no round where nothing is to be done."""

    topic: Topic
    round: CleaningRound | None
    effect: RoundEffect | None
    reasons: Mapping[int, str]  # why a partition is or is not cleaned

    def outcome(self) -> JobOutcome:
        """The numbers of the plan, which are those of its execution too."""
        outcome = JobOutcome()
        for partition in self.topic.partitions:
            reason = self.reasons.get(partition, "finishing the round in flight")
            numbers = {"picked": False, "reason": reason}
            outcome.partitions[partition] = self.topic.offsets_of(partition) | numbers
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
        log.info("finishes the round begun at %s UTC", moment(in_flight.now_ms))
        in_flight = _repinned(topic, in_flight)
        return CleanPlan(topic, in_flight, effect_of(topic, in_flight), {})
    config = topic.config
    reasons = {p: _why_not(state, config, now_ms) for p, state in topic.partitions.items()}
    candidates = [p for p, reason in reasons.items() if reason is None]
    if not is_on_driver(topic.spark, sum(_offsets_held(topic.partitions[p]) for p in candidates)):
        start_workers(topic.spark, effect_of)
    pins = _pins(topic) if candidates else None
    if pins is None:
        _log_left(reasons)
        return CleanPlan(topic, None, None, _shown(reasons))
    outlines = {
        p: LogOutline(state.log_start_offset, state.segments, now_ms)
        for p, state in topic.partitions.items()
        if p in candidates
    }
    headers = look_at_headers(topic.spark, topic.name.batches_table, outlines, pins.batches)
    chosen: dict[int, PartitionRound] = {}
    choices = _choose(topic, headers, (pins, now_ms), held_back_from(topic))
    for partition, (part, reason) in choices.items():
        reasons[partition] = reason
        if part is not None:
            chosen[partition] = part
    log_partitions(log, {p: _picked(part, reasons[p] or "") for p, part in chosen.items()})
    _log_left({p: reason for p, reason in reasons.items() if p not in chosen})
    if not chosen:
        return CleanPlan(topic, None, None, _shown(reasons))
    new_round = _new_round(config, chosen, pins, now_ms)
    return CleanPlan(topic, new_round, effect_of(topic, new_round, headers), _shown(reasons))


def _picked(part: PartitionRound, reason: str) -> str:
    first, end = part.dirty
    return f"picked ({reason}), offsets {first} to {end} are dirty"


def _log_left(reasons: Mapping[int, str | None]) -> None:
    """Log why partitions are not picked, and how many for the same reason."""
    for reason, partitions in Counter(reasons.values()).most_common(MOST_LINES):
        log.info("%d partitions not picked: %s", partitions, reason or "nothing to clean")


class _Pins(NamedTuple):
    """The snapshots that a round reads."""

    records: int
    batches: int


def _pins(topic: Topic) -> _Pins | None:
    """The newest snapshots; None for a topic that holds nothing.

    CommitConflictError where a merge moves rows meanwhile: the tables may differ in segments.
    """
    records = current_snapshot(topic.spark, topic.name.records_table)
    batches = current_snapshot(topic.spark, topic.name.batches_table)
    check_no_merge(read_again(topic), since=topic)
    return None if records is None or batches is None else _Pins(records, batches)


def _repinned(topic: Topic, in_flight: CleaningRound) -> CleaningRound:
    """A round in flight, as of the snapshots before its own commits, else the newest ones.

    Other tools may have moved rows to other files, and what is below the round's bound is decided,
    so that newer rows say the same.
    """
    pins = _pins(topic)
    if pins is None:
        return in_flight
    hold, name = _hold(in_flight), topic.name
    records = held_by(topic.spark, name.records_table, hold).before
    if records is None and _are_records_done(topic, in_flight):
        records = in_flight.records_snapshot
    batches = held_by(topic.spark, name.batches_table, hold).before
    if batches is None and _is_done(topic, name.batches_table, in_flight):
        batches = in_flight.batches_snapshot
    return replace(
        in_flight,
        records_snapshot=pins.records if records is None else records,
        batches_snapshot=pins.batches if batches is None else batches,
    )


def _offsets_held(state: PartitionState) -> int:
    """How many records a partition may hold."""
    return state.log_end_offset - state.log_start_offset


def _shown(reasons: Mapping[int, str | None]) -> dict[int, str]:
    return {partition: reason or "" for partition, reason in reasons.items()}


def _why_not(state: PartitionState, config: TopicConfig, now_ms: int) -> str | None:
    if not config.is_compacted:
        return Reason.NOT_COMPACTED
    if now_ms <= state.cleaned_at_ms:
        return f"now is not later than the last round's, {state.cleaned_at_ms} ms"
    if state.is_clean_at(now_ms):
        return Reason.CLEAN
    return None


def _choose(
    topic: Topic,
    headers: Mapping[int, LogHeaders],
    at: tuple[_Pins, int],
    held_back: Mapping[int, int],
) -> dict[int, tuple[PartitionRound | None, str]]:
    """Pick as Kafka's cleaner picks; beside that, logs in which a horizon or a marker waits."""
    config, states, now_ms = topic.config, topic.partitions, at[1]
    choices: dict[int, tuple[PartitionRound | None, str]] = {}
    idle: dict[int, PartitionRound] = {}
    for partition, of_partition in headers.items():
        offer = _offer(states[partition], of_partition, config, now_ms)
        is_picked = offer.is_picked(config.min_cleanable_dirty_ratio)
        part = PartitionRound(
            log_start_offset=states[partition].log_start_offset,
            first_segment_offset=states[partition].segments[0][0],
            first_dirty_offset=offer.first_dirty_offset,
            first_uncleanable_offset=offer.first_uncleanable_offset,
            is_idle=not is_picked,
            held_back_from=held_back.get(partition, MAX_OFFSET),
        )
        if is_picked:
            choices[partition] = part, f"dirty ratio {offer.ratio:.2f}"
        else:
            choices[partition] = None, f"dirty ratio {offer.ratio:.2f} is too low"
            idle[partition] = part
    if config.cleans_idle:
        for partition, reason in _idle_reasons(topic, headers, idle, at).items():
            choices[partition] = idle[partition], reason
    return choices


def _offer(
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
    at: tuple[_Pins, int],
) -> dict[int, str]:
    """Why logs that Kafka would leave alone get a round all the same."""
    pins, now_ms = at
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
    """The data batches whose horizon is reached; they may hold no tombstone any more."""
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
    """The base offsets of the `due` batches that still hold a tombstone, by partition."""
    bases = {partition: {batch.base_offset for batch in of} for partition, of in due.items()}
    ends = {partition: max(of) + 1 for partition, of in bases.items()}
    if not ends:
        return {}
    units = plan_segments(topic.spark, topic.name.records_table, records_snapshot, ends)
    found: dict[int, set[int]] = {partition: set() for partition in due}
    find = partial(_tombstone_batches, bases)
    held = map_segments(topic.spark, find, units, count_rows(units), "looks for tombstones in")
    for unit, of_segment in zip(units, held, strict=True):
        found[unit.partition] |= of_segment
    return found


def _tombstone_batches(bases: Mapping[int, set[int]], unit: SegmentFiles) -> set[int]:
    """In a task: which of the batches hold a tombstone of the segment."""
    rows = read_segment(unit, ("offset", "batch", "is_tombstone")).table
    batches = set(rows["batch"].to_numpy()[rows["is_tombstone"].to_numpy()].tolist())
    return batches & bases[unit.partition]


def _new_round(
    config: TopicConfig, parts: dict[int, PartitionRound], pins: _Pins, now_ms: int
) -> CleaningRound:
    return CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        segment_bytes=config.segment_bytes,
        records_snapshot=pins.records,
        batches_snapshot=pins.batches,
        partitions=parts,
    )


def execute_clean(plan: CleanPlan) -> JobOutcome:
    """Run the plan's round; a step whose commit is in the history is not done again."""
    outcome = plan.outcome()
    if plan.round is None or plan.effect is None:
        return outcome
    topic, this_round, effect = plan.topic, plan.round, plan.effect
    tables = (topic.name.records_table, topic.name.batches_table)
    start_round(topic, this_round)
    # All is written before the first commit, so that little time lies between the two.
    with ThreadPoolExecutor() as pool:
        records, batches = (
            pool.submit(copy_context().run, prepare, topic, this_round, effect)
            for prepare in (_prepare_records, _prepare_batches)
        )
    if (deletions := records.result()) is not None:
        commit(Step.ROUND_RECORDS, deletions)
        done = partial(_records_done, this_round)
        compare_and_set(topic, Step.ROUND_RECORDS_DONE, done)
    _commit_batches(topic, this_round, effect, batches.result())
    held = [held_by(topic.spark, table, _hold(this_round)).own for table in tables]
    outcome.snapshot_ids = [snapshot for snapshot in held if snapshot is not None]
    after = set_counted(
        topic, Step.ROUND_STATE, lambda current: _finished(current, this_round, effect)
    )
    release(topic.spark, tables, partial(is_open, after))
    return outcome


def _prepare_records(topic: Topic, this_round: CleaningRound, effect: RoundEffect) -> Commit | None:
    """What deletes the records; None where there is none, or they are deleted already."""
    if not effect.deletions or _are_records_done(topic, this_round):
        return None
    return prepare_row_delta(
        topic.spark,
        topic.name.records_table,
        {p: part.first_uncleanable_offset for p, part in this_round.partitions.items()},
        RowDelta(effect.deletions),
        _summary(this_round, effect.victims),
        hold=_hold(this_round),
        before=this_round.records_snapshot,
    )


def _prepare_batches(topic: Topic, this_round: CleaningRound, effect: RoundEffect) -> Commit | None:
    """What changes the batches, likewise."""
    table = topic.name.batches_table
    if not effect.changes.num_rows or _is_done(topic, table, this_round):
        return None
    said = _summary(this_round, len(effect.changes))
    return prepare_changes(topic.spark, table, effect.changes, said, _hold(this_round))


def _commit_batches(
    topic: Topic, this_round: CleaningRound, effect: RoundEffect, prepared: Commit | None
) -> None:
    """Commit what was prepared; the same changes again where other tools moved the rows."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        if prepared is None:
            return
        try:
            commit(Step.ROUND_BATCHES, prepared)
            return
        except CommitConflictError:
            if attempt == COMMIT_ATTEMPTS:
                raise
            prepared = _prepare_batches(topic, this_round, effect)


def _records_done(this_round: CleaningRound, current: Topic) -> Changes | None:
    """The round, with a word that its records are deleted."""
    found = open_round(current)
    if found is None or found.id != this_round.id:
        return None
    return {ROUND: replace(found, are_records_done=True).to_json()}


def give_up_lost_round(topic: Topic) -> Topic:
    """Give up a round in flight that cannot be finished; the topic as it is then."""
    in_flight = open_round(topic)
    if in_flight is None or _is_readable(topic, _repinned(topic, in_flight)):
        return topic
    return abandon_round(topic, in_flight)


def _is_readable(topic: Topic, this_round: CleaningRound) -> bool:
    """Whether the snapshots are there that the round has to read."""
    tables = (
        (topic.name.records_table, this_round.records_snapshot),
        (topic.name.batches_table, this_round.batches_snapshot),
    )
    return all(java_table(topic.spark, table).snapshot(s) is not None for table, s in tables)


def finish_round(topic: Topic) -> Topic:
    """Finish the round that a killed run left, if there is one; the topic as it is then."""
    if open_round(topic) is None:
        return topic
    execute_clean(plan_clean(topic, 0))
    return load(topic.spark, topic.name)


def _hold(this_round: CleaningRound) -> Hold:
    return Hold("round", this_round.id)


def _are_records_done(topic: Topic, this_round: CleaningRound) -> bool:
    found = open_round(topic)
    is_said = found is not None and found.id == this_round.id and found.are_records_done
    return is_said or _is_done(topic, topic.name.records_table, this_round)


def _is_done(topic: Topic, table: str, this_round: CleaningRound) -> bool:
    """Whether the round's commit on the table was made; the history tells of older versions'."""
    if held_by(topic.spark, table, _hold(this_round)).own is not None:
        return True
    return find_snapshot(topic.spark, table, ROUND, this_round.id) is not None


def _summary(this_round: CleaningRound, rows: int) -> dict[str, str]:
    return {ROUND: this_round.id, "ebbtide.rows": str(rows)}


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
    known = {segment.base_offset: segment for segment in effect.segments[partition]}
    segments = [
        known.get(base, Segment(base, ms))._replace(modified_ms=ms) for base, ms in state.segments
    ]
    after = merged(segments, part.first_uncleanable_offset, this_round.segment_bytes)
    first_dirty = state.first_dirty_offset if part.is_idle else part.first_uncleanable_offset
    moved: dict[str, Any] = {
        "first_dirty_offset": first_dirty,
        "segments": tuple((segment.base_offset, segment.modified_ms) for segment in after),
        "cleaned_at_ms": this_round.now_ms,
        "cleaned_end_offset": state.log_end_offset,
        "next_clean_ms": effect.next_clean_ms[partition],
        "horizon_ms": effect.numbers[partition]["next_horizon_ms"] or NEVER,
    }
    return state.moved(**moved)
