"""Tell which snapshots an undo may still need, and until when, whatever the table's own age is."""

from __future__ import annotations

import time
from collections.abc import Collection

from ebbtide.iceberg.metadata import TableMetadata
from ebbtide.iceberg.topics import Topic
from ebbtide.log.undo.points import can_be_undone, standing_points
from ebbtide.moments import earlier, to_datetime
from ebbtide.runs.undo_points import read_points


def needed_until_ms(
    topic: Topic, what: str, table: TableMetadata, snapshots: Collection[int]
) -> dict[int, int]:
    """Return those of the snapshots that a point younger than `ebbtide.undo.ms` needs.

    `what` is records or batches. A point is of a snapshot that was current then, so on most nights
    no point is read.
    """
    undo_ms = topic.config.undo_ms
    if not snapshots or not undo_ms:
        return {}
    since_ms = earlier(int(time.time() * 1000), undo_ms)
    if table.current_since(since_ms).isdisjoint(snapshots):
        return {}
    since = to_datetime(since_ms)
    standing = standing_points(read_points(topic.spark, topic.name, since)).values()
    points = [p for of in standing for n, p in enumerate(of) if can_be_undone(of[n:])]
    until_ms: dict[int, int] = {}
    for point in sorted(points, key=lambda point: point.at):
        snapshot = {"records": point.records_snapshot, "batches": point.batches_snapshot}.get(what)
        if snapshot is not None and snapshot in snapshots:
            until_ms[snapshot] = int(point.at.timestamp() * 1000) + undo_ms
    return until_ms
