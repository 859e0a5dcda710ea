"""expire_segments: retention by size, wall clock and event time (KIP-870).

Order: log start offsets, then what lies below them, then single records past the event-time limit.
"""

from __future__ import annotations

from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.planned.planned_undo import check_no_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, read_again
from ebbtide.log.plans.guards import tripped
from ebbtide.log.retention import expiry_basis, next_expiry_ms
from ebbtide.log.state.topic_state import REMOVING, PartitionState, to_properties
from ebbtide.runs.held.keeping import add_kept, keep_leaving
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.delete_records.truncate import truncate_below_start
from ebbtide.stages.expire_segments.expired_records import delete_expired_records
from ebbtide.stages.expire_segments.plan import ExpirePlan


def guard_expiry(plan: ExpirePlan) -> str:
    """Return why a night may not execute the plan unasked; empty where it may."""
    return tripped(str(plan.topic.name), plan.topic.config, plan.removal)


def execute_expire(plan: ExpirePlan) -> JobOutcome:
    """Move the log start offsets, remove what lies below them, then single records."""
    outcome = plan.outcome()
    if plan.changed:
        compare_and_set(plan.topic, Step.LOG_START_OFFSET, lambda current: _moved(current, plan))
    truncation = truncate_below_start(plan.topic, plan.now_ms)
    outcome.snapshot_ids = truncation.snapshot_ids
    outcome.rows_removed, outcome.files_removed = truncation.rows.total(), truncation.files
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = truncation.rows[partition] + numbers["records_expired"]
    kept = truncation.kept
    if plan.records:
        check_no_undo(read_again(plan.topic), since=plan.topic)
        add_kept(kept, keep_leaving(plan.topic, plan.single_offsets))
        outcome.rows_removed += sum(expired.rows for expired in plan.records.values())
        scopes = {partition: plan.scopes[partition] for partition in plan.records}
        deleted = delete_expired_records(plan.topic, scopes)
        outcome.files_removed += len(deleted.files)
        outcome.snapshot_ids += deleted.snapshots
    if kept:
        outcome.topic["kept_by_holds"] = kept
    if not plan.is_bounded:
        _note_next_expiries(plan)
    return outcome


def _note_next_expiries(plan: ExpirePlan) -> None:
    """Write down until when this job would find nothing, so that nights do not start it before."""
    config = plan.topic.config

    def noted(current: Topic) -> PropertyChanges:
        changes: dict[str, str | None] = {}
        for partition, expiry in plan.expiries.items():
            if partition in plan.pauses:
                continue  # it was not judged
            state, first = current.partitions[partition], expiry.kept[0]
            is_as_planned = (
                state.log_end_offset == plan.topic.partitions[partition].log_end_offset
                and state.first_segment == first.base_offset
            )
            basis = expiry_basis(state, config)
            if is_as_planned and state.expiry_basis != basis:
                next_ms = next_expiry_ms(expiry.kept, config)
                after = state.moved(next_expiry_ms=next_ms, expiry_basis=basis)
                changes |= to_properties(partition, after)
        return changes

    compare_and_set(plan.topic, Step.NEXT_EXPIRY, noted)


def _moved(current: Topic, plan: ExpirePlan) -> PropertyChanges:
    check_no_undo(current, since=plan.topic)
    changes: dict[str, str | None] = {REMOVING: "true"}
    for partition in plan.changed:
        expiry = plan.expiries[partition]
        planned, state = plan.topic.partitions[partition], current.partitions[partition]
        _check_unchanged(current, partition, planned, plan)
        added = state.segments[len(planned.segments) :]
        kept = tuple(segment.start for segment in expiry.kept)
        moved: dict[str, Any] = {
            "log_start_offset": max(state.log_start_offset, expiry.log_start_offset),
            "first_dirty_offset": max(state.first_dirty_offset, expiry.log_start_offset),
            "segments": kept + added,
        }
        if partition in plan.records:
            end_offset = max(state.expired_end_offset, plan.scopes[partition].end)
            moved["expired_end_offset"] = end_offset
        changes |= to_properties(partition, state.moved(**moved))
    return changes


def _check_unchanged(
    current: Topic, partition: int, planned: PartitionState, plan: ExpirePlan
) -> None:
    """Raise CommitConflictError where the plan no longer says what to do."""
    state = current.partitions[partition]
    is_rolled = plan.expiries[partition].kept[-1].base_offset != planned.active_segment
    has_grown = state.log_end_offset != planned.log_end_offset
    if state.segments[: len(planned.segments)] != planned.segments or (has_grown and is_rolled):
        raise CommitConflictError(
            f"expected the segments of {current.name} partition {partition} to be as planned, "
            "found that another writer changed them; run the job again"
        )
