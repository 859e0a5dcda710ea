"""Numbers of what a cleaner round removes and changes, for results, the log and the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ebbtide.columns.header_columns import BatchHeaders, headers_of, together
from ebbtide.columns.row_changes import RowChanges, no_changes
from ebbtide.iceberg.files.data_files import DeletionVector
from ebbtide.log.compaction import Round, judge
from ebbtide.log.logical_segments import Segment
from ebbtide.log.state.topic_state import NEVER
from ebbtide.moments import minute
from ebbtide.numbers import MAX_OFFSET
from ebbtide.stages.planned_rows import PlannedRows
from ebbtide.text import number, size

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
    changes: RowChanges = field(default_factory=no_changes)
    victims: int = 0
    bytes_removed: int = 0
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_clean_ms: dict[int, int] = field(default_factory=dict)
    segments: dict[int, Sequence[Segment]] = field(default_factory=dict)  # before the round
    planned: dict[int, PlannedRows] = field(default_factory=dict)  # where it was asked for
    refused: dict[int, str] = field(default_factory=dict)  # why a partition cannot be cleaned


class UnitNumbers(NamedTuple):
    """Counts of what the round removes from one segment or some, or leaves in them."""

    records_removed: int = 0
    bytes_removed: int = 0
    by_rule: Mapping[str, int] = {}
    tombstones_kept: int = 0
    tombstones_held_back: int = 0
    next_horizon_ms: int | None = None  # of tombstones
    markers: int = 0  # before the round
    markers_removed: int = 0
    markers_held_back: int = 0

    @classmethod
    def together(cls, parts: Sequence[UnitNumbers]) -> UnitNumbers:
        """Return the sums, and the first horizon."""
        of_all = zip(cls._fields, zip(*parts, strict=True), strict=True)
        return cls(**{name: _TOGETHER.get(name, sum)(values) for name, values in of_all})


def _counts(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum(map(Counter, parts), Counter[str]())


def _first(horizons_ms: Iterable[int | None]) -> int | None:
    return min((ms for ms in horizons_ms if ms is not None), default=None)


# How numbers of segments go together that are no sum.
_TOGETHER: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "by_rule": _counts,
    "next_horizon_ms": _first,
}


class RowsLeft(NamedTuple):
    """Batch rows that decide about those of other segments, as the round leaves them."""

    transactions: BatchHeaders  # see `outline_transactions`; of the judged ones
    newest: BatchHeaders  # of each producer
    early_markers: BatchHeaders  # removed, of transactions that begin before the first segment

    @classmethod
    def none(cls) -> RowsLeft:
        """Return no rows."""
        return cls(headers_of([]), headers_of([]), headers_of([]))

    @classmethod
    def together(cls, parts: Sequence[RowsLeft]) -> RowsLeft:
        """Return those of several segments of a partition."""
        return cls(*(together(of) for of in zip(*parts, strict=True)))


class UnitEffect(NamedTuple):
    """The round's effect on one segment, or on some of a partition."""

    partition: int
    segments: Sequence[int]
    deletions: Sequence[DeletionVector]
    changes: RowChanges
    numbers: UnitNumbers
    left: RowsLeft
    planned: PlannedRows | None = None
    refusal: str = ""  # why its partition cannot be cleaned; nothing else is known then

    @classmethod
    def nothing(cls, partition: int, refusal: str = "") -> UnitEffect:
        """Return no effect, on a partition without a segment or one that cannot be cleaned."""
        return cls(partition, [], [], no_changes(), UnitNumbers(), RowsLeft.none(), refusal=refusal)

    @classmethod
    def by_partition(cls, effects: Sequence[UnitEffect]) -> list[UnitEffect]:
        """Put those of each partition together, so that a segment takes little memory."""
        parts: dict[int, list[UnitEffect]] = {}
        for effect in effects:
            parts.setdefault(effect.partition, []).append(effect)
        return [cls._together(partition, of) for partition, of in parts.items()]

    @classmethod
    def _together(cls, partition: int, parts: Sequence[UnitEffect]) -> UnitEffect:
        if refused := [part for part in parts if part.refusal]:
            return refused[0]
        planned = [part.planned for part in parts if part.planned is not None]
        return cls(
            partition,
            [segment for part in parts for segment in part.segments],
            [deletion for part in parts for deletion in part.deletions],
            RowChanges.together(part.changes for part in parts),
            UnitNumbers.together([part.numbers for part in parts]),
            RowsLeft.together([part.left for part in parts]),
            PlannedRows.together(planned) if planned else None,
        )


def add_numbers(
    effect: RoundEffect, partition: int, this_round: Round, numbers: UnitNumbers, left: RowsLeft
) -> None:
    """Add a partition's numbers to the effect: what leaves all of its segments, and what stays.

    Records and bytes before and after the round are those of the segments' headers.
    """
    by_rule, segments = Counter(numbers.by_rule), effect.segments[partition]
    records = sum(segment.visible_count for segment in segments)
    size_bytes = sum(segment.size_bytes for segment in segments)
    # When remaining tombstones and markers may go, in epoch ms; 0 means at once. Of the tombstones
    # that wait for a horizon, the first is enough.
    waits = [*_waiting_markers(this_round, left)]
    if numbers.next_horizon_ms is not None:
        waits.append(numbers.next_horizon_ms)
    effect.victims += by_rule.total()
    effect.bytes_removed += numbers.bytes_removed
    effect.next_clean_ms[partition] = min(waits, default=NEVER)
    effect.numbers[partition] = {
        "records_before": records,
        "records_after": records - numbers.records_removed,
        "bytes_before": size_bytes,
        "bytes_after": size_bytes - numbers.bytes_removed,
        "superseded": by_rule["superseded"],
        "aborted": by_rule["aborted"],
        "keyless": by_rule["keyless"],
        "tombstones_kept": numbers.tombstones_kept,
        "tombstones_removed": by_rule["tombstone"],
        "markers_removed": numbers.markers_removed,
        "markers_kept": numbers.markers - numbers.markers_removed,
        "next_horizon_ms": min((wait for wait in waits if wait), default=None),
    }
    if this_round.held_back_from < MAX_OFFSET:
        effect.numbers[partition]["held_back"] = {
            "tombstones": numbers.tombstones_held_back,
            "markers": numbers.markers_held_back,
        }


def _waiting_markers(this_round: Round, rows: RowsLeft) -> Iterator[int]:
    """Yield when each remaining marker may go; 0 if it has no horizon and its data is gone."""
    in_order = headers_of([]).with_more([rows.transactions])
    for batch, verdict in judge(in_order.batches(), this_round, {}):
        if not batch.is_control or not batch.record_count or this_round.is_hidden(batch):
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
        f"{minute(numbers['next_horizon_ms'])}"
    )
