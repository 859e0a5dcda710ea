"""Run a cleaner round over one segment, in a task.

The task reads and judges the segment's batch headers and records. It returns counts, the rows to
change, and a few batch rows of each producer.
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

# Names of a partition's counts in the log.
_REMOVED = {
    "superseded": "superseded",
    "aborted": "aborted",
    "keyless": "without a key",
    "tombstones_removed": "tombstones",
    "markers_removed": "transaction markers",
}


@dataclass(slots=True)
class RoundEffect:
    """A round's removals and changes, before any commit."""

    deletions: list[DeletionVector] = field(default_factory=list)
    changes: RowChanges = field(default_factory=no_changes)
    victims: int = 0
    bytes_removed: int = 0
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_clean_ms: dict[int, int] = field(default_factory=dict)
    segments: dict[int, Sequence[Segment]] = field(default_factory=dict)  # before the round
    planned: dict[int, PlannedRows] = field(default_factory=dict)  # on request
    refused: dict[int, str] = field(default_factory=dict)  # why a partition cannot be cleaned


class UnitNumbers(NamedTuple):
    """Counts of the records and markers that the round removes from segments or retains."""

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
        """Return the sums of the counts, and the earliest horizon."""
        of_all = zip(cls._fields, zip(*parts, strict=True), strict=True)
        return cls(**{name: _TOGETHER.get(name, sum)(values) for name, values in of_all})


def _counts(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum(map(Counter, parts), Counter[str]())


def _first(horizons_ms: Iterable[int | None]) -> int | None:
    return min((ms for ms in horizons_ms if ms is not None), default=None)


# How to combine the numbers of several segments that are not added up.
_TOGETHER: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "by_rule": _counts,
    "next_horizon_ms": _first,
}


class RowsLeft(NamedTuple):
    """Batch rows after the round that decide about batches of other segments."""

    transactions: BatchHeaders  # the judged batches; see `outline_transactions`
    newest: BatchHeaders  # the newest batch of each producer
    early_markers: BatchHeaders  # removed, of transactions that begin before the first segment

    @classmethod
    def none(cls) -> RowsLeft:
        """Return no rows."""
        return cls(headers_of([]), headers_of([]), headers_of([]))

    @classmethod
    def together(cls, parts: Sequence[RowsLeft]) -> RowsLeft:
        """Return the rows of several segments of a partition."""
        return cls(*(together(headers) for headers in zip(*parts, strict=True)))


class UnitEffect(NamedTuple):
    """The round's effect on one segment, or on several of a partition."""

    partition: int
    segments: Sequence[int]
    deletions: Sequence[DeletionVector]
    changes: RowChanges
    numbers: UnitNumbers
    left: RowsLeft
    planned: PlannedRows | None = None
    refusal: str = ""  # why the partition cannot be cleaned; all else is empty then

    @classmethod
    def nothing(cls, partition: int, refusal: str = "") -> UnitEffect:
        """Return an effect without changes, of a partition without segments or a refused one."""
        return cls(partition, [], [], no_changes(), UnitNumbers(), RowsLeft.none(), refusal=refusal)

    @classmethod
    def by_partition(cls, effects: Sequence[UnitEffect]) -> list[UnitEffect]:
        """Combine the effects of each partition, so that a segment takes little memory."""
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
    """Add a partition's numbers to the effect: removed and retained records, markers and bytes.

    Records and bytes before and after the round are counted by the batch headers.
    """
    by_rule, segments = Counter(numbers.by_rule), effect.segments[partition]
    records = sum(segment.visible_count for segment in segments)
    size_bytes = sum(segment.size_bytes for segment in segments)
    # Delete horizons of retained tombstones and markers, in epoch ms; 0: due immediately. Of the
    # tombstones, only the earliest horizon is needed.
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
        "cleaned_to": this_round.first_uncleanable_offset,
    }
    if this_round.held_back_from < MAX_OFFSET:
        effect.numbers[partition]["waiting_for_replicas"] = {
            "tombstones": numbers.tombstones_held_back,
            "markers": numbers.markers_held_back,
        }


def _waiting_markers(this_round: Round, rows: RowsLeft) -> Iterator[int]:
    """Yield each retained marker's horizon, or 0 if it has none and its data is removed."""
    in_order = headers_of([]).with_more([rows.transactions])
    for batch, verdict in judge(in_order.batches(), this_round, {}):
        if not batch.is_control or not batch.record_count or this_round.is_hidden(batch):
            continue
        if batch.delete_horizon_ms is not None:
            yield batch.delete_horizon_ms
        elif verdict.is_marker_of_empty_transaction:
            yield 0


def described(numbers: Mapping[str, Any]) -> str:
    """Describe the numbers of one partition, for the log."""
    removed = [
        f"{number(count)} {what}" for name, what in _REMOVED.items() if (count := numbers.get(name))
    ]
    return (
        f"removing {', '.join(removed) or 'no record'}; "
        f"{size(numbers['bytes_before'])} become {size(numbers['bytes_after'])}; "
        f"{number(numbers['tombstones_kept'])} tombstones retained, next delete horizon "
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
        """Return the batches at or above the base offset of the first segment."""
        return headers.where(headers.column("base_offset") >= self.first_segment_offset)


class Unit(NamedTuple):
    """One segment's share of the round."""

    records: SegmentFiles | None  # None if the records table has no file of the segment
    batches: SegmentFiles
    around: TransactionsAround
    has_transactions: bool

    @property
    def place(self) -> tuple[int, int]:
        """The segment's partition and base offset."""
        return self.batches.partition, self.batches.segment


class Known(NamedTuple):
    """The input that the work on all segments shares."""

    rules: Mapping[int, PartitionRules]  # by partition
    units: Mapping[tuple[int, int], Unit]  # by partition and segment
    future_limit_ms: int
    keeps_offsets: bool = False  # whether the effect lists the removed offsets


class _Cleaned(NamedTuple):
    """The round's effect on the records of a segment."""

    first_base_offset: int  # of the first batch that has records
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
    """Judge a segment's records. Return None if all are below the log start offset.

    `verdicts` has the data batches whose verdict is not ORDINARY, by base offset.
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
    """Read the columns of a segment's records that a round needs."""
    read = read_segment(records, COLUMNS)
    is_timed = read.table["timestamp"].null_count == 0
    return read if is_timed else read_segment(records, COLUMNS_OF_UNTIMED)


def find_dirty_keys(known: Shared[Known], records: SegmentFiles) -> pa.Table:
    """Return each key of a dirty segment with the offset of its last record."""
    rules = known.value.rules[records.partition]
    unit = known.value.units[records.partition, records.segment]
    discarded = _aborted(rules, unit) if unit.has_transactions else []
    rows = read_segment(records, ("offset", "batch", "key")).table
    return dirty_keys(rows, discarded, rules.this_round.first_dirty_offset)


def _aborted(rules: PartitionRules, unit: Unit) -> list[int]:
    """Return the base offsets of a segment's aborted data batches that the round covers."""
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
    """Run the round over one segment, given by its record files, or its batch files without any.

    On NotCoveredError, return an effect that refuses the whole partition. Kafka's cleaner also
    marks a partition that it cannot clean and cleans the other partitions.
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
    """Return the removed records, and the offsets of the removed markers too."""
    planned = PlannedRows() if cleaned is None or cleaned.planned is None else cleaned.planned
    markers = BitMap64(batch.last_offset for batch, left in after if _loses_marker(batch, left))
    return planned._replace(offsets=planned.offsets | markers)


def _loses_marker(batch: Batch, left: Batch | None) -> bool:
    """Return whether the round removes the transaction marker of a batch."""
    is_marker = batch.is_control and batch.record_count > 0
    return is_marker and (left is None or left.record_count == 0)


def _headers_after(
    judged: Judged, cleaned: _Cleaned | None, this_round: Round
) -> Iterator[tuple[Batch, Batch | None]]:
    """Yield each batch that is judged without its records, before and after the round.

    These are control batches, empty batches, and a batch that straddles the log start offset but
    has no record at or above it.
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
    """Count the round's removals from the segment, with the bytes of hidden data.

    All records are in the cleaned batches: other data batches have none above the log start.
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
    """Count the markers that the round retains only because a replica lacks them."""
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
    """Return the segment's batch rows that other segments need, as they are after the round."""
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
    """Return the batches after the changes, without the removed ones."""
    return BatchHeaders(after_changes(headers.table, changes)) if len(headers) else headers


# The rules that remove records, as a partition's numbers name them.
_RULES = ("superseded", "aborted", "keyless", "tombstones_removed")
_REMOVING = (*_RULES, "markers_removed")
WAITS_FOR_HORIZON = "a tombstone is retained until its delete horizon"
WAITS_FOR_REPLICA = "a tombstone is due, but a replica does not have it yet"


def summaries_of(effect: RoundEffect, *, shows_keys: bool) -> dict[int, PartitionSummary]:
    """Return the summary of each partition of the round.

    A partition of an adopted table has a summary only if the round removes records from it.
    """
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
    """Return the summary of a partition that gets no round, with the reason if there is one."""
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
