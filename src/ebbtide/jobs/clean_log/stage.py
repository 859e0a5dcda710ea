"""clean_log: choose the logs that get a cleaner round now, and run the round (KIP-534).

Order: plan written to the state, records, records marked as done in the state, batches, state.
Until the state has moved, tags pin the round's commits and the snapshots that it was planned on.
So a killed round is planned again on the same input, and its finished steps are skipped. The result
is that of an unbroken round, even if other tools rewrite files or expire snapshots.

Order on an adopted table: new rows counted in the state, plan written to the state, one commit that
removes the rows, state. If the commit of a killed round is in the table's history, only the state
is still written. If not, the round is planned again on the newest snapshot, with its `now` and its
bounds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyroaring import BitMap64

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.adopted.removal import prepare_removal
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.batch_rows import prepare_changes
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.file_commits import Commit, RowDelta, prepare_row_delta
from ebbtide.iceberg.foreign_changes import set_counted
from ebbtide.iceberg.in_flight import (
    CleaningRound,
    PartitionRound,
    is_open,
    new_round_id,
    open_round,
    start_round,
)
from ebbtide.iceberg.topics import (
    PropertyChanges,
    ReplicaEnd,
    Topic,
    compare_and_set,
    first_segments_now,
    is_still_adopted,
    load,
    while_adopted,
)
from ebbtide.iceberg.work_tags import WorkTag, is_committed, release_tags, tagged_by
from ebbtide.jobs.clean_log.choice import UNBOUNDED, RoundBounds, bounds_of_round, choose
from ebbtide.jobs.clean_log.cleaner import effect_of
from ebbtide.jobs.clean_log.judge_batches import BatchesJudge, newest_pins
from ebbtide.jobs.clean_log.judge_rows import (
    RowsEffect,
    RowsJudge,
    resume_on_rows,
    state_after_rows,
)
from ebbtide.jobs.clean_log.lost_round import abandon_round
from ebbtide.jobs.clean_log.segment_round import RoundEffect, nothing_leaves, summaries_of
from ebbtide.jobs.table_layout import ObservedLog, layout_of
from ebbtide.kafka.reasons import Reason
from ebbtide.kafka.transactions import OpenTransaction
from ebbtide.ledger.holds import that_keep
from ebbtide.ledger.plans import PartitionSummary, Removal
from ebbtide.moments import later, minute, second
from ebbtide.runner.holds import holds_at, keep_leaving, pauses_on
from ebbtide.runner.job import Proposal, Touched
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import DEADLINE_MS
from ebbtide.spark.job_log import MOST_LINES, log_partitions
from ebbtide.state.covered_offsets import count_missing
from ebbtide.state.deletes import AllDeletes, after_round, settled
from ebbtide.state.logical_segments import Segment, merged
from ebbtide.state.topic_state import NEVER, ROUND, PartitionState, settings_of, to_changes
from ebbtide.text import number


def finish_state(
    this_round: CleaningRound, effect: RoundEffect, current: Topic
) -> PropertyChanges | None:
    """Return the property changes that end the round, or None if it is no longer in flight."""
    in_flight = open_round(current)
    if in_flight is None or in_flight.id != this_round.id:
        return None
    changes: dict[str, str | None] = {ROUND: None}
    for partition, part in in_flight.partitions.items():
        state = current.partitions[partition]
        if current.is_adopted:
            after = state_after_rows(state, in_flight, partition)
        else:
            after = _after_batches(state, partition, this_round, effect)
            after = replace(after, deletes=_deletes_after(after, part, this_round, current))
        end = part.first_uncleanable_offset
        after = after.moved(
            first_dirty_offset=state.first_dirty_offset if part.is_idle else end,
            cleaned_at_ms=this_round.now_ms,
            cleaned_end_offset=state.log_end_offset,
        )
        changes |= to_changes(partition, after)
    return changes


def _deletes_after(
    after: PartitionState, part: PartitionRound, this_round: CleaningRound, current: Topic
) -> AllDeletes:
    """Return the tombstones that are not off the disk after the round, if there is a deadline."""
    if current.deadline is None:
        return ()
    horizon_ms = later(this_round.now_ms, this_round.delete_retention_ms)
    deletes = after_round(after.deletes, part.first_uncleanable_offset, horizon_ms)
    return settled(deletes, after.log_start_offset, after.next_horizon_ms)


def _after_batches(
    state: PartitionState, partition: int, this_round: CleaningRound, effect: RoundEffect
) -> PartitionState:
    known = {segment.base_offset: segment for segment in effect.segments[partition]}
    segments = [
        known.get(base, Segment(base, ms))._replace(modified_ms=ms) for base, ms in state.segments
    ]
    end = this_round.partitions[partition].first_uncleanable_offset
    return state.moved(
        segments=tuple(
            merged_segment.start
            for merged_segment in merged(segments, end, this_round.segment_bytes)
        ),
        next_clean_ms=effect.next_clean_ms[partition],
        horizon_ms=effect.numbers[partition]["next_horizon_ms"] or NEVER,
    )


log = logging.getLogger(__name__)

# How often the commit of the batches is tried while other tools move their rows.
COMMIT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class CleanPlan(Proposal):
    """The plan of clean_log for one topic, without a round if no partition gets one."""

    topic: Topic
    round: CleaningRound | None
    effect: RoundEffect | None
    reasons: Mapping[int, str]  # why a partition is or is not cleaned
    # By partition, if the dirty ratio decides about a round.
    dirty_ratios: Mapping[int, float] = field(default_factory=dict)
    # By partition, if an open transaction shortens the round.
    blockers: Mapping[int, OpenTransaction] = field(default_factory=dict)
    replica_ends: Mapping[int, ReplicaEnd] = field(default_factory=dict)
    now_ms: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)  # why a partition cannot be cleaned
    # Of partitions without a round: due tombstones and markers that wait for a replica.
    held_back: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    log: ObservedLog | None = None  # of an adopted table with rows and no round in flight

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan. Its execution has the same numbers."""
        outcome = JobOutcome()
        for partition, state in self.topic.partitions.items():
            reason = self.reasons.get(partition, "finishing the round in flight")
            numbers: dict[str, Any] = {"picked": False, "reason": reason}
            if state.missing:
                numbers["missing_offsets"] = count_missing(state.missing)
            if partition in self.dirty_ratios:
                numbers["dirty_ratio"] = round(self.dirty_ratios[partition], 4)
            if (blocker := self.blockers.get(partition)) is not None:
                numbers["open_transaction"] = blocker._asdict()
            if partition in self.refused:
                numbers["uncleanable"] = True
            if partition in self.held_back:
                numbers["waiting_for_replicas"] = dict(self.held_back[partition])
            outcome.partitions[partition] = self.topic.offsets_of(partition) | numbers
        if self.round is not None and self.effect is not None:
            for partition, numbers in self.effect.numbers.items():
                outcome.partitions[partition] |= {"picked": True, **numbers}
        for partition, numbers in outcome.partitions.items():
            if notes := list(self._notes(partition, numbers)):
                numbers["note"] = "; ".join(notes)
        if self.round is not None and self.effect is not None:
            outcome.rows_removed = self.effect.victims
            outcome.bytes_removed = self.effect.bytes_removed
        if isinstance(self.effect, RowsEffect) and self.effect.found.files.all:
            read, of_all = self.effect.found.files
            outcome.topic |= {"files_read": read, "files": of_all}
        if self.log is not None:
            outcome.topic |= self.log.result
        return outcome

    def _notes(self, partition: int, numbers: Mapping[str, Any]) -> Iterator[str]:
        """Yield each obstacle to a partition's round or to its removals, with the remedy."""
        if partition in self.refused:
            yield f"cannot be cleaned: {self.refused[partition]}"
        if (blocker := self.blockers.get(partition)) is not None:
            yield (
                f"{blocker.in_words(self.now_ms)}; if this producer has stopped, abort its "
                f"transaction: kafka-transactions.sh abort --topic {self.topic.name.topic} "
                f"--partition {partition} --start-offset {blocker.first_offset}"
            )
        end, waiting = (
            self.replica_ends.get(partition),
            sum(numbers.get("waiting_for_replicas", {}).values()),
        )
        if end is not None and waiting:
            yield (
                f"{number(waiting)} tombstones and markers are due and wait for the replica "
                f"{end.in_words()}"
            )
        if (late := self._nearly_late(partition)) is not None:
            yield late

    def _nearly_late(self, partition: int) -> str | None:
        """Return a warning if the next nightly run may be too late for a delete, or None."""
        deadline, state = self.topic.deadline, self.topic.partitions[partition]
        if deadline is None:
            return None
        part = None if self.round is None else self.round.partitions.get(partition)
        end = 0 if part is None or part.is_idle else part.first_uncleanable_offset
        removed = 0 if part is None else min(part.first_uncleanable_offset, part.held_back_from)
        if (group := deadline.uncovered(state, self.now_ms, end, removed)) is None:
            return None
        is_active = group.first_offset >= state.active_segment
        why = ": it is in the active segment" if is_active else ""
        return (
            f"the next nightly run may be too late for a delete from offset {group.first_offset} "
            f"on, which must be off the disk by {minute(deadline.ends_ms(group))} UTC "
            f"({DEADLINE_MS}){why}"
        )

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the removed records and markers, by partition."""
        planned = {} if self.effect is None else self.effect.planned
        return {partition: rows.offsets for partition, rows in planned.items()}

    def touches(self) -> Touched:
        """Return the round's partitions and the snapshots that it was planned on.

        A round in flight on an adopted table has its undo point since it began.
        """
        if self.round is None or (self.topic.is_adopted and self.log is None):
            return Touched()
        batches = None if self.topic.is_adopted else self.round.batches_snapshot
        return Touched(self.round.partitions, self.round.records_snapshot, batches)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the round's bounds by partition."""
        return bounds_of_round(self.round)

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the removals by rule and the retained records by reason, for each partition."""
        effect = RoundEffect() if self.effect is None else self.effect
        is_clear = self.topic.config.plans_show_keys
        picked = summaries_of(effect, shows_keys=is_clear)
        return {
            p: picked.get(p) or nothing_leaves(self.reasons.get(p, ""))
            for p in self.topic.partitions
        }

    def left_to_a_night(self) -> CleanPlan:
        """Return a plan without a round, since a stored plan does not allow its removals."""
        reasons = dict.fromkeys(self.topic.partitions, Reason.NOT_PLANNED)
        return CleanPlan(self.topic, None, None, {**self.reasons, **reasons})

    @property
    def removal(self) -> Removal:
        """The round's removals, for the guards. A round in flight counts as none."""
        if self.effect is None or not self.reasons:
            return Removal(0, 0)
        return Removal(self.effect.victims, self.effect.bytes_removed)


def plan_clean(
    topic: Topic,
    now_ms: int,
    bounds: Mapping[int, RoundBounds] | None = None,
    *,
    keeps_offsets: bool = False,
) -> CleanPlan:
    """Plan a round on the topic at `now_ms`, or the rest of the round in flight, with its effect.

    `bounds` are a stored plan's, by partition; a partition without bounds gets no round. With
    `keeps_offsets`, the effect lists the offsets of the removed records.
    """
    if (in_flight := open_round(topic)) is not None:
        return _resumed(topic, in_flight, now_ms, keeps_offsets=keeps_offsets)
    ends = {p: bound.first_uncleanable_offset for p, bound in (bounds or {}).items()}
    log_now = layout_of(topic).observe(now_ms, ends)
    if log_now is None:  # an adopted table without a snapshot
        return CleanPlan(
            Topic(topic.name, settings_of(topic.properties), topic.spark), None, None, {}
        )
    judge, observed, holds = _judge_of(log_now, now_ms), log_now.observed, holds_at(topic, now_ms)
    reasons = _reasons_against(observed, judge, now_ms, bounds) | pauses_on(observed, holds)
    candidates = {
        p: UNBOUNDED if bounds is None else bounds[p]
        for p in observed.partitions
        if p not in reasons
    }
    choice = choose(
        judge.read(candidates),
        topic.config,
        candidates,
        now_ms,
        judge.idle_reasons,
        topic.deadline,
    )
    shown = {p: reasons.get(p, "") for p in observed.partitions} | choice.reasons
    _log_choice(choice.parts, shown)
    plan = CleanPlan(
        observed,
        None,
        None,
        shown,
        choice.dirty_ratios,
        choice.blockers,
        choice.replica_ends,
        now_ms,
        log=log_now if topic.is_adopted else None,
        held_back=judge.held_back(choice.left) if isinstance(judge, BatchesJudge) else {},
    )
    if not choice.parts or judge.pins is None:
        return plan
    new_round = CleaningRound(
        id=new_round_id(),
        now_ms=now_ms,
        delete_retention_ms=topic.config.delete_retention_ms,
        producer_id_expiration_ms=topic.config.producer_id_expiration_ms,
        segment_bytes=topic.config.segment_bytes,
        records_snapshot=judge.pins.records,
        batches_snapshot=judge.pins.batches,
        partitions=choice.parts,
    )
    effect = judge.effect(new_round, keeps_offsets=keeps_offsets or bool(that_keep(holds)))
    for partition, why in effect.refused.items():
        log.warning("partition %d cannot be cleaned: %s", partition, why)
    plan = replace(plan, reasons=shown | effect.refused, refused=effect.refused)
    cleaned = {p: part for p, part in choice.parts.items() if p not in effect.refused}
    if not cleaned:
        return plan
    removed = effect.found.removed if isinstance(effect, RowsEffect) else {}
    return replace(
        plan, round=replace(new_round, partitions=cleaned, removed=removed), effect=effect
    )


def _judge_of(log_now: ObservedLog, now_ms: int) -> BatchesJudge | RowsJudge:
    topic = log_now.topic
    if topic.is_adopted:
        return RowsJudge(AdoptedRows.of(topic), log_now, now_ms)
    return BatchesJudge(topic, now_ms)


def _reasons_against(
    topic: Topic,
    judge: BatchesJudge | RowsJudge,
    now_ms: int,
    bounds: Mapping[int, RoundBounds] | None,
) -> dict[int, str]:
    """Return the reason of each partition that gets no round, however dirty it is."""
    not_planned: dict[int, str] = {}
    if bounds is not None:
        not_planned = {p: Reason.NOT_PLANNED for p in topic.partitions if p not in bounds}
    against: dict[int, str] = {}
    for partition, state in topic.partitions.items():
        if not topic.config.is_compacted:
            against[partition] = Reason.NOT_COMPACTED
        elif why := judge.reason_against(state):
            against[partition] = why
        elif now_ms <= state.cleaned_at_ms:
            last = second(state.cleaned_at_ms)
            against[partition] = f"`now` is not later than that of the last round, {last} UTC"
    return not_planned | against if topic.is_adopted else against | not_planned


def _resumed(
    topic: Topic, in_flight: CleaningRound, now_ms: int, *, keeps_offsets: bool
) -> CleanPlan:
    """Return the plan that finishes a killed job's round."""
    log.info("finishing the round begun at %s UTC", minute(in_flight.now_ms))
    if topic.is_adopted:
        return CleanPlan(topic, *resume_on_rows(topic, in_flight), {})
    in_flight = _repinned(topic, in_flight)
    keeps_offsets = keeps_offsets or bool(that_keep(holds_at(topic, now_ms)))
    effect = effect_of(topic, in_flight, keeps_offsets=keeps_offsets)
    return CleanPlan(topic, in_flight, effect, {})


def _log_choice(picked: Mapping[int, PartitionRound], reasons: Mapping[int, str]) -> None:
    """Log the picked partitions, and by reason the number of partitions not picked."""
    lines = {}
    for partition, part in picked.items():
        first, end = part.dirty
        lines[partition] = f"picked ({reasons[partition]}), offsets {first} to {end} are dirty"
    log_partitions(log, lines)
    left = Counter(reason for p, reason in reasons.items() if p not in picked)
    for reason, partitions in left.most_common(MOST_LINES):
        log.info("%d partitions not picked: %s", partitions, reason or "nothing to clean")


def _repinned(topic: Topic, in_flight: CleaningRound) -> CleaningRound:
    """Return the round on each table's snapshot before its commit, or on the newest without one.

    Other tools may have moved rows to other files. Everything below the round's bound is decided,
    so newer snapshots give the same result.
    """
    pins = newest_pins(topic)
    if pins is None:
        return in_flight
    tag, name = _tag(in_flight), topic.name
    records = tagged_by(topic.spark, name.records_table, tag).before
    if records is None and _are_records_done(topic, in_flight):
        records = in_flight.records_snapshot
    batches = tagged_by(topic.spark, name.batches_table, tag).before
    if batches is None and is_committed(topic.spark, name.batches_table, _tag(in_flight)):
        batches = in_flight.batches_snapshot
    return replace(
        in_flight,
        records_snapshot=pins.records if records is None else records,
        batches_snapshot=pins.batches if batches is None else batches,
    )


def execute_clean(plan: CleanPlan) -> JobOutcome:
    """Run the plan's round. Steps whose commits are in the history are skipped.

    Also without a round, new rows of an adopted table are counted in the state.
    """
    outcome = plan.outcome()
    topic = plan.topic if plan.log is None else plan.log.write_down()
    if plan.round is None or plan.effect is None:
        return outcome
    if isinstance(plan.effect, RowsEffect):
        start_round(plan.topic, plan.round)
        _remove_rows(topic, plan.round, plan.effect, outcome)
        return outcome
    this_round, effect = plan.round, plan.effect
    tables = (topic.name.records_table, topic.name.batches_table)
    if kept := keep_leaving(topic, plan.removes()):
        outcome.topic["copied_for_holds"] = kept
    start_round(topic, this_round)
    # All files are written before the first commit, so that the second follows soon.
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
    held = [tagged_by(topic.spark, table, _tag(this_round)).own for table in tables]
    outcome.snapshot_ids = [snapshot for snapshot in held if snapshot is not None]
    after = set_counted(topic, Step.ROUND_STATE, partial(finish_state, this_round, effect))
    release_tags(topic.spark, tables, partial(is_open, after))
    return outcome


def _remove_rows(
    topic: Topic, this_round: CleaningRound, effect: RowsEffect, outcome: JobOutcome
) -> None:
    """Run a round on an adopted table that has begun: one commit removes its rows."""
    if effect.found.positions:
        table, snapshot = topic.name.records_table, this_round.records_snapshot
        if kept := keep_leaving(topic, effect.found.offsets, snapshot=snapshot):
            outcome.topic["copied_for_holds"] = kept
        summary = {**_summary(this_round, effect.victims), TOPIC: str(topic.name)}
        prepared = prepare_removal(topic.spark, table, snapshot, effect.found.positions, summary)
        snapshot = commit(Step.ROUND_RECORDS, while_adopted(topic, prepared))
        outcome.snapshot_ids.append(snapshot)
    try:
        compare_and_set(topic, Step.ROUND_STATE, partial(finish_state, this_round, effect))
    except CommitConflictError:
        if is_still_adopted(topic):
            raise
        log.warning("abandon_table ran meanwhile: the rows are removed, the state is dropped")


def _prepare_records(topic: Topic, this_round: CleaningRound, effect: RoundEffect) -> Commit | None:
    """Prepare the deletion of the round's records, or return None if none are left to delete."""
    if not effect.deletions or _are_records_done(topic, this_round):
        return None
    return prepare_row_delta(
        topic.spark,
        topic.name.records_table,
        {p: part.first_uncleanable_offset for p, part in this_round.partitions.items()},
        RowDelta(effect.deletions),
        _summary(this_round, effect.victims),
        tag=_tag(this_round),
        before=this_round.records_snapshot,
    )


def _prepare_batches(topic: Topic, this_round: CleaningRound, effect: RoundEffect) -> Commit | None:
    """Prepare the round's changes to batches, or return None if none are left to commit."""
    table = topic.name.batches_table
    if not effect.changes.count or is_committed(topic.spark, table, _tag(this_round)):
        return None
    summary = _summary(this_round, effect.changes.count)
    return prepare_changes(
        topic.spark,
        table,
        effect.changes,
        summary,
        _tag(this_round),
        partial(first_segments_now, topic),
    )


def _commit_batches(
    topic: Topic, this_round: CleaningRound, effect: RoundEffect, prepared: Commit | None
) -> None:
    """Commit the prepared changes. If other tools moved the rows, prepare them again."""
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


def _records_done(this_round: CleaningRound, current: Topic) -> PropertyChanges | None:
    """Return the change that marks the round's records as deleted, or None if it has ended."""
    in_flight = open_round(current)
    if in_flight is None or in_flight.id != this_round.id:
        return None
    return {ROUND: replace(in_flight, are_records_done=True).to_json()}


def give_up_lost_round(topic: Topic) -> Topic:
    """Give up a round in flight that cannot be finished. Return the topic afterwards."""
    in_flight = open_round(topic)
    if in_flight is None or _is_readable(topic, _repinned(topic, in_flight)):
        return topic
    return abandon_round(topic, in_flight)


def _is_readable(topic: Topic, this_round: CleaningRound) -> bool:
    """Return whether the snapshots that the round must read still exist."""
    tables = (
        (topic.name.records_table, this_round.records_snapshot),
        (topic.name.batches_table, this_round.batches_snapshot),
    )
    return all(s in open_table(topic.spark, table).metadata.snapshots for table, s in tables)


def finish_round(topic: Topic) -> Topic:
    """Finish the round that a killed run left, if there is one. Return the topic afterwards."""
    if open_round(topic) is None:
        return topic
    execute_clean(plan_clean(topic, 0))
    return load(topic.spark, topic.name)


def _tag(this_round: CleaningRound) -> WorkTag:
    return WorkTag("round", this_round.id)


def _are_records_done(topic: Topic, this_round: CleaningRound) -> bool:
    in_flight = open_round(topic)
    is_said = in_flight is not None and in_flight.id == this_round.id and in_flight.are_records_done
    return is_said or is_committed(topic.spark, topic.name.records_table, _tag(this_round))


def _summary(this_round: CleaningRound, rows: int) -> dict[str, str]:
    return {ROUND: this_round.id, ROWS: str(rows)}
