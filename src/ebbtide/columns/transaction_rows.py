"""Follow the transactions of a log's batch headers, all producers at once.

`ebbtide.log.transactions.TransactionReader` reads batch by batch; this has the same result. It
relies on a marker's `txn_first_offset`: no other marker of the producer lies between the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.columns.header_columns import NOTHING, BatchHeaders, headers_of, together
from ebbtide.log.batch_header import ABORT, COMMIT, Batch
from ebbtide.log.transactions import TransactionsAround
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import CONTROL, DELETE_HORIZON, TRANSACTIONAL


def read_transactions(
    headers: BatchHeaders, log_start_offset: int, around: TransactionsAround
) -> Bools:
    """Return whether each data batch is aborted, each marker without data of its transaction.

    `headers` are a part of a log, and `around` tells what it shares with the rest.
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
    """Return made-up batches: a producer's data before a part, and markers after it."""
    data = Batch(-1, -1, TRANSACTIONAL, record_count=1)
    before = [data._replace(producer_id=producer) for producer in around.committing]
    # Such data is aborted wherever the marker says that its transaction begins.
    aborted = data._replace(last_offset=MAX_OFFSET - 1)
    before += [aborted._replace(producer_id=producer) for producer in around.aborting]
    marker = Batch(
        MAX_OFFSET, MAX_OFFSET, TRANSACTIONAL | CONTROL, control_type=ABORT, record_count=1
    )
    after = [
        marker._replace(producer_id=of.producer_id, txn_first_offset=of.first_offset)
        for of in around.aborted_later
    ]
    return headers_of(before), headers_of(after)


def outline_transactions(headers: BatchHeaders, log_start_offset: int) -> Int64s:
    """Return the rows of a few batches of each producer that stand for a part of a log.

    The outlines of all parts leave the same transactions open as the log, and share the same with
    any of the parts. A marker in them has the same data before it or none, as in the log. If
    markers of the part have outlived their data or wait for a horizon, one such is among them, that
    with the first horizon; markers below the log start offset do not count for this.
    """
    if not headers.is_in_transaction.any():
        return NOTHING
    rows = _Rows.of(headers, log_start_offset)
    return np.unique(rows.number[_outline(rows, log_start_offset)])


class _Rows(NamedTuple):
    """Batches in transactions, ordered by producer and offset, as columns.

    `number` is the row among the headers. The next three are rows here, or their count where there
    is none: of a batch, the producer's next marker; of data, the marker for which it counts as
    left; and of a marker the newest such data, here -1 for none.
    """

    headers: BatchHeaders
    number: Int64s
    producer: Int64s
    is_commit: Bools  # of these two kinds, those with a record
    is_abort: Bools
    next_marker: Int64s
    decided_by: Int64s
    newest_data: Int64s
    is_aborted: Bools

    @classmethod
    def of(cls, headers: BatchHeaders, log_start_offset: int) -> _Rows:
        """Return the batches of the headers that are in transactions."""
        number = np.flatnonzero(headers.is_in_transaction)
        number = number[np.argsort(headers.column("producer_id")[number], kind="stable")]
        mine = headers.at(number)
        producer, first = mine.column("producer_id"), mine.column("txn_first_offset")
        is_data, count = ~mine.is_control, len(number)
        is_commit, is_abort = _is_marker(mine, COMMIT), _is_marker(mine, ABORT)
        # As in `aborted_transactions`; the last is where there is no marker.
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
        """Whether each is a marker that still has its record."""
        return np.asarray(self.is_commit | self.is_abort)

    @property
    def is_outlived(self) -> Bools:
        """Whether each is a marker of which no data is left, or which has been emptied."""
        is_emptied = self.headers.is_control & (self.headers.column("record_count") == 0)
        return np.asarray(is_emptied | (self.is_marker & (self.newest_data < 0)))

    def first(self, mask: Bools) -> Int64s:
        """Return each producer's first row for which the mask is true."""
        rows = np.flatnonzero(mask)
        return rows[np.unique(self.producer[rows], return_index=True)[1]]

    def last(self, mask: Bools) -> Int64s:
        """Return each producer's last row for which the mask is true."""
        rows = np.flatnonzero(mask)[::-1]
        return rows[np.unique(self.producer[rows], return_index=True)[1]]


def _is_marker(headers: BatchHeaders, control_type: str) -> Bools:
    """Return which are control batches of the type that hold a record."""
    is_of_type = pc.equal(headers.table["control_type"], pa.scalar(control_type))
    is_full = headers.is_control & (headers.column("record_count") > 0)
    return np.asarray(is_of_type.fill_null(False).to_numpy() & is_full, np.bool_)


def _next(mask: Bools, producer: Int64s) -> Int64s:
    """Return the first row from each on of its producer for which the mask is true, or the count.

    Rows are ordered by producer.
    """
    count = len(mask)
    rows = np.where(mask, np.arange(count), count)
    rows = np.minimum.accumulate(rows[::-1])[::-1]
    is_of_other = np.append(producer, 0)[rows] != producer
    return np.where(is_of_other, count, rows)


def _outline(rows: _Rows, log_start_offset: int) -> Int64s:
    """Return the rows that stand for all, see `outline_transactions`."""
    count, is_control = len(rows.number), rows.headers.is_control
    is_end = is_control & ~rows.headers.were_emptied_at_source
    ends = [rows.first(rows.is_marker), rows.first(rows.is_commit), rows.last(is_end)]
    ends.append(_waiting(rows, np.concatenate(ends), log_start_offset))
    data = rows.newest_data[np.concatenate(ends)]
    is_before_marker = ~is_control & (rows.next_marker < count)
    is_undecided = ~is_control & (rows.next_marker == count)
    is_open = ~is_control & (_next(is_end, rows.producer) == count)
    others = [
        rows.last(is_before_marker & (rows.decided_by == count)),  # no commit follows
        rows.first(is_undecided),
        rows.last(is_undecided),
        rows.first(is_open),
    ]
    return np.concatenate([*ends, data[data >= 0], *others])


def _waiting(rows: _Rows, firsts: Int64s, log_start_offset: int) -> Int64s:
    """Return a marker that has outlived its data, and the one whose horizon is reached first.

    Of a producer's first markers, which are among `firsts`, data may lie before these rows.
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
