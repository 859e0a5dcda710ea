"""Run a cleaner round over one segment, in a task.

A task reads the segment's batch headers and its records, and judges both. It returns numbers, the
rows that change, and a few rows of each producer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from ebbtide.columns.headers import COLUMNS as HEADER_COLUMNS
from ebbtide.columns.headers import BatchHeaders, headers_of, together
from ebbtide.columns.live_records import COLUMNS, COLUMNS_OF_UNTIMED
from ebbtide.columns.rewritten_batches import (
    ORDINARY,
    RowChanges,
    after_changes,
    changes_of,
    hidden_changes,
    no_changes,
)
from ebbtide.columns.segment_cleaning import (
    IsSuperseded,
    SegmentEffect,
    clean_segment,
    dirty_keys,
    judge_headers,
)
from ebbtide.columns.transaction_rows import outline_transactions, read_transactions
from ebbtide.errors import NotCoveredError
from ebbtide.iceberg.data_files import (
    DeletionVector,
    SegmentFiles,
    SegmentRows,
    deletion_of,
    read_segment,
)
from ebbtide.jobs.removed_rows import PlannedRows
from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.compaction import (
    Round,
    Survivors,
    Verdict,
    control_left,
    judge,
    rewrite,
    verdict_on,
)
from ebbtide.kafka.transactions import LastRecord, TransactionsAround
from ebbtide.ledger.plans import (
    LeavingRows,
    PartitionSummary,
    RuleNumbers,
    Staying,
    partition_summary,
)
from ebbtide.moments import minute
from ebbtide.numbers import MAX_OFFSET
from ebbtide.spark.tasks import Shared
from ebbtide.state.logical_segments import Segment
from ebbtide.state.topic_state import NEVER
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
        return cls(*(together(headers) for headers in zip(*parts, strict=True)))


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
        return [
            cls._together(partition, partition_effects)
            for partition, partition_effects in parts.items()
        ]

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
        effect.numbers[partition]["waiting_for_replicas"] = {
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


Judged = Sequence[tuple[Batch, Verdict]]
HeadersAfter = Sequence[tuple[Batch, Batch | None]]


class PartitionRules(NamedTuple):
    """The part of one partition's round that tasks need."""

    this_round: Round
    first_segment_offset: int
    last_records: Mapping[int, LastRecord]

    def covered(self, headers: BatchHeaders) -> BatchHeaders:
        """Return the batches that are not before the first segment."""
        return headers.where(headers.column("base_offset") >= self.first_segment_offset)


class Unit(NamedTuple):
    """One segment's share of the round; `records` is None where the table holds none of it."""

    records: SegmentFiles | None
    batches: SegmentFiles
    around: TransactionsAround
    has_transactions: bool

    @property
    def place(self) -> tuple[int, int]:
        """Partition and segment."""
        return self.batches.partition, self.batches.segment


class Known(NamedTuple):
    """The input of the work on each segment; units are known by partition and segment.

    `keeps_offsets` asks for the offsets that leave, for a plan that is kept or checked.
    """

    rules: Mapping[int, PartitionRules]  # by partition
    units: Mapping[tuple[int, int], Unit]
    future_limit_ms: int
    keeps_offsets: bool = False


class _Cleaned(NamedTuple):
    """The round's effect on the records of a segment."""

    first_base_offset: int  # of the batches that hold any
    effect: SegmentEffect
    deletions: list[DeletionVector]
    planned: PlannedRows | None = None


def _clean_records(
    records: SegmentFiles,
    headers: BatchHeaders,
    verdicts: Mapping[int, Verdict],
    is_superseded: IsSuperseded,
    known: Known,
) -> _Cleaned | None:
    """Judge a segment's records; None where there is none at or above the log start offset.

    `verdicts` are those on data that are not ORDINARY.
    """
    this_round = known.rules[records.partition].this_round
    read = read_records(records)
    is_covered = read.table["offset"].to_numpy() >= this_round.log_start_offset
    rows = read.table if is_covered.all() else read.table.filter(pa.array(is_covered))
    if not rows.num_rows:
        return None
    done = clean_segment(rows, headers, verdicts, is_superseded, this_round, known.future_limit_ms)
    gone = np.flatnonzero(is_covered)[done.is_victim]
    files, positions = read.files[gone], read.positions[gone]
    deletions = [
        deletion_of(records.store, file, positions[files == number])
        for number, file in enumerate(records.files)
        if np.any(files == number)
    ]
    planned = PlannedRows.of(rows, done.is_victim) if known.keeps_offsets else None
    return _Cleaned(rows["batch"][0].as_py(), done, deletions, planned)


def read_records(records: SegmentFiles) -> SegmentRows:
    """Read what a round needs of a segment's records."""
    read = read_segment(records, COLUMNS)
    is_timed = read.table["timestamp"].null_count == 0
    return read if is_timed else read_segment(records, COLUMNS_OF_UNTIMED)


def find_dirty_keys(known: Shared[Known], records: SegmentFiles) -> pa.Table:
    """Return the offset of each key's last record in a dirty segment."""
    rules = known.value.rules[records.partition]
    unit = known.value.units[records.partition, records.segment]
    discarded = _aborted(rules, unit) if unit.has_transactions else []
    rows = read_segment(records, ("offset", "batch", "key")).table
    return dirty_keys(rows, discarded, rules.this_round.first_dirty_offset)


def _aborted(rules: PartitionRules, unit: Unit) -> list[int]:
    """Return base offsets of a segment's aborted data below the bound."""
    headers = rules.covered(_headers(unit))
    log_start, bound = rules.this_round.log_start_offset, rules.this_round.first_uncleanable_offset
    bases = headers.column("base_offset")
    is_aborted = read_transactions(headers, log_start, unit.around) & ~headers.is_control
    return list(bases[is_aborted & (bases < bound)].tolist())


def _headers(unit: Unit) -> BatchHeaders:
    return BatchHeaders(read_segment(unit.batches, HEADER_COLUMNS, "base_offset").table)


def clean_unit(
    known: Shared[Known], files: SegmentFiles, is_superseded: IsSuperseded | None = None
) -> UnitEffect:
    """Run the round over one segment, given by its records, or its batches where it has none.

    Kafka's cleaner marks a partition that it cannot clean, and goes on with the others.
    """
    try:
        return _clean_unit(known, files, is_superseded)
    except NotCoveredError as error:
        return UnitEffect.nothing(files.partition, str(error))


def _clean_unit(
    known: Shared[Known], files: SegmentFiles, is_superseded: IsSuperseded | None
) -> UnitEffect:
    place = files.partition, files.segment
    unit, rules = known.value.units[place], known.value.rules[files.partition]
    headers = _headers(unit)
    judged = judge_headers(
        rules.covered(headers), rules.this_round, rules.last_records, unit.around
    )
    cleaned = None
    if unit.records is not None and is_superseded is not None:
        verdicts = {
            batch.base_offset: verdict
            for batch, verdict in judged
            if not batch.is_control and batch.record_count and verdict != ORDINARY
        }
        cleaned = _clean_records(unit.records, headers, verdicts, is_superseded, known.value)
    after = list(_headers_after(judged, cleaned, rules.this_round))
    changes = changes_of([(before, left, NEVER) for before, left in after if left != before])
    if cleaned is not None:
        changes = pa.concat_tables([changes, cleaned.effect.rewriting.changes])
    hidden, hidden_bytes = hidden_changes(rules.covered(headers), rules.this_round)
    changes = pa.concat_tables([changes, hidden]).sort_by("base_offset")
    return UnitEffect(
        files.partition,
        [files.segment],
        [] if cleaned is None else cleaned.deletions,
        RowChanges.of(*place, changes),
        _numbers(judged, after, cleaned, rules, hidden_bytes),
        _rows_left(headers, changes, rules),
        _planned(after, cleaned) if known.value.keeps_offsets else None,
    )


def _planned(after: HeadersAfter, cleaned: _Cleaned | None) -> PlannedRows:
    """Return the records that leave, with the offsets of the markers that do."""
    planned = PlannedRows() if cleaned is None or cleaned.planned is None else cleaned.planned
    markers = BitMap64(batch.last_offset for batch, left in after if _loses_marker(batch, left))
    return planned._replace(offsets=planned.offsets | markers)


def _loses_marker(batch: Batch, left: Batch | None) -> bool:
    """Return whether a batch held a transaction marker and holds none any more."""
    is_marker = batch.is_control and batch.record_count > 0
    return is_marker and (left is None or left.record_count == 0)


def _headers_after(
    judged: Judged, cleaned: _Cleaned | None, this_round: Round
) -> Iterator[tuple[Batch, Batch | None]]:
    """Yield each batch that the records do not decide about, with what becomes of it.

    These are control batches, empty batches, and one that begins below the log start offset and
    has no record left at or above it.
    """
    for batch, verdict in judged:
        has_records = cleaned is not None and batch.base_offset == cleaned.first_base_offset
        if batch.is_control or not batch.record_count:
            left = control_left(batch, verdict, this_round)
        elif this_round.is_astride(batch) and not has_records:
            left = Survivors(0, hidden=batch.record_count)
        else:
            continue
        yield batch, rewrite(batch, verdict, left, this_round)


def _numbers(
    judged: Judged,
    after: HeadersAfter,
    cleaned: _Cleaned | None,
    rules: PartitionRules,
    hidden_bytes: int,
) -> UnitNumbers:
    """Count what the round removes from the segment; hidden data counts for no bytes any more.

    Records are those of the cleaned batches: the other data batches have none above the log start.
    """
    markers = [left for batch, left in after if batch.is_control and batch.record_count]
    numbers = UnitNumbers(
        bytes_removed=sum(
            batch.size_bytes - (left.size_bytes if left else 0) for batch, left in after
        )
        + hidden_bytes,
        markers_removed=sum(1 for left in markers if left is None or left.record_count == 0),
        markers=len(markers),
        markers_held_back=_markers_held_back(judged, rules),
    )
    if cleaned is None:
        return numbers
    effect = cleaned.effect
    return numbers._replace(
        records_removed=effect.rewriting.records_removed,
        bytes_removed=numbers.bytes_removed + effect.rewriting.bytes_removed,
        by_rule=effect.by_rule,
        tombstones_kept=effect.tombstones_kept,
        tombstones_held_back=effect.tombstones_held_back,
        next_horizon_ms=effect.rewriting.next_horizon_ms,
    )


def _markers_held_back(judged: Judged, rules: PartitionRules) -> int:
    """Count the markers that stay only because a replica ends before them."""
    if rules.this_round.held_back_from == MAX_OFFSET:
        return 0
    free = rules.this_round._replace(held_back_from=MAX_OFFSET)
    return sum(
        1
        for batch, verdict in judged
        if batch.is_control
        and verdict
        != verdict_on(
            batch,
            free,
            rules.last_records,
            is_decided=verdict.is_marker_of_empty_transaction,
        )
    )


def _rows_left(headers: BatchHeaders, changes: pa.Table, rules: PartitionRules) -> RowsLeft:
    """Return the few rows of the segment after the round that the rest of the log needs."""
    gone = changes.filter(changes["is_removed"])["base_offset"].to_numpy()
    newest = headers.newest_of_producers(gone)
    judged = rules.covered(headers.where(headers.is_in_transaction))
    bases, begins = judged.column("base_offset"), judged.column("txn_first_offset")
    is_early = judged.is_control & (begins >= 0) & (begins < rules.first_segment_offset)
    below = judged.where(bases < rules.this_round.first_uncleanable_offset)
    left = _after(below, changes)
    return RowsLeft(
        left.at(outline_transactions(left, rules.this_round.log_start_offset)),
        _after(newest, changes),
        judged.at(np.flatnonzero(is_early & np.isin(bases, gone))),
    )


def _after(headers: BatchHeaders, changes: pa.Table) -> BatchHeaders:
    """Return the batches that the changes leave, changed."""
    return BatchHeaders(after_changes(headers.table, changes)) if len(headers) else headers


# The rules by which records leave, as a partition's numbers have them.
_RULES = ("superseded", "aborted", "keyless", "tombstones_removed")
_REMOVING = (*_RULES, "markers_removed")
WAITS_FOR_HORIZON = "a tombstone stays until its delete horizon"
WAITS_FOR_REPLICA = "due, but a replica does not hold it yet"


def summaries_of(effect: RoundEffect, *, shows_keys: bool) -> dict[int, PartitionSummary]:
    """Return the summary of each partition of the round, on an adopted table if rows leave it."""
    return {
        partition: partition_summary(
            _leaving(numbers, effect.planned.get(partition, PlannedRows())),
            {rule: RuleNumbers(records=numbers[rule]) for rule in numbers if rule in _REMOVING},
            _staying(numbers),
            bytes_removed=numbers["bytes_before"] - numbers["bytes_after"],
            shows_keys=shows_keys,
        )
        for partition, numbers in effect.numbers.items()
        if "tombstones_kept" in numbers or any(numbers.get(rule) for rule in _RULES)
    }


def nothing_leaves(reason: str) -> PartitionSummary:
    """Return the summary of a partition that is not cleaned, and why."""
    stays = [Staying(reason=reason)] if reason else []
    return partition_summary(LeavingRows(), {}, stays)


def _leaving(numbers: Mapping[str, Any], planned: PlannedRows) -> LeavingRows:
    return LeavingRows(
        records=sum(numbers.get(rule, 0) for rule in _RULES),
        event_times_ms=list(planned.event_times_ms),
        keys=list(planned.keys),
    )


def _staying(numbers: Mapping[str, Any]) -> Iterator[Staying]:
    for_replicas = numbers.get("waiting_for_replicas", {}).get("tombstones", 0)
    if for_replicas:
        yield Staying(reason=WAITS_FOR_REPLICA, records=for_replicas)
    if waiting := numbers.get("tombstones_kept", 0) - for_replicas:
        yield Staying(reason=WAITS_FOR_HORIZON, records=waiting)
