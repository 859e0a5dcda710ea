"""expire_segments: retention by size, wall clock and event time (KIP-870).

Order: log start offsets, then what lies below them, then single records past the event-time limit.
Of an adopted table both leave by one commit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.planned.planned_undo import check_no_undo
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.log.adopted.segments import without_expired
from ebbtide.log.retention import expiry_basis, next_expiry_ms
from ebbtide.log.state.topic_state import REMOVING, PartitionState, to_properties
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.expire_segments.plan import ExpirePlan
from ebbtide.stages.table_layout import ObservedLog, layout_of


def execute_expire(plan: ExpirePlan) -> JobOutcome:
    """Move the log start offsets, remove what lies below them, then single records.

    Also if nothing expires, the state takes in what has arrived in an adopted table.
    """
    outcome = plan.outcome()
    if plan.log is None:
        return outcome
    after = plan.log.topic
    if plan.changed or after.is_adopted:
        after = compare_and_set(after, Step.LOG_START_OFFSET, partial(_moved, plan))
    removed = layout_of(plan.log.topic).remove(after, plan.now_ms, plan.scopes, plan.records)
    outcome.rows_removed, outcome.files_removed = removed.rows.total(), removed.files
    outcome.snapshot_ids = removed.snapshot_ids
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = removed.rows[partition]
    if removed.kept:
        outcome.topic["kept_by_holds"] = removed.kept
    if not (plan.is_bounded or after.is_adopted):
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


def _moved(plan: ExpirePlan, current: Topic) -> PropertyChanges:
    """Return the state with the log start offsets and the segments that are left."""
    if plan.log is not None and current.is_adopted:
        return _moved_in_adopted(plan, plan.log, current)
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


def _moved_in_adopted(plan: ExpirePlan, seen: ObservedLog, current: Topic) -> PropertyChanges:
    changes = dict(seen.seen(current))
    for partition, expiry in plan.expiries.items():
        if expiry.removed:
            after = without_expired(seen.states[partition], expiry.kept, expiry.log_start_offset)
            changes |= to_properties(partition, after)
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
