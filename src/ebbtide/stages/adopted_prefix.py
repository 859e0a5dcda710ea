"""Remove the rows of an adopted topic that lie below its log start offsets.

Every run removes whatever still lies below, so the next run finishes a killed one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ebbtide.iceberg.adopted.prefixes import find_below
from ebbtide.iceberg.adopted.removal import prepare_removal
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.commits import ROWS, TOPIC, Step, commit
from ebbtide.iceberg.topics import Topic, current_snapshot


@dataclass(slots=True)
class RemovedPrefix:
    """Rows that lay below the log start offsets, by partition; the snapshot without them."""

    rows: Counter[int] = field(default_factory=Counter)
    snapshot_ids: list[int] = field(default_factory=list)


def remove_below_start(topic: Topic) -> RemovedPrefix:
    """Remove what lies below each log start offset."""
    starts = {p: s.log_start_offset for p, s in topic.partitions.items() if s.log_start_offset}
    snapshot = current_snapshot(topic.spark, topic.name.records_table)
    if not starts or snapshot is None:
        return RemovedPrefix()
    below = find_below(AdoptedRows.of(topic), snapshot, starts)
    if not below.rows:
        return RemovedPrefix()
    properties = {ROWS: str(below.rows.total()), TOPIC: str(topic.name)}
    table = topic.name.records_table
    prepared = prepare_removal(topic.spark, table, snapshot, below.positions, properties)
    return RemovedPrefix(below.rows, [commit(Step.TRUNCATE_RECORDS, prepared)])
