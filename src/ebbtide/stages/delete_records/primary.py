"""delete_records: a DeleteRecords request on one topic, at its primary first (KIP-107)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap64

from ebbtide.errors import EbbtideError, RequestError, UnavailableError
from ebbtide.iceberg.adopted.leaving_rows import find_below
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.log.delete_answers import (
    HIGH_WATERMARK,
    Answer,
    ErrorCode,
    answer_partition,
    refused,
    way_out,
)
from ebbtide.log.holds import paused_until_ended
from ebbtide.log.plans.offsets import offset_range
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.log.requests.delete_request import TIMEOUT_MS
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.runs.holds_table import holds_at, pauses_on
from ebbtide.runs.proposals import Proposal, Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.delete_records.prefixes import find_prefixes
from ebbtide.stages.delete_records.replica_truncation import Replicas, Wanted, raise_starts
from ebbtide.stages.table_layout import ObservedLog, layout_of

log = logging.getLogger(__name__)

RULE = "delete_records"
OLDER = "older than the time that was asked for, but behind a newer record"


@dataclass(frozen=True, slots=True)
class DeletePlan(Proposal):
    """The answer that each partition named in the request gets.

    `more_numbers` tell by partition how its offset was determined.
    """

    topic: Topic
    now_ms: int
    requested: Mapping[int, int]
    answers: dict[int, Answer]
    timeout_ms: int = TIMEOUT_MS
    more_numbers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    log: ObservedLog | None = None

    @property
    def starts(self) -> dict[int, int]:
        """The log start offsets of the partitions that are not refused."""
        answers = self.answers.items()
        return {p: a.log_start_offset for p, a in answers if a.error is ErrorCode.NONE}

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome()
        for partition, reply in self.answers.items():
            numbers = numbers_of(reply, self.topic.partitions.get(partition))
            outcome.partitions[partition] = {
                **numbers,
                "requested_offset": self.requested[partition],
                **self.more_numbers.get(partition, {}),
            }
        outcome.error = _refusal(str(self.topic.name), self.answers)
        return outcome

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets below the new log start offsets, a range a partition."""
        states = self.topic.partitions
        return {p: offset_range(states[p].log_start_offset, end) for p, end in self.starts.items()}

    def touches(self) -> Touched:
        """Return the partitions whose log start moves here, or may move at a live topic."""
        live, states = self.topic.config.live_replicas, self.topic.partitions
        moves = {
            p for p, of in self.starts.items() if of > (0 if live else states[p].log_start_offset)
        }
        snapshot = None if self.log is None else self.log.snapshot
        return Touched(moves, records_snapshot=snapshot, truncated=live)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the offset up to which each partition may be truncated, and its log end offset."""
        states = self.topic.partitions
        return {
            p: {"offset": start, "log_end_offset": states[p].log_end_offset}
            for p, start in self.starts.items()
        }

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what the tables hold below the new log start offsets, and what stays behind."""
        kept = {p: numbers.get("older_kept", 0) for p, numbers in self.more_numbers.items()}
        if self.log is not None and self.log.snapshot is not None:
            return _summary_of_adopted(self.topic, self.log.snapshot, self.starts)
        return {
            partition: partition_summary(
                prefix,
                {
                    RULE: RuleNumbers(
                        records=prefix.records, bytes=prefix.file_bytes, segments=prefix.segments
                    )
                },
                [Staying(reason=OLDER, records=kept[partition])] if kept.get(partition) else [],
                bytes_removed=prefix.file_bytes,
                shows_keys=self.topic.config.plans_show_keys,
            )
            for partition, prefix in find_prefixes(self.topic, self.starts).items()
        }


def _summary_of_adopted(
    topic: Topic, snapshot: int, starts: Mapping[int, int]
) -> dict[int, PartitionSummary]:
    rows = find_below(AdoptedRows.of(topic), snapshot, starts).rows
    return {
        partition: partition_summary(
            LeavingRows(records=rows[partition]), {RULE: RuleNumbers(records=rows[partition])}
        )
        for partition in starts
    }


def numbers_of(reply: Answer, state: PartitionState | None = None) -> dict[str, Any]:
    """Return an answer as a row in `runs` has it."""
    numbers = {
        "log_start_offset": reply.log_start_offset,
        "low_watermark": reply.low_watermark,
        "log_end_offset": -1 if state is None else state.log_end_offset,
        "error_code": int(reply.error),
        "error_name": reply.error.name,
    }
    return numbers | ({"note": reply.note} if reply.note else {})


def _refusal(topic: str, answers: Mapping[int, Answer]) -> EbbtideError | None:
    """Return the error for all refused partitions together; a timeout's may be retried."""
    refusals = [
        f"{topic} partition {p}: {reply.error.name} ({reply.note or way_out(reply.error)})"
        for p, reply in sorted(answers.items())
        if reply.error is not ErrorCode.NONE
    ]
    errors = {reply.error for reply in answers.values()}
    kind = UnavailableError if ErrorCode.REQUEST_TIMED_OUT in errors else RequestError
    return kind("; ".join(refusals)) if refusals else None


def plan_delete(
    topic: Topic, requested: Mapping[int, int], now_ms: int, timeout_ms: int = TIMEOUT_MS
) -> DeletePlan:
    """Answer a request of {partition: offset}; -1 stands for the high watermark."""
    answers = {
        p: answer_partition(topic.name.topic, topic.config, topic.partitions, p, offset)
        for p, offset in requested.items()
    }
    for partition, why in pauses_on(topic, holds_at(topic, now_ms), paused_until_ended).items():
        start, answer = topic.partitions[partition].log_start_offset, answers.get(partition)
        # A request up to where the log begins, as each night sends for replicas, removes nothing.
        if answer is not None and answer.log_start_offset > start:
            answers[partition] = refused(ErrorCode.POLICY_VIOLATION, start, why)
    return DeletePlan(topic, now_ms, requested, answers, timeout_ms)


def execute_delete(plan: DeletePlan) -> JobOutcome:
    """Move the log start offsets, then remove the records below them, at every replica.

    The primary moves at once; the others may take the plan's `timeout_ms` of real time.
    """
    moved = plan.starts
    if not moved:
        return plan.outcome()
    log_partitions(log, {p: f"the log begins at offset {offset}" for p, offset in moved.items()})
    log_then = plan.log or ObservedLog(plan.topic)
    log_then.write_down()
    replicas = Replicas(plan.topic, plan.now_ms, plan.timeout_ms)
    step = Step.LOG_START_OFFSET
    after = compare_and_set(
        plan.topic, step, lambda current: raise_starts(current, moved, plan.topic)
    )
    truncation = layout_of(log_then.topic).remove(after, plan.now_ms)
    starts = {p: after.partitions[p].log_start_offset for p in moved}  # another may be further
    wanted = {p: Wanted(_requested(plan, p), start) for p, start in starts.items()}
    outcome = replace(plan, answers=plan.answers | replicas.delete_records(wanted)).outcome()
    outcome.snapshot_ids = truncation.snapshot_ids
    outcome.rows_removed, outcome.files_removed = truncation.rows.total(), truncation.files
    outcome.topic = {"file_bytes_removed": truncation.file_bytes}
    if truncation.kept:
        outcome.topic["kept_by_holds"] = truncation.kept
    if removed := replicas.records_removed:
        outcome.topic["replicas"] = removed
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = truncation.rows[partition]
    return outcome


def _requested(plan: DeletePlan, partition: int) -> int:
    offset = plan.requested[partition]
    end = plan.topic.partitions[partition].log_end_offset
    return end if offset == HIGH_WATERMARK else offset
