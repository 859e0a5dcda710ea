"""delete_records: answer a DeleteRecords request on one topic, at its primary first (KIP-107)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyroaring import BitMap64

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import EbbtideError, RequestError, UnavailableError
from ebbtide.iceberg.adopted.rows import AdoptedRows, find_below
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.jobs.delete_records.replicas import Replicas, WantedStarts, raise_starts
from ebbtide.jobs.removed_rows import Prefix, find_prefixes
from ebbtide.jobs.table_layout import ObservedLog, layout_of
from ebbtide.kafka.low_watermarks import (
    HIGH_WATERMARK,
    ErrorCode,
    PartitionAnswer,
    answer_partition,
    refused,
    way_out,
)
from ebbtide.ledger.holds import paused_until_ended
from ebbtide.ledger.plans import (
    PartitionSummary,
    RuleNumbers,
    Staying,
    offset_range,
    partition_summary,
)
from ebbtide.runner.holds import holds_at, pauses_on
from ebbtide.runner.job import Proposal, Touched
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.upstream import REPLICAS
from ebbtide.spark.job_log import log_partitions
from ebbtide.specs.delete_request import TIMEOUT_MS, AtOffset, CommittedBy, OlderThan, TopicRequest
from ebbtide.state.topic_state import PartitionState

NOTHING = 0  # as in Kafka, an offset at or below the log start offset changes nothing


@dataclass(frozen=True, slots=True)
class RequestedOffsets:
    """The offset requested for each partition, and how it was determined."""

    offsets: dict[int, int] = field(default_factory=dict)
    more_numbers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def within(self, topic: Topic, bounds: Mapping[int, int]) -> RequestedOffsets:
        """Return the offsets of the partitions in `bounds`, each limited to its bound."""
        ends = {p: topic.partitions[p].log_end_offset for p in bounds if p in topic.partitions}
        offsets = {}
        for partition, bound in bounds.items():
            offset = self.offsets.get(partition, NOTHING)
            end = ends.get(partition, bound) if offset == HIGH_WATERMARK else offset
            offsets[partition] = min(end, bound)
        numbers = {p: numbers for p, numbers in self.more_numbers.items() if p in bounds}
        return RequestedOffsets(offsets, numbers)


def resolve_offsets(
    log: ObservedLog, topic: Topic, asked: TopicRequest, now_ms: int
) -> RequestedOffsets:
    """Resolve a request to an offset per partition at `now_ms`; -1 is the high watermark.

    `topic` has the partitions of the log. A partition that it lacks may get any offset: its answer
    does not depend on the offset.
    """
    requested = RequestedOffsets()
    times: dict[int, int] = {}
    groups: dict[CommittedBy, list[int]] = defaultdict(list)
    for partition, selector in asked.of(topic.partitions).items():
        requested.offsets[partition] = NOTHING
        if isinstance(selector, AtOffset):
            requested.offsets[partition] = selector.offset
        elif partition not in topic.partitions:
            continue
        elif isinstance(selector, CommittedBy):
            groups[selector].append(partition)
        else:
            time = selector.at(now_ms) if isinstance(selector, OlderThan) else selector
            times[partition] = time.timestamp_ms
    if times:
        found = layout_of(log.topic).find_offsets_of_times(log, times)
        for partition, timestamp_ms in times.items():
            # As in Kafka: if offsetsForTimes finds no record, all records are older.
            requested.offsets[partition] = found.first.get(partition, HIGH_WATERMARK)
            requested.more_numbers[partition] = {
                "timestamp_ms": timestamp_ms,
                "older_kept": found.older.get(partition, 0),
            }
    for committed, partitions in groups.items():
        _resolve_groups(topic, committed, partitions, requested)
    return requested


def _resolve_groups(
    topic: Topic, asked: CommittedBy, partitions: list[int], requested: RequestedOffsets
) -> None:
    connection = asked.connection or _only_connection(topic)
    live = LiveTopic.connect(connection, _kafka_topic(topic))
    for partition, committed in live.committed(asked.groups, partitions).items():
        end = topic.partitions[partition].log_end_offset
        without = [group for group, offset in committed.items() if offset is None]
        offsets = [offset for offset in committed.values() if offset is not None]
        requested.more_numbers[partition] = {"committed": committed}
        if without:
            note = f"not changed: no committed offset of {', '.join(without)}"
            requested.more_numbers[partition]["note"] = note
        else:
            requested.offsets[partition] = min(*offsets, end)


def _kafka_topic(topic: Topic) -> str:
    """Return the topic's name in Kafka; an adopted table may have it in its topic column."""
    if not topic.is_adopted:
        return topic.name.topic
    return topic.name.in_table or AdoptedRows.of(topic).ids.topic_name or topic.name.topic


def _only_connection(topic: Topic) -> str:
    connections = topic.config.live_replicas
    if len(connections) != 1:
        raise RequestError(
            f"expected a connection for the groups, or one kafka:<connection> in {REPLICAS} of "
            f"{topic.name}, found {topic.properties.get(REPLICAS, '')!r}. Name the connection in "
            "the request"
        )
    return connections[0]


log = logging.getLogger(__name__)

RULE = "delete_records"
OLDER = "older than the requested time, but after a newer record"


@dataclass(frozen=True)
class DeletePlan(Proposal):
    """The answers to a DeleteRecords request, planned for one topic."""

    topic: Topic
    now_ms: int
    requested: Mapping[int, int]  # offsets by partition; -1 is the high watermark
    answers: dict[int, PartitionAnswer]
    timeout_ms: int = TIMEOUT_MS
    # How each partition's offset was determined.
    more_numbers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    log: ObservedLog | None = None

    @property
    def starts(self) -> dict[int, int]:
        """The new log start offsets of the partitions that are not refused."""
        answers = self.answers.items()
        return {p: a.log_start_offset for p, a in answers if a.error is ErrorCode.NONE}

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = self.answered()
        for partition, rows in self.leaving.items():
            outcome.partitions[partition]["records_removed"] = rows.records
        return outcome

    def answered(self) -> JobOutcome:
        """Return the answers, as numbers by partition."""
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

    @cached_property
    def leaving(self) -> Mapping[int, Prefix]:
        """The records to remove, by partition that is not refused."""
        if self.log is None or self.log.snapshot is None:
            return find_prefixes(self.topic, self.starts)
        rows = find_below(AdoptedRows.of(self.topic), self.log.snapshot, self.starts).rows
        return {partition: Prefix(records=rows[partition]) for partition in self.starts}

    def _counted(self, prefix: Prefix) -> RuleNumbers:
        if self.topic.is_adopted:  # only its records are counted
            return RuleNumbers(records=prefix.records)
        return RuleNumbers(
            records=prefix.records, bytes=prefix.file_bytes, segments=prefix.segments
        )

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets below the new log start offsets, one range per partition."""
        states = self.topic.partitions
        return {p: offset_range(states[p].log_start_offset, end) for p, end in self.starts.items()}

    def touches(self) -> Touched:
        """Return the partitions whose log start offset advances here, or may in a live topic."""
        live, states = self.topic.config.live_replicas, self.topic.partitions
        moves = {
            p
            for p, start in self.starts.items()
            if start > (0 if live else states[p].log_start_offset)
        }
        snapshot = None if self.log is None else self.log.snapshot
        return Touched(moves, records_snapshot=snapshot, truncated=live)

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the new log start offset of each partition, and its log end offset."""
        states = self.topic.partitions
        return {
            p: {"offset": start, "log_end_offset": states[p].log_end_offset}
            for p, start in self.starts.items()
        }

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the records to remove, and retained records older than the requested time."""
        kept = {p: numbers.get("older_kept", 0) for p, numbers in self.more_numbers.items()}
        return {
            partition: partition_summary(
                prefix,
                {RULE: self._counted(prefix)},
                [Staying(reason=OLDER, records=kept[partition])] if kept.get(partition) else [],
                bytes_removed=prefix.file_bytes,
                shows_keys=self.topic.config.plans_show_keys,
            )
            for partition, prefix in self.leaving.items()
        }


def numbers_of(reply: PartitionAnswer, state: PartitionState | None = None) -> dict[str, Any]:
    """Return an answer as the numbers of a row in `runs`."""
    numbers = {
        "log_start_offset": reply.log_start_offset,
        "low_watermark": reply.low_watermark,
        "log_end_offset": -1 if state is None else state.log_end_offset,
        "error_code": int(reply.error),
        "error_name": reply.error.name,
    }
    return numbers | ({"note": reply.note} if reply.note else {})


def _refusal(topic: str, answers: Mapping[int, PartitionAnswer]) -> EbbtideError | None:
    """Return one error for all refused partitions, or None if none is refused.

    After a timeout, the error is an UnavailableError, so that the run is retried.
    """
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
    """Plan the answers to a request of {partition: offset}; -1 is the high watermark.

    A paused partition is refused with POLICY_VIOLATION if the request would remove records.
    """
    answers = {
        p: answer_partition(topic.name.topic, topic.config, topic.partitions, p, offset)
        for p, offset in requested.items()
    }
    for partition, why in pauses_on(topic, holds_at(topic, now_ms), paused_until_ended).items():
        start, answer = topic.partitions[partition].log_start_offset, answers.get(partition)
        # A request up to the log start offset, as nightly runs send for replicas, removes nothing.
        if answer is not None and answer.log_start_offset > start:
            answers[partition] = refused(ErrorCode.POLICY_VIOLATION, start, why)
    return DeletePlan(topic, now_ms, requested, answers, timeout_ms)


def execute_delete(plan: DeletePlan) -> JobOutcome:
    """Advance the log start offsets and remove the records below them, at every replica.

    The primary advances immediately. The run waits for replicas until `timeout_ms` have passed.
    """
    moved = plan.starts
    if not moved:
        return plan.answered()
    log_partitions(
        log, {p: f"advancing the log start to offset {offset}" for p, offset in moved.items()}
    )
    log_then = plan.log or ObservedLog(plan.topic)
    log_then.write_down()
    replicas = Replicas(plan.topic, plan.now_ms, plan.timeout_ms)
    step = Step.LOG_START_OFFSET
    after = compare_and_set(
        plan.topic, step, lambda current: raise_starts(current, moved, plan.topic)
    )
    truncation = layout_of(log_then.topic).remove(after, plan.now_ms, moved)
    # Another job may have advanced one further.
    starts = {p: after.partitions[p].log_start_offset for p in moved}
    wanted = {p: WantedStarts(_requested(plan, p), start) for p, start in starts.items()}
    outcome = replace(plan, answers=plan.answers | replicas.delete_records(wanted)).answered()
    outcome.snapshot_ids = truncation.snapshot_ids
    outcome.rows_removed, outcome.files_removed = truncation.rows.total(), truncation.files
    outcome.topic = {"file_bytes_removed": truncation.file_bytes}
    if log_then.returned:  # a later run no longer sees them as new
        outcome.topic |= log_then.result
    if truncation.kept:
        outcome.topic["copied_for_holds"] = truncation.kept
    if removed := replicas.records_removed:
        outcome.topic["replicas"] = removed
    for partition, numbers in outcome.partitions.items():
        numbers["records_removed"] = truncation.rows[partition]
    return outcome


def _requested(plan: DeletePlan, partition: int) -> int:
    offset = plan.requested[partition]
    end = plan.topic.partitions[partition].log_end_offset
    return end if offset == HIGH_WATERMARK else offset
