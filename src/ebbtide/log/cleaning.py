"""One cleaner round's decisions about batches and records.

Kafka: Cleaner.doClean, Cleaner.shouldRetainRecord, MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from ebbtide.log.batches import HEADER_BYTES, Batch
from ebbtide.log.producers import LastRecord
from ebbtide.log.transactions import TransactionReader, aborted_transactions
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
)

# What a codec adds at most to the few records that it cannot shrink.
CODEC_FRAME_BYTES = 40


class Retention(Enum):
    """What becomes of a batch none of whose records survive."""

    RETAIN_EMPTY = "retain_empty"
    DELETE_EMPTY = "delete_empty"
    DELETE = "delete"  # whether or not records would survive


class Verdict(NamedTuple):
    """What a round says of a batch before it looks at its records."""

    discards_records: bool  # all of them: aborted data, or a marker past its horizon
    is_marker_of_empty_transaction: bool
    retention: Retention


class Survivors(NamedTuple):
    """What a round leaves of one batch's records; sizes as v2 encodes records, uncompressed."""

    records: int
    has_tombstone: bool = False
    first_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    records_bytes: int = 0
    records_bytes_before: int = 0


class Round(NamedTuple):
    """The parameters of one round; it covers the segments below `first_uncleanable_offset`."""

    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    log_start_offset: int = 0


def judge(
    batches: Iterable[Batch], this_round: Round, last_records: Mapping[int, LastRecord]
) -> Iterator[tuple[Batch, Verdict]]:
    """Each batch below the bound with its verdict; `batches` is the whole log in offset order."""
    log = list(batches)
    transactions = TransactionReader(aborted_transactions(log, this_round.log_start_offset))
    for batch in log:
        if batch.base_offset >= this_round.first_uncleanable_offset:
            return
        yield batch, _verdict(batch, this_round, transactions, last_records)


def _verdict(
    batch: Batch,
    this_round: Round,
    transactions: TransactionReader,
    last_records: Mapping[int, LastRecord],
) -> Verdict:
    if batch.is_control:
        is_empty_transaction = transactions.read_marker(batch)
        discards = is_empty_transaction and is_past_horizon(batch, this_round.now_ms)
    else:
        is_empty_transaction = False
        discards = transactions.read_data(batch)
    last = last_records.get(batch.producer_id)
    is_last_of_producer = (
        batch.producer_id != NO_PRODUCER_ID and last is not None and last.is_in(batch)
    )
    is_last_of_round = batch.next_offset == this_round.first_uncleanable_offset
    if is_last_of_producer or is_last_of_round:
        retention = Retention.RETAIN_EMPTY
    else:
        retention = Retention.DELETE if discards else Retention.DELETE_EMPTY
    return Verdict(discards, is_empty_transaction, retention)


def is_past_horizon(batch: Batch, now_ms: int) -> bool:
    """Whether the batch's tombstones or marker may go: from its horizon on (KIP-534)."""
    return batch.delete_horizon_ms is not None and batch.delete_horizon_ms <= now_ms


def is_retained(
    *, has_key: bool, is_latest: bool, is_tombstone: bool, is_past_batch_horizon: bool
) -> bool:
    """Whether a record of a batch that is not discarded survives."""
    return has_key and is_latest and not (is_tombstone and is_past_batch_horizon)


def needs_horizon(batch: Batch, verdict: Verdict, survivors: Survivors) -> bool:
    """Whether this round starts the clock of the batch's tombstones or marker."""
    waits = survivors.has_tombstone or verdict.is_marker_of_empty_transaction
    return survivors.records > 0 and waits and batch.delete_horizon_ms is None


def rewrite(
    batch: Batch, verdict: Verdict, survivors: Survivors, this_round: Round
) -> Batch | None:
    """The batch's header after the round; None where the batch goes."""
    if verdict.retention is Retention.DELETE:
        return None
    if survivors.records == 0:
        return _emptied(batch) if verdict.retention is Retention.RETAIN_EMPTY else None
    sets_horizon = needs_horizon(batch, verdict, survivors)
    if survivors.records == batch.record_count and not sets_horizon:
        return batch
    attributes, base_timestamp_ms = batch.attributes, batch.base_timestamp_ms
    if sets_horizon:
        attributes |= DELETE_HORIZON
        base_timestamp_ms = this_round.now_ms + this_round.delete_retention_ms
    elif batch.delete_horizon_ms is None:
        base_timestamp_ms = survivors.first_timestamp_ms
    return batch._replace(
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=(
            batch.max_timestamp_ms if batch.is_log_append_time else survivors.max_timestamp_ms
        ),
        record_count=survivors.records,
        size_bytes=_rewritten_bytes(batch, survivors),
    )


def _emptied(batch: Batch) -> Batch:
    """A header alone: no compression, no horizon, all that fences the producer."""
    return batch._replace(
        attributes=batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON),
        base_timestamp_ms=NO_TIMESTAMP,
        record_count=0,
        size_bytes=HEADER_BYTES,
    )


def _rewritten_bytes(batch: Batch, survivors: Survivors) -> int:
    """Exact for an uncompressed batch; for a compressed one an estimate."""
    before = survivors.records_bytes_before
    if not batch.is_compressed or before == 0:
        return HEADER_BYTES + survivors.records_bytes
    # The fewer records, the less a codec finds to share between them, and the more so the better
    # it did on all. On the sample: 0.5 % off in all, half of the batches within 4 %.
    compressed = batch.size_bytes - HEADER_BYTES
    exponent = 0.6 + 0.4 * min(1.0, compressed / before)
    estimate: float = compressed * (survivors.records_bytes / before) ** exponent
    return HEADER_BYTES + min(round(estimate), survivors.records_bytes + CODEC_FRAME_BYTES)
