"""Follow the transactions of a log's batch headers, all producers together.

`ebbtide.kafka.transactions.TransactionReader` reads batch by batch, with the same result. This
relies on a marker's `txn_first_offset`: no other marker of the producer is between the two.
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
import pyarrow.compute as pc

from ebbtide.columns.headers import (
    COLUMNS,
    NOTHING,
    BatchHeaders,
    headers_of,
    open_transactions,
    segment_totals,
    together,
)
from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.kafka.transactions import OpenTransaction, TransactionsAround, visible_stable_offset
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, NO_TIMESTAMP, TRANSACTIONAL
from ebbtide.state.logical_segments import Segment, SegmentStart


def read_transactions(
    headers: BatchHeaders, log_start_offset: int, around: TransactionsAround
) -> Bools:
    """Return whether each data batch is aborted, or each marker's transaction has no data left.

    `headers` are a part of a log, and `around` are the transactions that it shares with the rest.
    """
    is_mine = headers.is_in_transaction
    is_decided = np.zeros(len(headers), np.bool_)
    if is_mine.any():
        mine = BatchHeaders(headers.where(is_mine).table.select(list(Batch._fields)))
        before, after = _rows_around(around)
        rows = _Rows.of(together([before, mine, after]), log_start_offset)
        of_all = np.zeros(len(rows.number), np.bool_)
        of_all[rows.number] = rows.is_aborted | rows.is_outlived
        is_decided[is_mine] = of_all[len(before) : len(before) + len(mine)]
    return is_decided


def _rows_around(around: TransactionsAround) -> tuple[BatchHeaders, BatchHeaders]:
    """Return made-up batches: a producer's data before the part, and markers after it."""
    data = Batch(-1, -1, TRANSACTIONAL, record_count=1)
    before = [data._replace(producer_id=producer) for producer in around.committing]
    # This data is aborted, whatever first offset its marker has.
    aborted = data._replace(last_offset=MAX_OFFSET - 1)
    before += [aborted._replace(producer_id=producer) for producer in around.aborting]
    marker = Batch(
        MAX_OFFSET, MAX_OFFSET, TRANSACTIONAL | CONTROL, control_type=ABORT, record_count=1
    )
    after = [
        marker._replace(
            producer_id=transaction.producer_id, txn_first_offset=transaction.first_offset
        )
        for transaction in around.aborted_later
    ]
    return headers_of(before), headers_of(after)


def outline_transactions(headers: BatchHeaders, log_start_offset: int) -> Int64s:
    """Return the rows of a few batches per producer that represent a part of a log.

    The outlines of all parts have the same open transactions as the log, and share the same
    transactions with any of the parts. A marker in them has data before it if and only if it has in
    the log. If the part has markers without data, one of them is included. If it has markers with a
    horizon, the one with the first horizon is. Markers below the log start offset do not count for
    this.
    """
    if not headers.is_in_transaction.any():
        return NOTHING
    rows = _Rows.of(headers, log_start_offset)
    return np.unique(rows.number[_outline(rows, log_start_offset)])


class _Rows(NamedTuple):
    """Transactional batches by producer, then offset, as columns.

    Row numbers are indexes of these columns. The number of rows means none, except in
    `newest_data`.
    """

    headers: BatchHeaders
    number: Int64s  # row in the headers from which these were taken
    producer: Int64s
    is_commit: Bools  # markers with a record only
    is_abort: Bools  # markers with a record only
    next_marker: Int64s  # row of the producer's next marker
    decided_by: Int64s  # of data: row of the marker for which it counts as data left
    newest_data: Int64s  # of a marker: row of the newest data that it decides, or -1
    is_aborted: Bools

    @classmethod
    def of(cls, headers: BatchHeaders, log_start_offset: int) -> _Rows:
        """Read the transactional batches of the headers."""
        number = np.flatnonzero(headers.is_in_transaction)
        number = number[np.argsort(headers.column("producer_id")[number], kind="stable")]
        mine = headers.at(number)
        producer, first = mine.column("producer_id"), mine.column("txn_first_offset")
        is_data, count = ~mine.is_control, len(number)
        is_commit, is_abort = _is_marker(mine, COMMIT), _is_marker(mine, ABORT)
        # As in `aborted_transactions`; the last element is for rows without a marker.
        is_indexed = is_abort & (first >= 0) & (mine.column("base_offset") >= log_start_offset)
        begins = np.append(np.where(is_indexed, first, MAX_OFFSET), MAX_OFFSET)
        next_marker = _next(is_commit | is_abort, producer)
        is_aborted = is_data & (mine.column("last_offset") >= begins[next_marker])
        decided_by = np.where(is_aborted, next_marker, _next(is_commit, producer))
        decided_by[~is_data] = count
        newest_data = np.full(count + 1, -1, np.int64)
        np.maximum.at(newest_data, decided_by[is_data], np.flatnonzero(is_data))
        return cls(
            *(mine, number, producer, is_commit, is_abort),
            *(next_marker, decided_by, newest_data[:-1], is_aborted),
        )

    @property
    def is_marker(self) -> Bools:
        """For each row, whether it is a marker that still has its record."""
        return np.asarray(self.is_commit | self.is_abort)

    @property
    def is_outlived(self) -> Bools:
        """For each row, whether it is an emptied marker, or a marker without data left."""
        is_emptied = self.headers.is_control & (self.headers.column("record_count") == 0)
        return np.asarray(is_emptied | (self.is_marker & (self.newest_data < 0)))

    def first(self, mask: Bools) -> Int64s:
        """Return each producer's first row whose mask is true."""
        rows = np.flatnonzero(mask)
        return rows[np.unique(self.producer[rows], return_index=True)[1]]

    def last(self, mask: Bools) -> Int64s:
        """Return each producer's last row whose mask is true."""
        rows = np.flatnonzero(mask)[::-1]
        return rows[np.unique(self.producer[rows], return_index=True)[1]]


def _is_marker(headers: BatchHeaders, control_type: str) -> Bools:
    """Return for each batch whether it is a control batch of this type with a record."""
    is_of_type = pc.equal(headers.table["control_type"], pa.scalar(control_type))
    is_full = headers.is_control & (headers.column("record_count") > 0)
    return np.asarray(is_of_type.fill_null(False).to_numpy() & is_full, np.bool_)


def _next(mask: Bools, producer: Int64s) -> Int64s:
    """Return for each row the first row with a true mask, from itself on, of the same producer.

    If there is none, it is the number of rows. Rows are ordered by producer.
    """
    count = len(mask)
    rows = np.where(mask, np.arange(count), count)
    rows = np.minimum.accumulate(rows[::-1])[::-1]
    is_of_other = np.append(producer, 0)[rows] != producer
    return np.where(is_of_other, count, rows)


def _outline(rows: _Rows, log_start_offset: int) -> Int64s:
    """Return the rows that represent all of them; see `outline_transactions`."""
    count, is_control = len(rows.number), rows.headers.is_control
    is_end = is_control & ~rows.headers.were_emptied_at_source
    ends = [rows.first(rows.is_marker), rows.first(rows.is_commit), rows.last(is_end)]
    ends.append(_waiting(rows, np.concatenate(ends), log_start_offset))
    data = rows.newest_data[np.concatenate(ends)]
    is_before_marker = ~is_control & (rows.next_marker < count)
    is_undecided = ~is_control & (rows.next_marker == count)
    is_open = ~is_control & (_next(is_end, rows.producer) == count)
    others = [
        rows.last(is_before_marker & (rows.decided_by == count)),  # data without a later commit
        rows.first(is_undecided),
        rows.last(is_undecided),
        rows.first(is_open),
    ]
    return np.concatenate([*ends, data[data >= 0], *others])


def _waiting(rows: _Rows, firsts: Int64s, log_start_offset: int) -> Int64s:
    """Return a marker without data left, and the marker with the first horizon.

    A producer's first markers, which are in `firsts`, may have data in an earlier part.
    """
    headers = rows.headers
    may_wait = headers.is_control & (headers.column("record_count") > 0)
    may_wait &= headers.column("last_offset") >= log_start_offset
    has_horizon = headers.has_bit(DELETE_HORIZON)
    is_outlived = may_wait & ~has_horizon & rows.is_outlived
    is_outlived[firsts] = False
    waiting = np.flatnonzero(may_wait & has_horizon)
    soonest = waiting[np.argsort(headers.column("base_timestamp_ms")[waiting])][:1]
    return np.concatenate([np.flatnonzero(is_outlived)[:1], soonest])


# A partition's batch headers, reduced to those that decisions about the whole log need.
#
# Each physical segment's headers are reduced on their own, so that no process holds a whole log's
# headers. The number of remaining rows grows with the segments and their producers, not with the
# batches.


_TYPES = dict.fromkeys((*COLUMNS, "role"), pa.int64()) | {"control_type": pa.string()}
_NO_HEADER = BatchHeaders(pa.table({name: pa.array([], kind) for name, kind in _TYPES.items()}))


class LogOutline(NamedTuple):
    """A log's start and logical segments, known before its headers are read."""

    log_start_offset: int
    segments: Sequence[SegmentStart]
    now_ms: int = NO_TIMESTAMP  # horizons are compared with it
    held_back_from: int = MAX_OFFSET  # horizons at or above this offset wait for replicas


class Role(IntFlag):
    """The reasons for which a batch's header is kept."""

    TRANSACTIONS = auto()  # see `outline_transactions`
    PRODUCERS = auto()  # they determine each producer's last record
    UNDECIDED = auto()  # data before the first segment, in transactions that are open there
    DUE = auto()  # per segment, one data batch whose horizon is due, if there is one
    VISIBLE = auto()  # the first batch that is not below the log start offset
    HELD_BACK = auto()  # per segment, one batch that is due but waits for replicas


class LogHeaders(NamedTuple):
    """Logical segments with the totals of their batches, and a few batches in offset order."""

    segments: Sequence[Segment]
    kept: BatchHeaders  # with a column `role`, the sum of each batch's roles
    max_event_time_ms: int  # of all batches, those before the first segment too; -1 for none

    @classmethod
    def of(cls, headers: BatchHeaders, outline: LogOutline) -> LogHeaders:
        """Reduce one physical segment's headers, with the logical segments that it overlaps."""
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
        """Join neighbouring physical segments, given in offset order."""
        sums: dict[int, Segment] = {}
        for part in parts:
            for segment in part.segments:
                before = sums.get(segment.base_offset)
                sums[segment.base_offset] = segment if before is None else before.with_more(segment)
        return cls(
            list(sums.values()),
            together([part.kept for part in parts] or [_NO_HEADER]),
            max((part.max_event_time_ms for part in parts), default=-1),
        )

    @classmethod
    def of_all(cls, parts: Sequence[LogHeaders], outline: LogOutline) -> LogHeaders:
        """Join a log's physical segments, given in offset order, with all its logical segments."""
        all_parts = cls.of_some(parts)
        found = {segment.base_offset: segment for segment in all_parts.segments}
        segments = [found.get(base, Segment(base, ms)) for base, ms in outline.segments]
        return all_parts._replace(segments=segments)

    def in_role(self, role: Role) -> BatchHeaders:
        """Return the batches that are kept for this role."""
        return self.kept.where(np.asarray(self.kept.column("role") & role, np.bool_))

    @property
    def transactions(self) -> BatchHeaders:
        """The outline of the log's transactions."""
        return self.in_role(Role.TRANSACTIONS)

    @property
    def producers(self) -> BatchHeaders:
        """The batches that determine each producer's last record."""
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
        """Return the last stable offset, below which all transactions are decided."""
        visible = self.in_role(Role.VISIBLE).written_bases
        return visible_stable_offset(
            open_transactions(self.transactions).last_stable_offset(log_end_offset),
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            first_batch_offset=int(visible[0]) if len(visible) else None,
        )


def _roles(headers: BatchHeaders, starts: Sequence[int], outline: LogOutline) -> Int64s:
    """Return the sum of each batch's roles; the logical segments begin at `starts`.

    Segments are also cut at `held_back_from`, so that all batches of a part wait for replicas, or
    none.
    """
    bases, start = headers.column("base_offset"), outline.log_start_offset
    roles = np.zeros(len(headers), np.int64)
    due, held_back = is_due(headers, outline), is_due_but_held_back(headers, outline)
    cuts = np.searchsorted(bases, [*starts, outline.held_back_from])
    for first, end in pairwise(np.unique([0, *cuts, len(bases)]).tolist()):
        part = BatchHeaders(headers.table.slice(first, end - first))
        roles[first + outline_transactions(part, start)] |= Role.TRANSACTIONS
        roles[first + np.flatnonzero(due[first:end])[:1]] |= Role.DUE
        roles[first + np.flatnonzero(held_back[first:end])[:1]] |= Role.HELD_BACK
    roles[_last_of_producers(headers)] |= Role.PRODUCERS
    roles[_undecided(headers, outline.segments[0].base_offset)] |= Role.UNDECIDED
    roles[np.flatnonzero(headers.column("last_offset") >= start)[:1]] |= Role.VISIBLE
    return roles


def _last_of_producers(headers: BatchHeaders) -> Int64s:
    """Return the rows of at most four batches per producer that determine its last record.

    These are its last data and three markers after it: the first, the last, and the first with
    another epoch than the batch before it.
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
    """Return for each batch whether it is data with a due horizon, and waits for no replica."""
    is_free = headers.column("last_offset") < outline.held_back_from
    return _is_reached(headers, outline) & ~headers.is_control & is_free


def is_due_but_held_back(headers: BatchHeaders, outline: LogOutline) -> Bools:
    """Return for each batch whether its horizon is due but waits for replicas."""
    is_held_back = headers.column("last_offset") >= outline.held_back_from
    return _is_reached(headers, outline) & (headers.column("record_count") > 0) & is_held_back


def _is_reached(headers: BatchHeaders, outline: LogOutline) -> Bools:
    """Return for each batch whether its horizon is due; False below the log start offset."""
    is_reached = headers.column("base_timestamp_ms") <= outline.now_ms
    is_reached &= headers.has_bit(DELETE_HORIZON)
    is_reached &= headers.column("last_offset") >= outline.log_start_offset
    return np.asarray(is_reached, np.bool_)


def _touched(segments: Sequence[SegmentStart], first: int, last: int) -> Sequence[SegmentStart]:
    """Return the logical segments that have the offsets from `first` to `last`."""
    start = max(bisect_right(segments, first, key=attrgetter("base_offset")) - 1, 0)
    return segments[start : bisect_right(segments, last, key=attrgetter("base_offset"))]


def _undecided(headers: BatchHeaders, first_segment_offset: int) -> Int64s:
    """Return the rows of the data before the first segment that is undecided there."""
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
