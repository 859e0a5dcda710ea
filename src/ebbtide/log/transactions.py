"""Decide which data is aborted and which markers have outlived their data.

Kafka: CleanedTransactionMetadata, TransactionIndex, ProducerStateManager (last stable offset).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ebbtide.log.batch_header import ABORT, COMMIT, Batch
from ebbtide.moments import minute
from ebbtide.text import span


class AbortedTransaction(NamedTuple):
    """One entry of Kafka's transaction index; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


def aborted_transactions(
    batches: Iterable[Batch], log_start_offset: int = 0
) -> list[AbortedTransaction]:
    """Return the aborted transactions that have data, by first offset; read the log to its end.

    A marker below the log start offset no longer counts (LocalLog.collectAbortedTransactions),
    nor does one that a round has emptied: its data went before it.
    """
    return sorted(
        (
            AbortedTransaction(batch.producer_id, batch.txn_first_offset, batch.base_offset)
            for batch in batches
            if batch.control_type == ABORT
            and batch.txn_first_offset is not None
            and batch.record_count > 0
            and batch.base_offset >= log_start_offset
        ),
        key=lambda aborted: aborted.first_offset,
    )


class TransactionReader:
    """Follows transactions through a log that is read batch by batch in offset order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda a: a.first_offset, reverse=True)
        self._aborting: dict[int, bool] = {}  # producer id -> whether a batch was seen
        self._committing: set[int] = set()

    def read_data(self, batch: Batch) -> bool:
        """Return whether the data batch belongs to an aborted transaction."""
        self._start_until(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborting:
            self._aborting[batch.producer_id] = True
            return True
        self._committing.add(batch.producer_id)
        return False

    def read_marker(self, batch: Batch) -> bool:
        """Return whether no batch of the control batch's transaction was met, so that it may go."""
        self._start_until(batch.last_offset)
        if batch.record_count == 0:  # emptied by an earlier round
            return True
        if batch.control_type == ABORT:
            return not self._aborting.pop(batch.producer_id, False)
        if batch.control_type == COMMIT:
            has_data = batch.producer_id in self._committing
            self._committing.discard(batch.producer_id)
            return not has_data
        return False

    @property
    def met(self) -> tuple[frozenset[int], frozenset[int]]:
        """Producers of aborted and of committed data whose marker has not been read yet."""
        aborting = frozenset(producer for producer, is_met in self._aborting.items() if is_met)
        return aborting, frozenset(self._committing)

    def _start_until(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            self._aborting.setdefault(self._upcoming.pop().producer_id, False)


class TransactionsAround(NamedTuple):
    """The transactions that a part of a log shares with what lies before and after it.

    `aborting` and `committing` are producers of aborted and of committed data before it, whose
    markers are not; `aborted_later` are transactions that begin before its end and end after it.
    """

    aborting: frozenset[int] = frozenset()
    committing: frozenset[int] = frozenset()
    aborted_later: tuple[AbortedTransaction, ...] = ()


def transactions_around(
    log: Sequence[Batch], starts: Sequence[int], log_start_offset: int
) -> list[TransactionsAround]:
    """Return what each part of the log shares with the others; parts begin at `starts`."""
    aborted = aborted_transactions(log, log_start_offset)
    later: list[list[AbortedTransaction]] = [[] for _ in starts]
    for transaction in aborted:
        first = max(bisect_right(starts, transaction.first_offset) - 1, 0)
        for part in range(first, bisect_right(starts, transaction.last_offset) - 1):
            later[part].append(transaction)
    reader, around, position = TransactionReader(aborted), list[TransactionsAround](), 0
    for start, of_part in zip(starts, later, strict=True):
        while position < len(log) and log[position].base_offset < start:
            batch = log[position]
            reader.read_marker(batch) if batch.is_control else reader.read_data(batch)
            position += 1
        around.append(TransactionsAround(*reader.met, tuple(of_part)))
    return around


class OpenTransaction(NamedTuple):
    """A transaction without a marker; `since_ms` is its first batch's largest timestamp, or -1."""

    producer_id: int
    first_offset: int
    since_ms: int

    def in_words(self, now_ms: int) -> str:
        """Return what holds a log back, since when and for how long."""
        begun = ""
        if 0 <= self.since_ms <= now_ms:
            begun = f" since {minute(self.since_ms)} UTC ({span(now_ms - self.since_ms)})"
        return (
            f"an open transaction of producer {self.producer_id} holds the log back from offset "
            f"{self.first_offset}{begun}"
        )


class OpenTransactions:
    """First offset of each producer's undecided transaction, as a log is appended to."""

    def __init__(self, first_offsets: dict[int, int] | None = None) -> None:
        self.first_offsets = dict(first_offsets or {})

    def append(self, batch: Batch) -> int | None:
        """Follow one more batch; for a marker, the first offset of the data that it decides."""
        if batch.is_control:
            if batch.was_emptied_at_source:
                return None
            return self.first_offsets.pop(batch.producer_id, None)
        if batch.is_transactional:
            self.first_offsets.setdefault(batch.producer_id, batch.base_offset)
        return None

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which every transaction is decided."""
        return min(self.first_offsets.values(), default=high_watermark)


def visible_stable_offset(
    last_stable_offset: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    first_batch_offset: int | None,
) -> int:
    """Return the last stable offset where it may lie below the log start offset.

    It is then where the batch begins that contains the log start offset or follows it
    (`first_batch_offset`), or the log's end (UnifiedLog.maybeIncrementFirstUnstableOffset).
    """
    if last_stable_offset >= log_start_offset:
        return last_stable_offset
    return log_end_offset if first_batch_offset is None else first_batch_offset
