"""Rewrite the batches of one segment after a round has judged their records.

`ebbtide.kafka.compaction.rewrite` rewrites one batch. It is called for the few special batches.
Ordinary batches are rewritten here, all together, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from ebbtide.columns.headers import BatchHeaders
from ebbtide.columns.live_records import Records, record_bytes
from ebbtide.kafka.batch_header import HEADER_BYTES, Batch
from ebbtide.kafka.compaction import (
    Retention,
    Round,
    Survivors,
    Verdict,
    compressed_bytes,
    rewrite,
    rewritten_bytes,
)
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
)

# In a removed row, the columns after `is_removed` have no meaning.
CHANGES = pa.schema(
    [
        ("base_offset", pa.int64()),
        ("is_removed", pa.bool_()),
        ("max_event_time_ms", pa.int64()),
        ("last_offset", pa.int64()),
        ("magic", pa.int32()),
        ("attributes", pa.int32()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("record_count", pa.int32()),
        ("size_bytes", pa.int32()),
        ("header_base_offset", pa.int64()),
        ("producer_timestamp_ms", pa.int64()),
    ]
)
# The columns of a batch that a round may change, besides its event time. Its CRC becomes null.
CHANGED = tuple(CHANGES.names[3:])
_PLACE = pa.schema([("partition", pa.int32()), ("segment", pa.int64())])

Place = tuple[int, int]  # partition and segment


def changes_of(changes: Sequence[tuple[Batch, Batch | None, int]]) -> pa.Table:
    """Return batches' changes as CHANGES, from (before, after or None, max event time in ms)."""
    left = [after or before for before, after, _ in changes]
    return pa.table(
        {
            "base_offset": [before.base_offset for before, _, _ in changes],
            "is_removed": [after is None for _, after, _ in changes],
            "max_event_time_ms": [newest for _, _, newest in changes],
            **{name: [getattr(batch, name) for batch in left] for name in CHANGED},
        },
        schema=CHANGES,
    )


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes to rows of a batches table, in any of its segments.

    A round may remove millions of rows, and the driver holds all of them. So only their base
    offsets are kept.
    """

    removed: Mapping[Place, BitMap64]
    changed: pa.Table  # `partition` and `segment` of the rows, then CHANGES

    @classmethod
    def of(cls, partition: int, segment: int, changes: pa.Table) -> RowChanges:
        """Return the changes of a segment's rows, from CHANGES."""
        is_removed = changes["is_removed"]
        removed = BitMap64(changes.filter(is_removed)["base_offset"].to_numpy())
        changed = changes.filter(pc.invert(is_removed))
        places = [partition] * changed.num_rows, [segment] * changed.num_rows
        columns = [
            pa.array(numbers, field.type) for numbers, field in zip(places, _PLACE, strict=True)
        ]
        return cls(
            {(partition, segment): removed} if removed else {},
            pa.table([*columns, *changed.columns], names=[*_PLACE.names, *CHANGES.names]),
        )

    @classmethod
    def together(cls, parts: Iterable[RowChanges]) -> RowChanges:
        """Join the changes; no two may be of the same row."""
        removed, changed = dict[Place, BitMap64](), [_NOTHING.changed]
        for part in parts:
            for place, bases in part.removed.items():
                removed[place] = removed[place] | bases if place in removed else bases
            changed.append(part.changed)
        return cls(removed, pa.concat_tables(changed).combine_chunks())

    @property
    def count(self) -> int:
        """The number of changed and removed rows."""
        return int(self.changed.num_rows) + sum(map(len, self.removed.values()))

    def without(self, base_offsets: BitMap64) -> RowChanges:
        """Return the changes without those of these rows; all rows are of one partition."""
        removed = {place: bases - base_offsets for place, bases in self.removed.items()}
        changed_bases = self.changed["base_offset"].to_numpy()
        stays = ~np.isin(changed_bases, np.array(list(base_offsets), np.int64))
        return RowChanges(
            {place: bases for place, bases in removed.items() if bases},
            self.changed.filter(pa.array(stays)),
        )

    def base_offsets(self) -> BitMap64:
        """Return the base offsets of changed and removed rows; all rows are of one partition."""
        return BitMap64.union(
            BitMap64(self.changed["base_offset"].to_numpy()), *self.removed.values()
        )


_NOTHING = RowChanges.of(0, 0, CHANGES.empty_table())


def no_changes() -> RowChanges:
    """Return an empty set of changes."""
    return _NOTHING


def with_changes(rows: pa.Table, is_changed: Bools, changes: pa.Table) -> pa.Table:
    """Return the rows with their changes, in the same order; `changes` may not remove any."""
    mask = pa.array(is_changed)
    for name in (*CHANGED, "max_event_time_ms"):
        changed = changes[name].combine_chunks().cast(rows[name].type)
        column = pc.replace_with_mask(rows[name], mask, changed)
        rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
    return rows


def after_changes(rows: pa.Table, changes: pa.Table) -> pa.Table:
    """Return the retained rows with their changes; both arguments are in offset order."""
    bases = rows["base_offset"].to_numpy()
    removes = changes["is_removed"].to_numpy()
    removed = changes["base_offset"].to_numpy()[removes]
    stays = ~np.isin(bases, removed)
    changes = changes.filter(pa.array(~removes & np.isin(changes["base_offset"], bases)))
    rows, bases = rows.filter(pa.array(stays)), bases[stays]
    return with_changes(rows.combine_chunks(), np.isin(bases, changes["base_offset"]), changes)


ORDINARY = Verdict(False, False, Retention.DELETE_EMPTY)


class Left(NamedTuple):
    """The retained records of batches, one row per batch; times in ms since the epoch."""

    survivors: Int64s
    hidden: Int64s  # below the log start offset: the table no longer has these records
    tombstones: Int64s
    first_offsets: Int64s
    last_offsets: Int64s
    first_timestamps_ms: Int64s
    max_timestamps_ms: Int64s
    max_event_times_ms: Int64s

    @classmethod
    def of(cls, records: Records, headers: BatchHeaders, stays: Bools) -> Left:
        """Count the retained records of these batches: those for which `stays` is true."""
        numbers = np.arange(len(stays))
        firsts = np.minimum.reduceat(np.where(stays, numbers, len(stays) - 1), records.starts)
        lasts = np.maximum.reduceat(np.where(stays, numbers, 0), records.starts)
        return cls(
            records.sums(stays),
            headers.column("record_count") - records.counts,
            records.sums(stays & records.is_tombstone),
            records.offsets[firsts],
            records.offsets[lasts],
            records.timestamps_ms[firsts],
            records.largest(np.where(stays, records.timestamps_ms, NO_TIMESTAMP)),
            records.largest(np.where(stays, records.event_times_ms, NO_TIMESTAMP)),
        )

    def at(self, rows: Int64s) -> Left:
        """Return the rows at these row numbers."""
        return Left(*(column[rows] for column in self))

    def as_values(self, headers: Sequence[Batch], this_round: Round) -> list[Survivors]:
        """Return the retained records of each batch, without their bytes."""
        columns = (
            self.survivors,
            self.tombstones > 0,
            self.first_timestamps_ms,
            self.max_timestamps_ms,
            self.hidden,
            self.first_offsets,
            self.last_offsets,
        )
        survivors = []
        rows = zip(headers, *(column.tolist() for column in columns), strict=True)
        for header, count, has_tombstone, first_ms, max_ms, hidden, first, last in rows:
            hidden = hidden if this_round.is_astride(header) else 0
            if count:
                left = Survivors(count, has_tombstone, first_ms, max_ms, 0, 0, hidden, first, last)
            else:
                left = Survivors(0, hidden=hidden)
            survivors.append(left)
        return survivors


class Rewriting(NamedTuple):
    """A round's changes to the rows of some batches."""

    changes: pa.Table  # CHANGES, in offset order
    records_removed: int
    bytes_removed: int
    next_horizon_ms: int | None  # the first delete horizon of a batch with a tombstone

    @property
    def removed(self) -> Int64s:
        """Base offsets of the removed batches."""
        return np.asarray(self.changes.filter(self.changes["is_removed"])["base_offset"], np.int64)

    @classmethod
    def of_all(cls, parts: Sequence[Rewriting]) -> Rewriting:
        """Join the parts, given in offset order."""
        waits = [part.next_horizon_ms for part in parts if part.next_horizon_ms is not None]
        return cls(
            pa.concat_tables(part.changes for part in parts),
            sum(part.records_removed for part in parts),
            sum(part.bytes_removed for part in parts),
            min(waits, default=None),
        )


def rewrite_batches(
    records: Records,
    headers: BatchHeaders,
    verdicts: Mapping[int, Verdict],
    stays: Bools,
    this_round: Round,
) -> Rewriting:
    """Rewrite the batches of these records; those with true `stays` are retained.

    `headers` are in the order of `records.bases`. `verdicts` are those that are not ORDINARY.
    """
    left = Left.of(records, headers, stays)
    waits = left.tombstones > 0
    is_special = np.isin(records.bases, list(verdicts)) | headers.is_legacy
    is_special |= headers.is_astride(this_round.log_start_offset)
    is_touched = (left.survivors < records.counts) | (waits & ~headers.has_bit(DELETE_HORIZON))
    is_touched |= headers.is_legacy

    ordinary, special = (np.flatnonzero(is_touched & mask) for mask in (~is_special, is_special))
    plain = headers.at(ordinary)
    columns = _ordinary(plain, left.at(ordinary), this_round)
    one_by_one = _special(headers.at(special), left.at(special), verdicts, this_round)

    # The records' sizes depend on the base offset and base timestamp of their batch.
    bases, bases_ms = headers.written_bases, headers.column("base_timestamp_ms")
    old_bytes = np.zeros(len(headers), np.int64)
    if special.size or headers.has_bit(COMPRESSION_MASK).any():
        old_bytes = records.sums(record_bytes(records, bases, bases_ms))
    bases_ms[ordinary] = columns["base_timestamp_ms"]
    for row, (_, _, batch) in zip(special, one_by_one, strict=True):
        if batch is not None:
            bases[row], bases_ms[row] = batch.written_base_offset, batch.base_timestamp_ms
    new_bytes = records.sums(record_bytes(records, bases, bases_ms) * stays)

    columns["size_bytes"] = _sizes(plain, new_bytes[ordinary], old_bytes[ordinary])
    of_special = (column[special] for column in (left.max_event_times_ms, new_bytes, old_bytes))
    changes = pa.concat_tables(
        [pa.table(columns, schema=CHANGES), _special_changes(one_by_one, *of_special)]
    ).sort_by("base_offset")
    return Rewriting(
        changes,
        int((records.counts - left.survivors).sum()),
        _bytes_removed(headers, changes),
        int(bases_ms[waits].min()) if waits.any() else None,
    )


def _ordinary(headers: BatchHeaders, left: Left, this_round: Round) -> dict[str, Any]:
    """Rewrite the ordinary batches that a round changes, except their sizes."""
    has_horizon, max_ms = headers.has_bit(DELETE_HORIZON), headers.column("max_timestamp_ms")
    sets_horizon = (left.tombstones > 0) & ~has_horizon
    bases_ms = np.where(has_horizon, headers.column("base_timestamp_ms"), left.first_timestamps_ms)
    bases_ms[sets_horizon] = this_round.horizon_ms
    newest_ms = np.where(headers.has_bit(LOG_APPEND_TIME), max_ms, left.max_timestamps_ms)
    is_remembered = (newest_ms != max_ms) & (headers.column("producer_id") != NO_PRODUCER_ID)
    known_ms = headers.table["producer_timestamp_ms"]
    remembered_ms = pc.coalesce(known_ms, pa.array(max_ms))
    return {
        "base_offset": headers.table["base_offset"],
        "is_removed": left.survivors == 0,
        "max_event_time_ms": left.max_event_times_ms,
        "last_offset": headers.table["last_offset"],
        "magic": headers.table["magic"],
        "attributes": headers.column("attributes") | np.where(sets_horizon, DELETE_HORIZON, 0),
        "base_timestamp_ms": bases_ms,
        "max_timestamp_ms": newest_ms,
        "record_count": left.survivors,
        "header_base_offset": headers.table["header_base_offset"],
        "producer_timestamp_ms": pc.if_else(pa.array(is_remembered), remembered_ms, known_ms),
    }


def _sizes(headers: BatchHeaders, new_bytes: Int64s, old_bytes: Int64s) -> Int64s:
    """Return the sizes of ordinary batches after their rewrite; see `rewritten_bytes`."""
    sizes = HEADER_BYTES + new_bytes
    rows = np.flatnonzero(headers.has_bit(COMPRESSION_MASK))
    of_each = (headers.column("size_bytes") - HEADER_BYTES, old_bytes, new_bytes)
    compressed = zip(*(column[rows].tolist() for column in of_each), strict=True)
    sizes[rows] = [HEADER_BYTES + compressed_bytes(*of_batch) for of_batch in compressed]
    return sizes


def _special(
    headers: BatchHeaders, left: Left, verdicts: Mapping[int, Verdict], this_round: Round
) -> list[tuple[Batch, Survivors, Batch | None]]:
    """Rewrite batches one by one; return each as (before, survivors without bytes, after)."""
    batches = headers.batches()
    return [
        (
            batch,
            survivors,
            rewrite(batch, verdicts.get(batch.base_offset, ORDINARY), survivors, this_round),
        )
        for batch, survivors in zip(batches, left.as_values(batches, this_round), strict=True)
    ]


def _special_changes(
    one_by_one: Sequence[tuple[Batch, Survivors, Batch | None]],
    newest_ms: Int64s,
    new_bytes: Int64s,
    old_bytes: Int64s,
) -> pa.Table:
    """Return the changed batches as CHANGES; sizes are from the records' bytes before and after."""
    changes = []
    columns = (newest_ms.tolist(), new_bytes.tolist(), old_bytes.tolist())
    for (before, survivors, after), event_ms, new, old in zip(one_by_one, *columns, strict=True):
        if after is not None and after.record_count and after != before:
            survivors = survivors._replace(records_bytes=new, records_bytes_before=old)
            after = after._replace(size_bytes=rewritten_bytes(before, survivors))
        if after != before:
            changes.append((before, after, event_ms))
    return changes_of(changes)


def hidden_changes(headers: BatchHeaders, this_round: Round) -> tuple[pa.Table, int]:
    """Return CHANGES of the data below the log start offset, and the bytes that it takes.

    `rewrite` does the same for one batch, and is the only one to change batches without records.
    """
    if this_round.is_idle:
        return CHANGES.empty_table(), 0
    sizes = headers.column("size_bytes")
    is_hidden = headers.column("last_offset") < this_round.log_start_offset
    is_hidden &= headers.column("base_offset") < this_round.first_uncleanable_offset
    is_hidden &= ~headers.is_control & (headers.column("record_count") > 0) & (sizes > 0)
    hidden = headers.where(is_hidden).table
    zeros = np.zeros(hidden.num_rows, np.int64)
    changed = {"is_removed": pa.array(zeros.astype(np.bool_)), "size_bytes": pa.array(zeros)}
    columns = {name: changed[name] if name in changed else hidden[name] for name in CHANGES.names}
    table = pa.table(columns)
    return table.cast(CHANGES), int(sizes[is_hidden].sum())


def _bytes_removed(headers: BatchHeaders, changes: pa.Table) -> int:
    """Return the number of bytes by which the changes shrink the log."""
    rows = np.searchsorted(headers.column("base_offset"), changes["base_offset"])
    left = changes["size_bytes"].to_numpy()[~changes["is_removed"].to_numpy()]
    return int(headers.column("size_bytes")[rows].sum() - left.sum())


# The next round decides whether an empty batch is removed.
_KEEPS_EMPTY = Verdict(False, False, Retention.RETAIN_EMPTY)


def fewer_than_told(
    rows: pa.Table | None, headers: BatchHeaders, this_round: Round, future_limit_ms: int
) -> Iterator[tuple[Batch, Batch | None, int]]:
    """Yield (before, after, max event time in ms) of each batch that lost records.

    `rows` are all records of these data batches, in offset order, or None if none is left.
    """
    counts = np.zeros(len(headers), np.int64)
    survivors: dict[int, tuple[Survivors, int]] = {}
    if rows is not None and rows.num_rows:
        records = Records.of(rows, future_limit_ms)
        held = headers.where(np.isin(headers.column("base_offset"), records.bases))
        counts[np.isin(headers.column("base_offset"), records.bases)] = records.counts
        survivors = _survivors(records, held)
    lost = (headers.column("record_count") > counts) & ~headers.is_control
    lost &= ~headers.is_astride(this_round.log_start_offset)
    for batch in headers.where(np.asarray(lost, np.bool_)).batches():
        left, newest_ms = survivors.get(batch.base_offset, (Survivors(0), -1))
        if left.records:  # the size of the removed records is not known: assume the mean size
            share = batch.record_count / left.records
            left = left._replace(records_bytes_before=round(left.records_bytes * share))
        yield batch, rewrite(batch, _KEEPS_EMPTY, left, this_round), newest_ms


def _survivors(records: Records, headers: BatchHeaders) -> dict[int, tuple[Survivors, int]]:
    """Return each batch's retained records and its newest event time in ms, by base offset."""
    left = Left.of(records, headers, np.ones(len(records.offsets), np.bool_))
    bases_ms = headers.column("base_timestamp_ms")
    sizes = records.sums(record_bytes(records, headers.written_bases, bases_ms))
    columns = (
        records.bases,
        left.survivors,
        left.first_timestamps_ms,
        left.max_timestamps_ms,
        sizes,
        left.first_offsets,
        left.last_offsets,
        left.max_event_times_ms,
    )
    return {
        base: (Survivors(count, False, first_ms, max_ms, size, 0, 0, first, last), event_ms)
        for base, count, first_ms, max_ms, size, first, last, event_ms in zip(
            *(column.tolist() for column in columns), strict=True
        )
    }
