"""Numbers of what a cleaner round removes and changes, for results, the log and the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.rewritten_batches import Rewriting
from ebbtide.columns.row_changes import no_changes
from ebbtide.iceberg.files.data_files import DeletionVector
from ebbtide.iceberg.planned.planned_round import PartitionRound
from ebbtide.log.batch_header import Batch
from ebbtide.log.compaction import MAX_OFFSET, Round, Verdict, judge
from ebbtide.log.logical_segments import Segment
from ebbtide.log.producers import LastRecord
from ebbtide.log.state.topic_state import NEVER
from ebbtide.text import moment, number, size

# Numbers of a partition, in words.
_REMOVED = {
    "superseded": "superseded",
    "aborted": "aborted",
    "keyless": "without a key",
    "tombstones_removed": "tombstones",
    "markers_removed": "transaction markers",
}


@dataclass(slots=True)
class RoundEffect:
    """A round's removals and changes, before anything of it is committed."""

    deletions: list[DeletionVector] = field(default_factory=list)
    changes: pa.Table = field(default_factory=no_changes)
    victims: int = 0
    bytes_removed: int = 0
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_clean_ms: dict[int, int] = field(default_factory=dict)
    segments: dict[int, Sequence[Segment]] = field(default_factory=dict)  # before the round


class JudgedPartition(NamedTuple):
    """One partition's round: its parameters, and the batches that rules look at."""

    this_round: Round
    part: PartitionRound
    last_records: dict[int, LastRecord]
    verdicts: list[tuple[Batch, Verdict]]


class UnitEffect(NamedTuple):
    """The round's effect on one segment's data batches that hold records."""

    partition: int
    first_base_offset: int
    deletions: list[DeletionVector]
    by_rule: dict[str, int]
    tombstones_kept: int
    tombstones_held_back: int
    rewriting: Rewriting
    newest_left: BatchHeaders  # of each producer


class PartitionEffect(NamedTuple):
    """A round's effect on one partition, by the driver's verdicts and in each segment."""

    judged: JudgedPartition
    headers: Sequence[tuple[Batch, Batch | None]]  # before and after, where no task saw records
    units: Sequence[UnitEffect]

    @property
    def rewritings(self) -> list[Rewriting]:
        """The changed headers of each segment."""
        return [unit.rewriting for unit in self.units]


def add_numbers(effect: RoundEffect, partition: int, of_partition: PartitionEffect) -> None:
    """Add the partition's numbers to the effect."""
    judged, headers, units = of_partition
    by_rule = sum((Counter(unit.by_rule) for unit in units), Counter[str]())
    waits = _horizons(of_partition)
    totals = _totals(effect.segments[partition], of_partition)
    effect.victims += by_rule.total()
    effect.bytes_removed += totals["bytes_before"] - totals["bytes_after"]
    effect.next_clean_ms[partition] = min(waits, default=NEVER)
    effect.numbers[partition] = totals | {
        "superseded": by_rule["superseded"],
        "aborted": by_rule["aborted"],
        "keyless": by_rule["keyless"],
        "tombstones_kept": sum(unit.tombstones_kept for unit in units),
        "tombstones_removed": by_rule["tombstone"],
        **_markers(headers),
        "next_horizon_ms": min((wait for wait in waits if wait), default=None),
    }
    if judged.part.held_back_from < MAX_OFFSET:
        tombstones = sum(unit.tombstones_held_back for unit in units)
        held_back = {"tombstones": tombstones, "markers": _markers_held_back(judged)}
        effect.numbers[partition]["held_back"] = held_back


def _horizons(of_partition: PartitionEffect) -> list[int]:
    """Return when the remaining tombstones and markers may go, in epoch ms; 0 means at once."""
    of_tombstones = [rewriting.next_horizon_ms for rewriting in of_partition.rewritings]
    known = [horizon_ms for horizon_ms in of_tombstones if horizon_ms is not None]
    return [*known, *_waiting_markers(of_partition)]


def _totals(segments: Sequence[Segment], of_partition: PartitionEffect) -> dict[str, Any]:
    """Count data records and bytes before and after the round, as the segments' headers tell."""
    records = sum(segment.record_count for segment in segments)
    size_bytes = sum(segment.size_bytes for segment in segments)
    rewritings = of_partition.rewritings
    records_removed = sum(of.records_removed for of in rewritings)
    bytes_removed = sum(of.bytes_removed for of in rewritings)
    for batch, left in of_partition.headers:
        bytes_removed += batch.size_bytes - (left.size_bytes if left else 0)
        if not batch.is_control:
            records_removed += batch.record_count - (left.record_count if left else 0)
    return {
        "records_before": records,
        "records_after": records - records_removed,
        "bytes_before": size_bytes,
        "bytes_after": size_bytes - bytes_removed,
    }


def _markers(headers: Sequence[tuple[Batch, Batch | None]]) -> dict[str, int]:
    markers = [left for batch, left in headers if batch.is_control and batch.record_count]
    removed = sum(1 for left in markers if left is None or left.record_count == 0)
    return {"markers_removed": removed, "markers_kept": len(markers) - removed}


def _markers_held_back(judged: JudgedPartition) -> int:
    """Count the markers that stay only because a replica ends before them."""
    everything = judged.this_round._replace(held_back_from=MAX_OFFSET)
    freely = judge([batch for batch, _ in judged.verdicts], everything, judged.last_records)
    pairs = zip(judged.verdicts, freely, strict=True)
    return sum(1 for (_, held), (_, free) in pairs if free != held)


def _waiting_markers(of_partition: PartitionEffect) -> Iterator[int]:
    """Yield when each remaining marker may go; 0 if it has no horizon and its data is gone."""
    judged = of_partition.judged
    bases = [batch.base_offset for batch, _ in judged.verdicts]
    removed = {
        base
        for of in of_partition.rewritings
        for base in np.intersect1d(of.removed, bases).tolist()
    }
    control = {before.base_offset: batch for before, batch in of_partition.headers}
    left = [
        batch
        for before, _ in judged.verdicts
        if (batch := control.get(before.base_offset, before)) is not None
        and before.base_offset not in removed
    ]
    for batch, verdict in judge(left, judged.this_round, {}):
        if not batch.is_control or not batch.record_count or judged.this_round.is_hidden(batch):
            continue
        if batch.delete_horizon_ms is not None:
            yield batch.delete_horizon_ms
        elif verdict.is_marker_of_empty_transaction:
            yield 0


def described(numbers: Mapping[str, Any]) -> str:
    """Describe the numbers of one partition in words, for the log."""
    removed = [
        f"{number(count)} {what}" for name, what in _REMOVED.items() if (count := numbers.get(name))
    ]
    return (
        f"removes {', '.join(removed) or 'no record'}; "
        f"{size(numbers['bytes_before'])} become {size(numbers['bytes_after'])}; "
        f"{number(numbers['tombstones_kept'])} tombstones stay, next horizon "
        f"{moment(numbers['next_horizon_ms'])}"
    )
