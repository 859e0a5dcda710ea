"""What a log still has to keep so that its producers are not forgotten.

Kafka: ProducerStateEntry, ProducerAppendInfo, UnifiedLog.lastRecordsOfActiveProducers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ebbtide.log.batches import Batch
from ebbtide.records.attributes import NO_PRODUCER_ID


class LastRecord(NamedTuple):
    """The newest that is known of a producer; no data offset once its epoch moved on."""

    producer_epoch: int
    last_data_offset: int | None
    timestamp_ms: int
    is_in_transaction: bool

    def is_in(self, batch: Batch) -> bool:
        """Whether this is what `batch` preserves."""
        if self.last_data_offset is not None:
            return batch.last_offset == self.last_data_offset
        return batch.is_control and batch.producer_epoch == self.producer_epoch


def last_records(
    batches: Iterable[Batch], *, now_ms: int, expiration_ms: int
) -> dict[int, LastRecord]:
    """The last record of each producer that has not expired; batches in offset order."""
    producers: dict[int, LastRecord] = {}
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID:
            producers[batch.producer_id] = _after(batch, producers.get(batch.producer_id))
    return {
        producer_id: last
        for producer_id, last in producers.items()
        if last.is_in_transaction or now_ms - last.timestamp_ms < expiration_ms
    }


def _after(batch: Batch, last: LastRecord | None) -> LastRecord:
    """A new epoch forgets the data of the one before, also when a marker brings it."""
    if not batch.is_control:
        return LastRecord(
            batch.producer_epoch, batch.last_offset, batch.max_timestamp_ms, batch.is_transactional
        )
    is_same_epoch = last is not None and last.producer_epoch == batch.producer_epoch
    data_offset = last.last_data_offset if last is not None and is_same_epoch else None
    return LastRecord(batch.producer_epoch, data_offset, batch.max_timestamp_ms, False)
