"""expire_segments: retention by size, wall clock and event time (KIP-870)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ebbtide.errors import CommitConflictError
from ebbtide.frames.headers import segment_totals
from ebbtide.log.retention import Expiry, Offsets, Rule, expire
from ebbtide.log.state import PartitionState, to_properties
from ebbtide.tables.batches import read_headers
from ebbtide.tables.commits import Step
from ebbtide.tables.runs import Outcome
from ebbtide.tables.stages.truncate import truncate_below_start
from ebbtide.tables.topics import Changes, Topic, compare_and_set


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """Which logical segments of each partition go, and by which rule."""

    topic: Topic
    now_ms: int
    expiries: dict[int, Expiry]

    def outcome(self) -> Outcome:
        """The numbers of the plan."""
        outcome = Outcome()
        for partition, expiry in self.expiries.items():
            by = Counter(str(rule) for _, rule in expiry.removed)
            removed_bytes = sum(segment.size_bytes for segment, _ in expiry.removed)
            outcome.partitions[partition] = {
                "log_start_offset": expiry.log_start_offset,
                "low_watermark": self.topic.low_watermark(expiry.log_start_offset),
                "log_end_offset": self.topic.partitions[partition].log_end_offset,
                "segments_expired": len(expiry.removed),
                "bytes_removed": removed_bytes,
                "by": {str(rule): by.get(str(rule), 0) for rule in Rule},
            }
            outcome.bytes_removed += removed_bytes
        return outcome


def plan_expire(topic: Topic, now_ms: int) -> ExpirePlan:
    """What retention removes from the topic at `now_ms`."""
    config = topic.config
    headers = read_headers(topic.spark, topic.name.batches_table, topic.partitions)
    expiries = {
        partition: expire(
            segment_totals(headers[partition], state.segments),
            Offsets(state.log_start_offset, state.log_end_offset, state.log_end_offset),
            config,
            now_ms=now_ms,
            max_event_time_ms=state.max_event_time_ms,
        )
        for partition, state in topic.partitions.items()
    }
    return ExpirePlan(topic, now_ms, expiries)


def execute_expire(plan: ExpirePlan) -> Outcome:
    """Move the log start offsets, then remove what lies below them."""
    outcome = plan.outcome()
    moving = {p: expiry for p, expiry in plan.expiries.items() if expiry.removed}
    if moving:
        compare_and_set(
            plan.topic, Step.LOG_START_OFFSET, lambda current: _moved(current, plan, moving)
        )
    truncation, outcome.snapshot_ids = truncate_below_start(plan.topic, plan.now_ms)
    outcome.rows_removed, outcome.files_removed = truncation.rows.total(), truncation.files
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = truncation.rows[partition]
    return outcome


def _moved(current: Topic, plan: ExpirePlan, moving: dict[int, Expiry]) -> Changes:
    changes: dict[str, str | None] = {}
    for partition, expiry in moving.items():
        planned, state = plan.topic.partitions[partition], current.partitions[partition]
        if state.segments[: len(planned.segments)] != planned.segments or (
            _is_rolled(planned, expiry) and state.log_end_offset != planned.log_end_offset
        ):
            raise CommitConflictError(
                f"expected the segments of {current.name} partition {partition} to be as planned, "
                "found that another writer changed them; run the job again"
            )
        added = state.segments[len(planned.segments) :]
        kept = tuple((segment.base_offset, segment.modified_ms) for segment in expiry.kept)
        moved = state.moved(
            log_start_offset=max(state.log_start_offset, expiry.log_start_offset),
            first_dirty_offset=max(state.first_dirty_offset, expiry.log_start_offset),
            segments=kept + added,
        )
        changes |= to_properties(partition, moved)
    return changes


def _is_rolled(planned: PartitionState, expiry: Expiry) -> bool:
    """Whether the active segment went too, so that an empty one takes its place."""
    return expiry.kept[-1].base_offset != planned.active_segment
