"""A partition's batch headers, reduced to what decisions about the whole log need.

Each physical segment's headers are reduced on their own, so that no process holds a whole log's
headers. The rows that are left of them grow with the segments and their producers, not with the
batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import IntFlag, auto
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.columns.header_columns import (
    COLUMNS,
    BatchHeaders,
    open_transactions,
    segment_totals,
    together,
)
from ebbtide.columns.transaction_rows import outline_transactions
from ebbtide.log.logical_segments import Segment, SegmentStart
from ebbtide.log.transactions import OpenTransaction, visible_stable_offset
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import DELETE_HORIZON, NO_TIMESTAMP

_TYPES = dict.fromkeys((*COLUMNS, "role"), pa.int64()) | {"control_type": pa.string()}
_NONE = BatchHeaders(pa.table({name: pa.array([], of) for name, of in _TYPES.items()}))


class LogOutline(NamedTuple):
    """A log's start and segments, known before its headers are read.

    `segments` are the logical ones. Horizons are checked against `now_ms`, if at all; they do not
    count from `held_back_from` on.
    """

    log_start_offset: int
    segments: Sequence[SegmentStart]
    now_ms: int = NO_TIMESTAMP
    held_back_from: int = MAX_OFFSET


class Role(IntFlag):
    """The reason why a batch's header is kept."""

    TRANSACTIONS = auto()  # see `outline_transactions`
    PRODUCERS = auto()  # each producer's last record can be told from these
    UNDECIDED = auto()  # data before the first segment in transactions that are open there
    DUE = auto()  # one data batch of each segment that has such with a horizon reached
    VISIBLE = auto()  # the first one that is not below the log start offset


class LogHeaders(NamedTuple):
    """Logical segments with what their batches add up to, and a few batches in offset order.

    `kept` has a column `role`, the sum of each batch's roles. `max_event_time_ms` is that of all
    batches, those before the first segment too; -1 for none.
    """

    segments: Sequence[Segment]
    kept: BatchHeaders
    max_event_time_ms: int

    @classmethod
    def of(cls, headers: BatchHeaders, outline: LogOutline) -> LogHeaders:
        """Return one physical segment's headers, and only the logical segments that it lies in."""
        bases = headers.column("base_offset")
        touched = _touched(outline.segments, int(bases[0]), int(bases[-1]))
        roles = _roles(headers, [base for base, _ in touched], outline)
        rows = np.flatnonzero(roles)
        kept = headers.at(rows).table.append_column("role", pa.array(roles[rows]))
        newest_ms = int(headers.column("max_event_time_ms").max(initial=-1))
        totals = segment_totals(headers, touched, outline.log_start_offset)
        return cls(totals, BatchHeaders(kept), newest_ms)

    @classmethod
    def of_some(cls, parts: Sequence[LogHeaders]) -> LogHeaders:
        """Return neighbouring physical segments, in offset order, as one."""
        sums: dict[int, Segment] = {}
        for part in parts:
            for segment in part.segments:
                before = sums.get(segment.base_offset)
                sums[segment.base_offset] = segment if before is None else before.with_more(segment)
        return cls(
            list(sums.values()),
            together([part.kept for part in parts] or [_NONE]),
            max((part.max_event_time_ms for part in parts), default=-1),
        )

    @classmethod
    def of_all(cls, parts: Sequence[LogHeaders], outline: LogOutline) -> LogHeaders:
        """Return a log's physical segments, in offset order, as one, with all logical segments."""
        all_parts = cls.of_some(parts)
        found = {segment.base_offset: segment for segment in all_parts.segments}
        segments = [found.get(base, Segment(base, ms)) for base, ms in outline.segments]
        return all_parts._replace(segments=segments)

    def in_role(self, role: Role) -> BatchHeaders:
        """Return the batches that are kept for this."""
        return self.kept.where(np.asarray(self.kept.column("role") & role, np.bool_))

    @property
    def transactions(self) -> BatchHeaders:
        """The outline of the log's transactions."""
        return self.in_role(Role.TRANSACTIONS)

    @property
    def producers(self) -> BatchHeaders:
        """The batches from which each producer's last record can be told."""
        return self.in_role(Role.PRODUCERS)

    @property
    def oldest_open_transaction(self) -> OpenTransaction | None:
        """The open transaction that begins first, or None if all are decided."""
        first_offsets = open_transactions(self.transactions).first_offsets
        if not first_offsets:
            return None
        producer_id, first_offset = min(first_offsets.items(), key=itemgetter(1))
        begins = self.kept.column("base_offset") == first_offset
        since_ms = int(self.kept.first(begins).column("max_timestamp_ms")[0])
        return OpenTransaction(producer_id, first_offset, since_ms)

    def stable_offset(self, log_start_offset: int, log_end_offset: int) -> int:
        """Return the last stable offset: what lies below it is decided."""
        visible = self.in_role(Role.VISIBLE).written_bases
        return visible_stable_offset(
            open_transactions(self.transactions).last_stable_offset(log_end_offset),
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            first_batch_offset=int(visible[0]) if len(visible) else None,
        )


def _roles(headers: BatchHeaders, starts: Sequence[int], outline: LogOutline) -> Int64s:
    """Return the sum of each batch's roles; the logical segments begin at `starts`.

    Segments are cut too where markers are held back from, so that each part holds only such or
    none.
    """
    bases, start = headers.column("base_offset"), outline.log_start_offset
    roles = np.zeros(len(headers), np.int64)
    due = is_due(headers, outline)
    cuts = np.searchsorted(bases, [*starts, outline.held_back_from])
    for first, end in pairwise(np.unique([0, *cuts, len(bases)]).tolist()):
        part = BatchHeaders(headers.table.slice(first, end - first))
        roles[first + outline_transactions(part, start)] |= Role.TRANSACTIONS
        roles[first + np.flatnonzero(due[first:end])[:1]] |= Role.DUE
    roles[_last_of_producers(headers)] |= Role.PRODUCERS
    roles[_undecided(headers, outline.segments[0].base_offset)] |= Role.UNDECIDED
    roles[np.flatnonzero(headers.column("last_offset") >= start)[:1]] |= Role.VISIBLE
    return roles


def _last_of_producers(headers: BatchHeaders) -> Int64s:
    """Return the rows of at most four batches of each producer that give its last record.

    That is its last data and, of the markers after it, the first, the last, and the first with
    another epoch than the batch before it has.
    """
    may_be = headers.may_be_last_records & ~headers.were_emptied_at_source
    rows = np.flatnonzero(may_be)
    producers = headers.column("producer_id")[rows]
    order = np.argsort(producers, kind="stable")
    rows, producers = rows[order], producers[order]
    epochs = headers.column("producer_epoch")[rows]
    _, firsts, counts = np.unique(producers, return_index=True, return_counts=True)
    is_other_epoch = np.append(
        False, (epochs[1:] != epochs[:-1]) & (producers[1:] == producers[:-1])
    )
    changes = np.flatnonzero(is_other_epoch)
    changes = changes[np.unique(producers[changes], return_index=True)[1]]
    seconds = firsts[counts > 1] + 1
    kept: Int64s = rows[np.concatenate([firsts, seconds, changes, firsts + counts - 1])]
    return kept


def is_due(headers: BatchHeaders, outline: LogOutline) -> Bools:
    """Return which data batches have a horizon that is reached, for their tombstones."""
    lasts = headers.column("last_offset")
    is_reached = headers.column("base_timestamp_ms") <= outline.now_ms
    is_reached &= headers.has_bit(DELETE_HORIZON) & ~headers.is_control
    is_reached &= (lasts >= outline.log_start_offset) & (lasts < outline.held_back_from)
    return np.asarray(is_reached, np.bool_)


def _touched(segments: Sequence[SegmentStart], first: int, last: int) -> Sequence[SegmentStart]:
    """Return the logical segments that hold the offsets from `first` to `last`."""
    start = max(bisect_right(segments, first, key=attrgetter("base_offset")) - 1, 0)
    return segments[start : bisect_right(segments, last, key=attrgetter("base_offset"))]


def _undecided(headers: BatchHeaders, first_segment_offset: int) -> Int64s:
    """Return the rows of the data before the first segment that no marker before it decides."""
    count = int(np.searchsorted(headers.column("base_offset"), first_segment_offset))
    before, _ = headers.split(count)
    rows = np.flatnonzero(before.is_in_transaction)
    before = before.at(rows)
    producers, bases = before.column("producer_id"), before.column("base_offset")
    is_end = before.is_control & ~before.were_emptied_at_source
    ids, numbers = np.unique(producers, return_inverse=True)
    ended = np.full(len(ids), -1, np.int64)
    np.maximum.at(ended, numbers[is_end], bases[is_end])
    return rows[~before.is_control & (bases > ended[numbers])]
