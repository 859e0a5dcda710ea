"""Plan an undo on an adopted topic: the rows that ebbtide's commits since then have removed.

Rows come back from the snapshots around each of these commits, as long as nobody has expired them:
on a table of others, tags stay only while work is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

from pyroaring import BitMap64
from pyspark.sql import DataFrame

from ebbtide.iceberg.adopted.returning_rows import Removals, can_give_back, rows_removed
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.planned.planned_undo import Undo
from ebbtide.iceberg.topics import Topic
from ebbtide.log.plans.summary import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.log.undo.points import NEVER_UNDONE, PointsOfPartitions
from ebbtide.spark.number_sets import number_sets
from ebbtide.stages.undo_run.plan import RETURNS, UndoPlan


class Returning(NamedTuple):
    """A commit of ebbtide's, and the partitions to which the rows return that it removed."""

    made: Snapshot
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True)
class AdoptedUndoPlan(UndoPlan):
    """The points that go back in each partition of an adopted topic, and what returns.

    `seen` is the newest snapshot that was looked at.
    """

    now_ms: int = 0
    returning: Sequence[Returning] = ()
    offsets: Mapping[int, BitMap64] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    seen: int = 0

    @property
    def snapshots(self) -> set[int]:
        """The snapshots that rows are read from."""
        around = {of for each in self.returning for of in (each.made.parent, each.made.id)}
        return {snapshot for snapshot in around if snapshot is not None}

    def rows(self) -> list[DataFrame]:
        """Return the rows that return, of each commit."""
        rows = AdoptedRows.of(self.topic)
        return [rows_removed(rows, *each) for each in self.returning]

    def returned(self, partition: int) -> int:
        """Return how many records return to a partition."""
        return self.counts.get(partition, 0)

    def removes(self) -> dict[int, BitMap64]:
        """Return the offsets of the records that return."""
        return {p: self.offsets.get(p, BitMap64()) for p in self.points}

    def summary(self) -> dict[int, PartitionSummary]:
        """Return what returns by the job that had removed it, and which partitions stay."""
        summaries = {}
        for partition, points in self.points.items():
            jobs = dict.fromkeys(point.job for point in reversed(points))
            records = self.returned(partition)
            rules = {f"{RETURNS} {' and '.join(jobs)}": RuleNumbers(records=records)}
            summaries[partition] = partition_summary(LeavingRows(records=records), rules)
        for partition, reason in self.refused.items():
            stays = [Staying(reason=f"it is not undone: {reason}")]
            summaries[partition] = partition_summary(LeavingRows(), {}, stays)
        return summaries


def history_of(topic: Topic, points: PointsOfPartitions) -> Removals:
    """Read the table's history since the oldest of the points' snapshots, which are all there."""
    snapshots = open_table(topic.spark, topic.name.records_table).metadata.snapshots
    firsts = {snapshot_of(points, partition) for partition in points}
    oldest = min(firsts, key=lambda snapshot: snapshots[snapshot].sequence_number)
    return Removals.since(topic, oldest)


def snapshot_of(points: PointsOfPartitions, partition: int) -> int:
    """Return the snapshot from before the first run of a partition that goes back."""
    snapshot = points[partition][0].records_snapshot
    assert snapshot is not None, "an adopted table has rows before they are removed"
    return snapshot


def refusals_of_history(
    topic: Topic, points: PointsOfPartitions, history: Removals
) -> dict[int, str]:
    """Return why the partitions cannot go back, as far as the table's history tells."""
    if not history.is_whole:
        why = "somebody has rolled the table back, or expired a snapshot since"
        return dict.fromkeys(points, why)
    if not can_give_back(AdoptedRows.of(topic)):
        why = "a data file of the table has no bounds of the offset, so that no overwrite is safe"
        return dict.fromkeys(points, why)
    reasons = {p: _reason(topic, history, snapshot_of(points, p), p) for p in points}
    return {partition: reason for partition, reason in reasons.items() if reason}


def _reason(topic: Topic, history: Removals, snapshot: int, partition: int) -> str:
    if (other := history.of_others_after(snapshot)) is not None:
        return f"somebody else has removed rows since, and perhaps these too: {other}"
    table = open_table(topic.spark, topic.name.records_table).metadata
    for made in history.standing_after(snapshot, partition):
        if made.job in NEVER_UNDONE:
            what, why = NEVER_UNDONE[made.job]
            return f"{what} in snapshot {made.id}, and {why}"
        for needed in (made.parent, made.id):
            found = None if needed is None else table.snapshots.get(needed)
            if found is None:
                return f"snapshot {needed} is gone: somebody has expired it"
            if found.schema_id != table.schema["schema-id"]:
                return f"somebody has changed the table's columns since snapshot {needed}"
    return ""


def plan_returning(
    topic: Topic,
    undo: Undo,
    points: PointsOfPartitions,
    history: Removals,
    now_ms: int,
    refused: Mapping[int, str] | None = None,
    *,
    is_begun: bool = False,
) -> AdoptedUndoPlan:
    """Plan what returns to the partitions that are not refused."""
    refused = refused or {}
    going = {p: of for p, of in points.items() if p not in refused}
    partitions: dict[int, list[int]] = {}
    commits: dict[int, Snapshot] = {}
    for partition in going:
        for made in history.standing_after(snapshot_of(points, partition), partition):
            commits[made.id] = made
            partitions.setdefault(made.id, []).append(partition)
    plan = AdoptedUndoPlan(
        topic,
        undo.within(going),
        going,
        refused=dict(sorted(refused.items())),
        is_begun=is_begun,
        now_ms=now_ms,
        returning=[Returning(made, partitions[of]) for of, made in commits.items()],
        seen=history.newest,
    )
    return _counted(plan)


def _counted(plan: AdoptedUndoPlan) -> AdoptedUndoPlan:
    """Return the plan with the offsets that return, and how many rows."""
    parts = [part.select("partition", "offset") for part in plan.rows()]
    if not parts:
        return plan
    together = reduce(DataFrame.unionByName, parts).persist()
    try:
        counts = together.groupBy("partition").count().collect()
        sets = number_sets(together, ["partition"], "offset")
    finally:
        together.unpersist()
    return replace(
        plan,
        offsets={partition: offsets for (partition,), offsets in sets.items()},
        counts={row["partition"]: row["count"] for row in counts},
    )
