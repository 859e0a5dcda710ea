"""The batch rows that a log must keep so that its producers are not forgotten.

Kafka: ProducerStateEntry, ProducerAppendInfo, UnifiedLog.lastRecordsOfActiveProducers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ebbtide.log.batch_header import Batch
from ebbtide.log.transactions import OpenTransactions
from ebbtide.records.attributes import NO_PRODUCER_ID, TRANSACTIONAL


class LastRecord(NamedTuple):
    """The newest that is known of a producer; no data offset once its epoch moved on."""

    producer_epoch: int
    last_data_offset: int | None
    timestamp_ms: int
    is_in_transaction: bool
    last_offset: int = -1  # of its last append, data or marker

    def is_in(self, batch: Batch) -> bool:
        """Return whether this is what `batch` preserves."""
        if self.last_data_offset is not None:
            return batch.last_offset == self.last_data_offset
        return batch.is_control and batch.producer_epoch == self.producer_epoch


def last_records(
    batches: Iterable[Batch], *, now_ms: int, expiration_ms: int
) -> dict[int, LastRecord]:
    """Return the last record of each producer that has not expired; batches in offset order."""
    producers: dict[int, LastRecord] = {}
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID and not batch.was_emptied_at_source:
            producers[batch.producer_id] = _after(batch, producers.get(batch.producer_id))
    return {
        producer_id: last
        for producer_id, last in producers.items()
        if last.is_in_transaction or now_ms - last.timestamp_ms < expiration_ms
    }


def _after(batch: Batch, last: LastRecord | None) -> LastRecord:
    """Return a new epoch forgets the data of the one before, also when a marker brings it."""
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
    """Return base offsets of what Kafka still knows once the segments of these batches have gone.

    The newest data of each unexpired producer, the end of its transaction, its last append; and
    where an open transaction begins.
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
    """Yield rows, before and after, that take over producers' facts from rows that a round removes.

    `removed` are base offsets. The time of a producer's last append moves to the newest row left of
    it, also to make sure that an expired producer does not come back. Data of which only the row
    is left, below the first segment, is no longer undecided once its marker has gone.
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
