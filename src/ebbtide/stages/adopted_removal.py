"""Remove the rows of an adopted topic that lie below its log start offsets, and old ones.

Every run removes whatever still lies below, so the next run finishes a killed one. Held rows are
copied before. One that is killed before it has counted leaves sums of segments that are too large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ebbtide.iceberg.adopted.leaving_rows import OldRows, PlacedRows, find_leaving
from ebbtide.iceberg.adopted.removal import prepare_removal
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.planned.planned_undo import check_no_undo
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    read_again,
)
from ebbtide.log.adopted.segments import without_rows
from ebbtide.log.plans.offsets import Removes
from ebbtide.log.state.topic_state import to_properties
from ebbtide.runs.held.keeping import KeptRows, keep_leaving


@dataclass(slots=True)
class RemovedRows:
    """How many rows left, by partition, the snapshot without them, and what holds kept."""

    rows: Counter[int] = field(default_factory=Counter)
    snapshot_ids: list[int] = field(default_factory=list)
    kept: KeptRows = field(default_factory=dict)


def remove_below_start(
    topic: Topic, old: Mapping[int, OldRows] | None = None, planned: Removes | None = None
) -> RemovedRows:
    """Remove what lies below each log start offset, and what is old at the planned offsets.

    CommitConflictError where a run was undone since the topic was read.
    """
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    # Read after the snapshot: if an undo has given back rows of it, the state says so.
    current = read_again(topic)
    check_no_undo(current, since=topic)
    starts = {p: s.log_start_offset for p, s in current.partitions.items() if s.log_start_offset}
    if snapshot is None or not (starts or old):
        return RemovedRows()
    rows = AdoptedRows.of(current)
    found = find_leaving(rows, snapshot, starts, old or {}, planned or {})
    if not found.positions:
        return RemovedRows()
    kept = keep_leaving(current, planned or {}, snapshot=snapshot)
    properties = {ROWS: str(found.rows.total()), TOPIC: str(topic.name)}
    prepared = prepare_removal(spark, table, snapshot, found.positions, properties)
    removed = RemovedRows(found.rows, [commit(Step.TRUNCATE_RECORDS, prepared)], kept)
    compare_and_set(current, Step.ROWS_COUNTED, partial(counted_less, found))
    return removed


def counted_less(found: PlacedRows, current: Topic) -> PropertyChanges:
    """Return the changes by which segments count the rows no more."""
    changes: dict[str, str | None] = {}
    for partition in found.offsets:
        state = current.partitions[partition]
        changes |= to_properties(
            partition, without_rows(state, found.by_segment(partition, state.segments))
        )
    return changes
