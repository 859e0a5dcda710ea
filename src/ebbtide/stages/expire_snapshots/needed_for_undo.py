"""Tell which snapshots an undo may still need, and until when, whatever the table's own age is."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from ebbtide.iceberg.topics import Topic
from ebbtide.log.undo.points import can_be_undone, standing_points
from ebbtide.runs.undo_points import read_points
from ebbtide.stages.expire_snapshots.snapshots import snapshots_and_refs


def needed_until_ms(
    topic: Topic, what: str, table: Any, snapshots: Collection[int]
) -> dict[int, int]:
    """Return those of the snapshots that a point younger than `ebbtide.undo.ms` needs.

    `what` is records or batches, `table` Iceberg's object of it. A point is of a snapshot that was
    current then, so on most nights no point is read.
    """
    undo_ms = topic.config.undo_ms
    if not snapshots or not undo_ms:
        return {}
    since_ms = int(time.time() * 1000) - undo_ms
    was_current = snapshots_and_refs(topic.spark, table).current_since(since_ms)
    if was_current.isdisjoint(snapshots):
        return {}
    since = datetime.fromtimestamp(since_ms / 1000, UTC)
    standing = standing_points(read_points(topic.spark, topic.name, since)).values()
    points = [p for of in standing for n, p in enumerate(of) if can_be_undone(of[n:])]
    until_ms: dict[int, int] = {}
    for point in sorted(points, key=lambda point: point.at):
        snapshot = {"records": point.records_snapshot, "batches": point.batches_snapshot}.get(what)
        if snapshot is not None and snapshot in snapshots:
            until_ms[snapshot] = int(point.at.timestamp() * 1000) + undo_ms
    return until_ms
