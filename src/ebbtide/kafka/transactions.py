"""Find aborted data, transaction markers without data, and what producers must be remembered by.

Kafka: CleanedTransactionMetadata, TransactionIndex, ProducerStateManager (last stable offset).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ebbtide.kafka.batch_header import ABORT, COMMIT, Batch
from ebbtide.moments import earlier, minute
from ebbtide.records.attributes import NO_PRODUCER_ID, TRANSACTIONAL
from ebbtide.text import span


class AbortedTransaction(NamedTuple):
    """One entry of Kafka's transaction index; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


def aborted_transactions(
    batches: Iterable[Batch], log_start_offset: int = 0
) -> list[AbortedTransaction]:
    """Return the aborted transactions that have data, by first offset, of a whole log.

    A marker below the log start offset does not count (LocalLog.collectAbortedTransactions). Nor
    does a marker that a round has emptied: its data was removed before.
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
    """Follows transactions through a log that is read batch by batch, in offset order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda a: a.first_offset, reverse=True)
        self._aborting: dict[int, bool] = {}  # producer id -> whether a data batch was read
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
        """Return whether the control batch's transaction has no data left in the log."""
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
        """Producers of aborted data and of committed data whose marker has not been read yet."""
        aborting = frozenset(producer for producer, is_met in self._aborting.items() if is_met)
        return aborting, frozenset(self._committing)

    def _start_until(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            self._aborting.setdefault(self._upcoming.pop().producer_id, False)


class TransactionsAround(NamedTuple):
    """Transactions that straddle the bounds of a part of a log."""

    aborting: frozenset[int] = frozenset()  # producers of aborted data before it, marker not before
    committing: frozenset[int] = frozenset()  # the same of committed data
    aborted_later: tuple[AbortedTransaction, ...] = ()  # begin before its end, end after it


def transactions_around(
    log: Sequence[Batch], starts: Sequence[int], log_start_offset: int
) -> list[TransactionsAround]:
    """Return the straddling transactions of each part of the log; parts begin at `starts`."""
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
    """A transaction without a marker."""

    producer_id: int
    first_offset: int
    since_ms: int  # largest timestamp of its first batch, or -1

    def in_words(self, now_ms: int) -> str:
        """Return a sentence: the open transaction that blocks a log, its start and its duration."""
        begun = ""
        if 0 <= self.since_ms <= now_ms:
            begun = f" since {minute(self.since_ms)} UTC ({span(now_ms - self.since_ms)})"
        return (
            f"an open transaction of producer {self.producer_id} blocks the log from offset "
            f"{self.first_offset}{begun}"
        )


class OpenTransactions:
    """The first offset of each producer's undecided transaction, while a log is appended to."""

    def __init__(self, first_offsets: dict[int, int] | None = None) -> None:
        self.first_offsets = dict(first_offsets or {})

    def append(self, batch: Batch) -> int | None:
        """Follow one more batch; for a marker, return the first offset of its data, or None."""
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
    """Return the last stable offset as consumers see it: never inside removed records.

    If it is below the log start offset, it is `first_batch_offset`: the base offset of the batch
    that contains the log start offset or follows it. Without such a batch it is the log end offset
    (UnifiedLog.maybeIncrementFirstUnstableOffset).
    """
    if last_stable_offset >= log_start_offset:
        return last_stable_offset
    return log_end_offset if first_batch_offset is None else first_batch_offset


# The batch rows that a log must retain so that the state of its producers is not lost.
#
# Kafka: ProducerStateEntry, ProducerAppendInfo, UnifiedLog.lastRecordsOfActiveProducers.


class LastRecord(NamedTuple):
    """The newest state of a producer."""

    producer_epoch: int
    last_data_offset: int | None  # None after a new epoch without data
    timestamp_ms: int
    is_in_transaction: bool
    last_offset: int = -1  # of its last append, data or marker

    def is_in(self, batch: Batch) -> bool:
        """Return whether `batch` has the state to preserve."""
        if self.last_data_offset is not None:
            return batch.last_offset == self.last_data_offset
        return batch.is_control and batch.producer_epoch == self.producer_epoch


def last_records(
    batches: Iterable[Batch], *, now_ms: int, expiration_ms: int
) -> dict[int, LastRecord]:
    """Return the last record of each unexpired producer; `batches` is in offset order."""
    producers: dict[int, LastRecord] = {}
    expired_until_ms = earlier(now_ms, expiration_ms)
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID and not batch.was_emptied_at_source:
            producers[batch.producer_id] = _after(batch, producers.get(batch.producer_id))
    return {
        producer_id: last
        for producer_id, last in producers.items()
        if last.is_in_transaction or last.timestamp_ms > expired_until_ms
    }


def _after(batch: Batch, last: LastRecord | None) -> LastRecord:
    """Return the producer's last record after this batch.

    A new epoch clears the last data offset, even if a marker brings it.
    """
    data_offset: int | None = batch.last_offset
    if batch.is_control:
        is_same_epoch = last is not None and last.producer_epoch == batch.producer_epoch
        data_offset = last.last_data_offset if last is not None and is_same_epoch else None
    return LastRecord(
        batch.producer_epoch,
        data_offset,
        batch.last_append_ms,
        batch.is_transactional and not batch.is_control,
        batch.last_offset,
    )


def remembered(batches: Iterable[Batch], last: Mapping[int, LastRecord]) -> set[int]:
    """Return base offsets of the batches that Kafka still knows after their segments are removed.

    These are each unexpired producer's newest data, the end of its transaction and its last append,
    and the first batch of each open transaction.
    """
    transactions = OpenTransactions()
    newest: dict[int, int] = {}
    kept = set()
    for batch in batches:
        first = transactions.append(batch)
        known = last.get(batch.producer_id)
        if known is None:
            continue
        if not batch.is_control and batch.last_offset == known.last_data_offset:
            newest[batch.producer_id] = batch.base_offset
        data = newest.get(batch.producer_id)
        ends_it = data is not None and first is not None and first <= data
        if batch.base_offset == data or ends_it or batch.last_offset == known.last_offset:
            kept.add(batch.base_offset)
    return kept | set(transactions.first_offsets.values())


def carried(
    batches: Sequence[Batch],
    removed: Collection[int],
    last: Mapping[int, LastRecord],
    first_segment_offset: int,
) -> Iterator[tuple[Batch, Batch]]:
    """Yield rows (before, after) that take on producer state from rows that a round removes.

    `removed` has base offsets. The time of a producer's last append moves to its newest remaining
    row, also to keep an expired producer expired. A data row below the first segment, whose records
    are removed, is no longer undecided once its marker is removed.
    """
    by_producer: dict[int, list[Batch]] = {}
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID and not batch.was_emptied_at_source:
            by_producer.setdefault(batch.producer_id, []).append(batch)
    for producer_id, rows in by_producer.items():
        gone = [batch for batch in rows if batch.base_offset in removed]
        left = [batch for batch in rows if batch.base_offset not in removed]
        for batch in left if gone else ():
            after = batch
            if batch is left[-1] and rows[-1] is gone[-1]:
                after = _retimed(batch, rows[-1].last_append_ms, is_known=producer_id in last)
            if batch.base_offset < first_segment_offset and any(_decides(m, batch) for m in gone):
                after = after._replace(attributes=batch.attributes & ~TRANSACTIONAL)
            if after != batch:
                yield batch, after


def _retimed(batch: Batch, time_ms: int, *, is_known: bool) -> Batch:
    if time_ms == batch.last_append_ms or (not is_known and time_ms > batch.last_append_ms):
        return batch
    return batch._replace(producer_timestamp_ms=time_ms)


def _decides(marker: Batch, data: Batch) -> bool:
    first = marker.txn_first_offset
    return first is not None and first <= data.base_offset < marker.base_offset
