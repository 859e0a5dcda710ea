"""Plan an undo: which runs go back in which partition, what returns, and what is refused and why.

Runs go back last in, first out: with a run all later ones of a partition do.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap64

from ebbtide.iceberg.planned.planned_undo import Undo
from ebbtide.iceberg.topics import Topic
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.log.undo.points import PointsOfPartitions
from ebbtide.runs.proposals import Touched
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.planned_rows import add_to
from ebbtide.stages.undo_run.described_rows import DescribedRows, describe
from ebbtide.stages.undo_run.returning_rows import Returned, find_batches, find_records
from ebbtide.stages.undo_run.undone_partitions import quarantined

log = logging.getLogger(__name__)

RETURNS = "removed_by"


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """The points that go back in each partition, and the rows that return.

    `refused` has the partitions that stay as they are, and why. `replicas` are the plans of the
    topic's table replicas. `is_begun` is true of an undo that a killed run has begun.
    """

    topic: Topic
    undo: Undo
    points: PointsOfPartitions
    records: Returned = field(default_factory=Returned)
    batches: Returned = field(default_factory=Returned)
    described: Mapping[int, DescribedRows] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    replicas: tuple[UndoPlan, ...] = ()
    is_begun: bool = False
    note: str = ""

    @property
    def starts(self) -> dict[int, int]:
        """The log start offset that each partition gets back."""
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
                str(of.topic.name): {"records_returned": of.records_returned}
                for of in self.replicas
            }
        if self.note:
            outcome.topic["note"] = self.note
        return outcome

    @property
    def records_returned(self) -> int:
        """How many records return in all partitions."""
        return sum(map(self.returned, self.points))

    def returned(self, partition: int) -> int:
        """Return how many records return to a partition."""
        return len(self.records.of_partition(partition))

    def _numbers(self, partition: int) -> dict[str, Any]:
        start = self.starts[partition]
        return {
            "log_start_offset": start,
            "low_watermark": self._low_watermark(partition),
            "log_start_offset_before": self.topic.partitions[partition].log_start_offset,
            "records_returned": self.returned(partition),
            "runs_undone": len(self.points[partition]),
        }

    def _low_watermark(self, partition: int) -> int:
        """Return the least log start offset of all replicas; unknown where one is not read."""
        if len(self.replicas) < len(self.topic.config.replicas):
            return INVALID_LOW_WATERMARK
        starts = [of.start_after(partition) for of in (self, *self.replicas)]
        return INVALID_LOW_WATERMARK if None in starts else min(s for s in starts if s is not None)

    def start_after(self, partition: int) -> int | None:
        """Return the log start offset of a partition afterwards; None where there is none."""
        state = self.topic.partitions.get(partition)
        return self.starts.get(partition, None if state is None else state.log_start_offset)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records that return."""
        return {partition: self.records.of_partition(partition) for partition in self.points}

    def touches(self) -> Touched:
        """Return nothing: an undo is not undone."""
        return Touched()

    def fixed(self) -> dict[int, dict[str, int]]:
        """Return the log start offset that each partition gets back."""
        return {p: {"log_start_offset": start} for p, start in self.starts.items()}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what returns by the job that had removed it, and which partitions stay."""
        summaries = {}
        for partition in self.points:
            described, rows = self._of(partition), LeavingRows()
            add_to(rows, described.rows)
            jobs = dict.fromkeys(point.job for point in reversed(self.points[partition]))
            rules = {
                f"{RETURNS} {' and '.join(jobs)}": RuleNumbers(
                    records=rows.records, bytes=described.size_bytes
                )
            }
            summaries[partition] = partition_summary(
                rows,
                rules,
                bytes_removed=described.size_bytes,
                shows_keys=self.topic.config.plans_show_keys,
            )
        for partition, reason in self.refused.items():
            summaries[partition] = partition_summary(
                LeavingRows(), {}, [Staying(reason=f"it is not undone: {reason}")]
            )
        return summaries

    def _of(self, partition: int) -> DescribedRows:
        return self.described.get(partition, DescribedRows())


def plan_points(
    topic: Topic,
    undo: Undo,
    points: PointsOfPartitions,
    refused: Mapping[int, str],
    *,
    keeps_offsets: bool = False,
) -> UndoPlan:
    """Plan to take the points back, those of refused partitions apart.

    What would bring back a record of an erased key is refused too.
    """
    points = {p: of for p, of in points.items() if p not in refused}
    records = find_records(topic, points, quarantined(topic, points))
    described = describe(topic, records, keeps_offsets=keeps_offsets)
    erased = {p: _of_erased(of.erased) for p, of in described.items() if of.erased}
    if erased:
        points = {p: of for p, of in points.items() if p not in erased}
        # Anew: rows tell by the numbers of these points where they lay.
        records = find_records(topic, points, quarantined(topic, points))
    batches = find_batches(topic, points)
    refused = dict(sorted({**refused, **erased}.items()))
    return UndoPlan(topic, undo.within(points), points, records, batches, described, refused)


def plan_begun(topic: Topic, undo: Undo, points: PointsOfPartitions) -> UndoPlan:
    """Plan what is left of an undo that a killed run has begun."""
    records = find_records(topic, points, quarantined(topic, points))
    batches = find_batches(topic, points)
    return UndoPlan(topic, undo, points, records, batches, is_begun=True)


def _of_erased(records: int) -> str:
    return (
        f"{records:,} records of keys that were erased would return, and an erasure is never undone"
    )
