"""Plan an undo: the runs to undo in each partition, the rows to restore, and the refusals.

The undo of a run also undoes all later runs of each partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap64

from ebbtide.iceberg.in_flight import Undo
from ebbtide.iceberg.topics import Topic
from ebbtide.jobs.undo_run import adopted_rows, own_rows
from ebbtide.jobs.undo_run.adopted_rows import AdoptedRemovals
from ebbtide.jobs.undo_run.own_rows import OwnRows, ReturningRecords
from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.ledger.plans import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.ledger.undo_points import PointsOfPartitions
from ebbtide.runner.job import PlanRequest, Proposal
from ebbtide.runner.runs_table import JobOutcome

RETURNS = "removed_by"


@dataclass(frozen=True, slots=True)
class UndoPlan(Proposal):
    """The points to undo in each partition, and the rows to restore."""

    topic: Topic
    undo: Undo
    points: PointsOfPartitions
    own: OwnRows = field(default_factory=OwnRows)  # the rows of an own topic
    adopted: AdoptedRemovals = field(default_factory=AdoptedRemovals)  # of an adopted topic
    records: Mapping[int, ReturningRecords] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)  # reasons, by refused partition
    replicas: tuple[UndoPlan, ...] = ()  # plans of the topic's table replicas
    is_begun: bool = False  # the undo is in the topic's state
    note: str = ""
    now_ms: int = 0

    @property
    def starts(self) -> dict[int, int]:
        """The log start offset to restore in each partition."""
        return {p: points[0].states[p].log_start_offset for p, points in self.points.items()}

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        going = [point for points in self.points.values() for point in points]
        runs = Counter(f"{point.job} of {point.run_id}" for point in going)
        outcome = JobOutcome(topic={"undone_run": self.undo.run_id, "undone": dict(runs)})
        for partition in self.topic.partitions:
            numbers = self.topic.offsets_of(partition)
            if partition in self.points:
                numbers |= self._numbers(partition)
            elif partition in self.refused:
                numbers["reason"] = self.refused[partition]
            outcome.partitions[partition] = numbers
        if self.replicas:
            outcome.topic["replicas"] = {
                str(replica.topic.name): {"records_returned": replica.records_returned}
                for replica in self.replicas
            }
        if self.note:
            outcome.topic["note"] = self.note
        return outcome

    @property
    def records_returned(self) -> int:
        """The number of records to restore in all partitions."""
        return sum(self._returning(partition).total for partition in self.points)

    def _returning(self, partition: int) -> ReturningRecords:
        return self.records.get(partition, ReturningRecords())

    def _numbers(self, partition: int) -> dict[str, Any]:
        return {
            "log_start_offset": self.starts[partition],
            "low_watermark": self._low_watermark(partition),
            "log_start_offset_before": self.topic.partitions[partition].log_start_offset,
            "records_returned": self._returning(partition).total,
            "runs_undone": len(self.points[partition]),
        }

    def _low_watermark(self, partition: int) -> int:
        """Return the lowest log start offset of all replicas, or "invalid" if one is unknown."""
        if len(self.replicas) < len(self.topic.config.replicas):
            return INVALID_LOW_WATERMARK
        starts = [plan.start_after(partition) for plan in (self, *self.replicas)]
        return INVALID_LOW_WATERMARK if None in starts else min(s for s in starts if s is not None)

    def start_after(self, partition: int) -> int | None:
        """Return a partition's log start offset after the undo, or None if it has no state."""
        state = self.topic.partitions.get(partition)
        return self.starts.get(partition, None if state is None else state.log_start_offset)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records to restore."""
        return {partition: self._returning(partition).rows.offsets for partition in self.points}

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the log start offset to restore in each partition."""
        return {p: {"log_start_offset": start} for p, start in self.starts.items()}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return the records to restore, by the job that removed them, and the refusals."""
        summaries = {}
        for partition, points in self.points.items():
            total, rows, size_bytes, _ = self._returning(partition)
            jobs = dict.fromkeys(point.job for point in reversed(points))
            numbers = RuleNumbers(records=total)
            if not self.topic.is_adopted:
                numbers["bytes"] = size_bytes
            summaries[partition] = partition_summary(
                LeavingRows(total, 0, list(rows.event_times_ms), list(rows.keys)),
                {f"{RETURNS} {' and '.join(jobs)}": numbers},
                bytes_removed=size_bytes,
                shows_keys=self.topic.config.plans_show_keys,
            )
        for partition, reason in self.refused.items():
            stays = [Staying(reason=f"not undone: {reason}")]
            summaries[partition] = partition_summary(LeavingRows(), {}, stays)
        return summaries


def plan_points(
    topic: Topic,
    undo: Undo,
    points: PointsOfPartitions,
    refused: Mapping[int, str],
    request: PlanRequest,
) -> UndoPlan:
    """Plan to undo the points, without those of refused partitions.

    More partitions are refused: those in which a record of an erased key would be restored, and
    those of an adopted topic whose table's history is not sufficient.
    """
    points = {p: partition_points for p, partition_points in points.items() if p not in refused}
    if topic.is_adopted:
        history = adopted_rows.history_of(topic, points)
        more = adopted_rows.refusals_of_history(topic, points, history)
        points = {p: partition_points for p, partition_points in points.items() if p not in more}
        adopted, records = adopted_rows.find_removals(topic, points, history)
        own = OwnRows()
    else:
        adopted, own = AdoptedRemovals(), own_rows.find_rows(topic, points)
        described = own_rows.describe(topic, own.records, keeps_offsets=request.keeps_offsets)
        records = own.returning() | described
        more = {
            p: _of_erased(returning.erased) for p, returning in records.items() if returning.erased
        }
        if more:
            points = {
                p: partition_points for p, partition_points in points.items() if p not in more
            }
            own = own_rows.find_rows(topic, points)  # again, because rows refer to points by index
    refused = dict(sorted({**refused, **more}.items()))
    undo = undo.within(points)
    return UndoPlan(topic, undo, points, own, adopted, records, refused, now_ms=request.now_ms)


def plan_begun(topic: Topic, undo: Undo, points: PointsOfPartitions, now_ms: int) -> UndoPlan:
    """Plan the rest of an undo that a killed run began."""
    if not topic.is_adopted:
        own = own_rows.find_rows(topic, points)
        return UndoPlan(topic, undo, points, own, records=own.returning(), is_begun=True)
    plan = UndoPlan(topic, undo, points, is_begun=True, now_ms=now_ms)
    if adopted_rows.committed(topic, undo) is not None:
        return plan
    removals, records = adopted_rows.find_removals(
        topic, points, adopted_rows.history_of(topic, points)
    )
    return replace(plan, adopted=removals, records=records)


def _of_erased(records: int) -> str:
    return f"{records:,} records of erased keys would be restored, and an erasure is never undone"
