"""Rewrite the batches of one segment after a round has judged their records.

`ebbtide.log.compaction.rewrite` rewrites one batch. It is called for the few special batches.
Ordinary batches are rewritten here, all at once, to the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.columns.header_columns import BatchHeaders
from ebbtide.columns.row_changes import CHANGES, changes_of
from ebbtide.columns.segment_records import Records, record_bytes
from ebbtide.log.batch_header import HEADER_BYTES, Batch
from ebbtide.log.compaction import (
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

ORDINARY = Verdict(False, False, Retention.DELETE_EMPTY)


class Left(NamedTuple):
    """The surviving records of some batches, a row a batch; times in ms since the epoch."""

    survivors: Int64s
    hidden: Int64s  # below the log start offset, where the table holds no record any more
    tombstones: Int64s
    first_offsets: Int64s
    last_offsets: Int64s
    first_timestamps_ms: Int64s
    max_timestamps_ms: Int64s
    max_event_times_ms: Int64s

    @classmethod
    def of(cls, records: Records, headers: BatchHeaders, stays: Bools) -> Left:
        """Count what stays of the batches of these records, where `stays` is true."""
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
        """Return what stays of each of these batches, except its bytes."""
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
    next_horizon_ms: int | None  # of those that still hold a tombstone

    @property
    def removed(self) -> Int64s:
        """Base offsets of the batches that go."""
        return np.asarray(self.changes.filter(self.changes["is_removed"])["base_offset"], np.int64)

    @classmethod
    def of_all(cls, parts: Sequence[Rewriting]) -> Rewriting:
        """Return the parts, in offset order, as one."""
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
    """Rewrite the batches of these records; those marked in `stays` survive.

    `headers` are in the order of `records.bases`; `verdicts` are those that are not ORDINARY.
    """
    left = Left.of(records, headers, stays)
    waits = left.tombstones > 0
    is_special = np.isin(records.bases, list(verdicts)) | headers.is_legacy
    is_special |= headers.is_astride(this_round.log_start_offset)
    is_touched = (left.survivors < records.counts) | (waits & ~headers.has_bit(DELETE_HORIZON))
    is_touched |= headers.is_legacy

    ordinary, special = (np.flatnonzero(is_touched & of) for of in (~is_special, is_special))
    plain = headers.at(ordinary)
    columns = _ordinary(plain, left.at(ordinary), this_round)
    one_by_one = _special(headers.at(special), left.at(special), verdicts, this_round)

    # Where the records end depends on what they are written against.
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
    """Rewrite the ordinary batches that a round touches, except their sizes."""
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
    """Return the sizes of ordinary batches once they are written anew; see `rewritten_bytes`."""
    sizes = HEADER_BYTES + new_bytes
    rows = np.flatnonzero(headers.has_bit(COMPRESSION_MASK))
    of_each = (headers.column("size_bytes") - HEADER_BYTES, old_bytes, new_bytes)
    compressed = zip(*(column[rows].tolist() for column in of_each), strict=True)
    sizes[rows] = [HEADER_BYTES + compressed_bytes(*of_batch) for of_batch in compressed]
    return sizes


def _special(
    headers: BatchHeaders, left: Left, verdicts: Mapping[int, Verdict], this_round: Round
) -> list[tuple[Batch, Survivors, Batch | None]]:
    """Rewrite batches one by one: return each before, its survivors without bytes, and after."""
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
    """Return the rows of changed batches, with sizes by their records' bytes before and after."""
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
    """Return CHANGES of the data that the log start offset hides, and the bytes that they take.

    `rewrite` does the same to one batch, and alone changes batches without records.
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
    """Return by how many bytes the changes reduce the log."""
    rows = np.searchsorted(headers.column("base_offset"), changes["base_offset"])
    left = changes["size_bytes"].to_numpy()[~changes["is_removed"].to_numpy()]
    return int(headers.column("size_bytes")[rows].sum() - left.sum())
