"""Why a partition's runs cannot be undone, as far as their points and the snapshots tell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.topics import Topic
from ebbtide.log.settings.config import UNDO_MS
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.log.undo.points import NEVER_UNDONE, PointsOfPartitions, UndoPoint
from ebbtide.moments import earlier, to_datetime


def refusals(topic: Topic, points: PointsOfPartitions, clock_ms: int) -> dict[int, str]:
    """Return the reason of each partition that has one.

    `clock_ms` is that of the machines that commit, as for the age of snapshots.
    """
    oldest = to_datetime(earlier(clock_ms, topic.config.undo_ms))
    reasons = {p: _by_points(topic.partitions[p], p, of, oldest) for p, of in points.items()}
    reasons = {partition: reason for partition, reason in reasons.items() if reason}
    return {**missing_snapshots(topic, points), **reasons}


def _by_points(
    current: PartitionState, partition: int, points: Sequence[UndoPoint], oldest: datetime
) -> str:
    final = next((point for point in points if point.job in NEVER_UNDONE), None)
    if final is not None:
        what, why = NEVER_UNDONE[final.job]
        return f"{what} by run {final.run_id} at {_moment(final.at)}, and {why}"
    if points[0].at < oldest:
        return (
            f"run {points[0].run_id} removed at {_moment(points[0].at)}, which is longer ago than "
            f"{UNDO_MS} allows"
        )
    start = points[0].states[partition].log_start_offset
    later = [*(point.states[partition] for point in points[1:]), current]
    for point, after in zip(points, later, strict=True):
        if point.truncated and after.log_start_offset > start:
            return (
                f"run {point.run_id} truncated the live topic at kafka:"
                f"{' and kafka:'.join(point.truncated)} up to offset {after.log_start_offset}, and "
                "no broker gives that back"
            )
    return ""


def missing_snapshots(topic: Topic, points: PointsOfPartitions) -> dict[int, str]:
    """Return, by partition, which snapshot of its points another tool has expired."""
    names = [topic.name.records_table, topic.name.batches_table]
    tables = [open_table(topic.spark, table) for table in names[: 1 if topic.is_adopted else 2]]
    missing: dict[int, str] = {}
    for partition, of_partition in points.items():
        for point in reversed(of_partition):
            snapshots = (point.records_snapshot, point.batches_snapshot)
            for table, snapshot in zip(tables, snapshots, strict=False):
                if snapshot is not None and snapshot not in table.metadata.snapshots:
                    missing[partition] = (
                        f"snapshot {snapshot} of {table}, from before run {point.run_id}, "
                        "is gone: another tool has expired it"
                    )
    return missing


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
