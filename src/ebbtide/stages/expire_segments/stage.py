"""expire_segments: retention by size, wall clock and event time (KIP-870).

Order: log start offsets, then what lies below them, then single records past the event-time limit.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ebbtide.columns.log_headers import LogOutline
from ebbtide.errors import CommitConflictError, SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.files.batch_rows import look_at_headers
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set
from ebbtide.log.retention import (
    Expiry,
    LogOffsets,
    Rule,
    expire,
    expiry_basis,
    next_expiry_ms,
    record_limit,
)
from ebbtide.log.state.topic_state import REMOVING, PartitionState, to_properties
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.delete_records.truncate import truncate_below_start
from ebbtide.stages.expire_segments.expired_records import (
    ExpiredRecords,
    Scope,
    delete_expired_records,
    find_expired_records,
)
from ebbtide.text import number, size

log = logging.getLogger(__name__)

NIGHTLY = "nightly_retention"


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """The logical segments that go from each partition, by rule, and the single records.

    `max_event_times_ms` holds those that the state lacks, worked out anew.
    """

    topic: Topic
    now_ms: int
    expiries: dict[int, Expiry]
    scopes: dict[int, Scope]
    records: dict[int, ExpiredRecords]
    max_event_times_ms: dict[int, int]

    @property
    def id(self) -> str:
        """An id made from what goes and what is left, so that another plan has another id.

        A plan that finishes a killed one has the killed plan's id.
        """
        partitions = {
            partition: [expiry.log_start_offset, self._records(partition).rows]
            for partition, expiry in sorted(self.expiries.items())
        }
        text = json.dumps([str(self.topic.name), partitions])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def delete_ratio(self) -> float:
        """Bytes that the limits remove over the bytes of the topic, in [0, 1].

        Single records count with what they take without compression.
        """
        limited = sum(expiry.limited_bytes for expiry in self.expiries.values())
        kept = sum(expiry.kept_bytes for expiry in self.expiries.values())
        records = sum(expired.size_bytes for expired in self.records.values())
        return min(1.0, (limited + records) / (limited + kept)) if limited + kept else 0.0

    @property
    def changed(self) -> list[int]:
        """The partitions that lose something or whose max event time was missing."""
        return [
            partition
            for partition, expiry in self.expiries.items()
            if expiry.removed or partition in self.max_event_times_ms or partition in self.records
        ]

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic={"plan": self.id, "delete_ratio": round(self.delete_ratio, 4)})
        for partition, expiry in self.expiries.items():
            outcome.partitions[partition] = self._numbers(partition, expiry)
            outcome.bytes_removed += outcome.partitions[partition]["bytes_removed"]
        return outcome

    def _numbers(self, partition: int, expiry: Expiry) -> dict[str, Any]:
        by = Counter(str(rule) for _, rule in expiry.removed)
        records = self._records(partition)
        numbers: dict[str, Any] = {
            "log_start_offset": expiry.log_start_offset,
            "low_watermark": self.topic.low_watermark(expiry.log_start_offset),
            "log_end_offset": self.topic.partitions[partition].log_end_offset,
            "segments_expired": len(expiry.removed),
            "records_in_segments": sum(segment.record_count for segment, _ in expiry.removed),
            "newest_record_ms": max(
                (segment.largest_timestamp_ms for segment, _ in expiry.removed), default=None
            ),
            "bytes_removed": sum(segment.size_bytes for segment, _ in expiry.removed),
            **_before_and_after(expiry),
            "by": {str(rule): by.get(str(rule), 0) for rule in Rule},
            "records_expired": records.rows,
            "record_bytes_expired": records.size_bytes,
        }
        if (found_ms := self.max_event_times_ms.get(partition)) is not None:
            numbers["note"] = (
                f"the state had no max event time; {found_ms} ms is the largest of the batches "
                "that are left, so a lower bound"
            )
        return numbers

    def _records(self, partition: int) -> ExpiredRecords:
        return self.records.get(partition, ExpiredRecords())


def _before_and_after(expiry: Expiry) -> dict[str, int]:
    """Count data records and bytes before and after, as the segments' headers tell.

    clean_log counts the same way. Expired single records are counted separately: headers stay
    unchanged until their segment goes.
    """
    removed = [segment for segment, _ in expiry.removed]
    records_after = sum(segment.record_count for segment in expiry.kept)
    return {
        "records_before": records_after + sum(segment.record_count for segment in removed),
        "records_after": records_after,
        "bytes_before": expiry.kept_bytes + sum(segment.size_bytes for segment in removed),
        "bytes_after": expiry.kept_bytes,
    }


def plan_expire(topic: Topic, now_ms: int) -> ExpirePlan:
    """Plan what retention removes from the topic at `now_ms`."""
    states, config = topic.partitions, topic.config
    outlines = {
        partition: LogOutline(state.log_start_offset, state.segments)
        for partition, state in states.items()
    }
    headers = look_at_headers(topic.spark, topic.name.batches_table, outlines)
    missing = {
        partition: headers[partition].max_event_time_ms
        for partition, state in states.items()
        if state.max_event_time_ms is None
    }
    expiries, scopes = {}, {}
    for partition, state in states.items():
        known_ms = state.max_event_time_ms
        max_event_time_ms = missing[partition] if known_ms is None else known_ms
        expiry = expire(
            headers[partition].segments,
            LogOffsets(state.log_start_offset, state.log_end_offset, state.log_end_offset),
            config,
            now_ms=now_ms,
            max_event_time_ms=max_event_time_ms,
        )
        limit = record_limit(config, now_ms=now_ms, max_event_time_ms=max_event_time_ms)
        if limit is not None and expiry.log_start_offset < state.log_end_offset:
            future_ms = config.message_timestamp_after_max_ms
            scopes[partition] = Scope(
                expiry.log_start_offset, state.log_end_offset, limit, future_ms
            )
        expiries[partition] = expiry
    records = find_expired_records(topic, scopes)
    log_partitions(log, {p: _going(expiry) for p, expiry in expiries.items() if expiry.removed})
    past = {
        p: f"{number(expired.rows)} records are past the limit" for p, expired in records.items()
    }
    log_partitions(log, past)
    return ExpirePlan(topic, now_ms, expiries, scopes, records, missing)


def _going(expiry: Expiry) -> str:
    """Describe which segments of a partition go, for the log."""
    by = Counter(str(rule) for _, rule in expiry.removed)
    gone = size(sum(segment.size_bytes for segment, _ in expiry.removed))
    return (
        f"{len(expiry.removed)} segments of {gone} go "
        f"({', '.join(f'{count} by {rule}' for rule, count in by.items())}); "
        f"the log begins at offset {expiry.log_start_offset}"
    )


def execute_expire(plan: ExpirePlan, accepted_plans: Collection[str] = ()) -> JobOutcome:
    """Move the log start offsets, remove what lies below them, then single records.

    SafetyError for a plan that removes too large a share, unless its id is among the accepted.
    """
    if plan.delete_ratio > plan.topic.config.max_delete_ratio and plan.id not in accepted_plans:
        raise _too_much(plan)
    outcome = plan.outcome()
    if plan.changed:
        compare_and_set(plan.topic, Step.LOG_START_OFFSET, lambda current: _moved(current, plan))
    truncation = truncate_below_start(plan.topic, plan.now_ms)
    outcome.snapshot_ids = truncation.snapshot_ids
    outcome.rows_removed, outcome.files_removed = truncation.rows.total(), truncation.files
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = truncation.rows[partition] + numbers["records_expired"]
    if plan.records:
        outcome.rows_removed += sum(expired.rows for expired in plan.records.values())
        scopes = {partition: plan.scopes[partition] for partition in plan.records}
        deleted = delete_expired_records(plan.topic, scopes)
        outcome.files_removed += len(deleted.files)
        outcome.snapshot_ids += deleted.snapshots
    _note_next_expiries(plan)
    return outcome


def _note_next_expiries(plan: ExpirePlan) -> None:
    """Write down until when this job would find nothing, so that nights do not start it before."""
    config = plan.topic.config

    def noted(current: Topic) -> PropertyChanges:
        changes: dict[str, str | None] = {}
        for partition, expiry in plan.expiries.items():
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


def _too_much(plan: ExpirePlan) -> SafetyError:
    name = str(plan.topic.name)
    now = datetime.fromtimestamp(plan.now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    conf = json.dumps({"topics": [name], "now": now, "accept_plan": [plan.id]})
    return SafetyError(
        f"expected retention to remove at most {plan.topic.config.max_delete_ratio:g} of the bytes "
        f"of {name} (ebbtide.max.delete.ratio), found plan {plan.id} that removes "
        f"{plan.delete_ratio:.4g}; check the topic's limits and its clock, and to let this one "
        f"plan pass: airflow dags trigger {NIGHTLY} --conf '{conf}'"
    )


def _moved(current: Topic, plan: ExpirePlan) -> PropertyChanges:
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
        if partition in plan.max_event_times_ms:
            moved["max_event_time_ms"] = plan.max_event_times_ms[partition]
        if partition in plan.records:
            end_offset = max(state.expired_end_offset, planned.log_end_offset)
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
    # An ingest may have appended a larger event time since.
    is_outdated = has_grown and (is_rolled or partition in plan.max_event_times_ms)
    if state.segments[: len(planned.segments)] != planned.segments or is_outdated:
        raise CommitConflictError(
            f"expected the segments of {current.name} partition {partition} to be as planned, "
            "found that another writer changed them; run the job again"
        )
