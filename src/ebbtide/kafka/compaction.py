"""Rules of one cleaner round for batches and records.

Kafka: Cleaner.doClean, Cleaner.shouldRetainRecord, MemoryRecords.filterTo.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ebbtide.errors import NotCoveredError
from ebbtide.kafka.batch_header import HEADER_BYTES, Batch
from ebbtide.kafka.reasons import Reason
from ebbtide.kafka.transactions import LastRecord, TransactionReader, aborted_transactions
from ebbtide.moments import earlier, later
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records.arrays import varint_size
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
)
from ebbtide.state.logical_segments import SegmentStart, segment_of

# The most that a codec adds to records that it cannot compress.
CODEC_FRAME_BYTES = 40
# Bytes of a message of magic 0 or 1 besides its key and value.
LEGACY_OVERHEAD_BYTES = {0: 26, 1: 34}


class Retention(Enum):
    """The fate of a batch whose records have all been removed."""

    RETAIN_EMPTY = "retain_empty"
    DELETE_EMPTY = "delete_empty"
    DELETE = "delete"  # even if records would be retained


class Verdict(NamedTuple):
    """A round's verdict on a batch, before its records are read."""

    discards_records: bool  # all of them: aborted data, or a marker past its horizon
    is_marker_of_empty_transaction: bool
    retention: Retention


class Survivors(NamedTuple):
    """The retained records of one batch; sizes as v2 encodes records, uncompressed."""

    records: int
    has_tombstone: bool = False
    first_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    records_bytes: int = 0
    records_bytes_before: int = 0
    # Records below the log start offset, if the batch ends above it. They count as retained: they
    # can no longer be read.
    hidden: int = 0
    first_offset: int | None = None  # used only for a batch of magic 0 or 1
    last_offset: int | None = None


class Round(NamedTuple):
    """Parameters of one round, which covers the segments below `first_uncleanable_offset`.

    A replica whose log ends at `held_back_from` still needs the tombstones and markers from there
    on: it may hold records that they delete or decide.
    """

    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    log_start_offset: int = 0
    first_dirty_offset: int = 0
    segments: Sequence[SegmentStart] = ()  # with first_dirty_offset: age of legacy tombstones
    held_back_from: int = MAX_OFFSET
    is_idle: bool = False  # Kafka's cleaner would not clean the log: nothing is superseded

    @property
    def horizon_ms(self) -> int:
        """The delete horizon that this round sets, at most the largest long."""
        return later(self.now_ms, self.delete_retention_ms)

    def is_held_back(self, batch: Batch) -> bool:
        """Return whether the batch's tombstones or marker wait for replicas, even if due."""
        return batch.last_offset >= self.held_back_from

    def is_hidden(self, batch: Batch) -> bool:
        """Return whether the whole batch is below the log start offset."""
        return batch.next_offset <= self.log_start_offset

    def is_astride(self, batch: Batch) -> bool:
        """Return whether the batch straddles the log start offset."""
        return batch.written_base_offset < self.log_start_offset < batch.next_offset


def judge(
    batches: Iterable[Batch], this_round: Round, last_records: Mapping[int, LastRecord]
) -> Iterator[tuple[Batch, Verdict]]:
    """Yield each batch below the round's end with its verdict; `batches` is in offset order."""
    log = list(batches)
    transactions = TransactionReader(aborted_transactions(log, this_round.log_start_offset))
    for batch in log:
        if batch.base_offset >= this_round.first_uncleanable_offset:
            return
        read = transactions.read_marker if batch.is_control else transactions.read_data
        yield batch, verdict_on(batch, this_round, last_records, is_decided=read(batch))


def verdict_on(
    batch: Batch,
    this_round: Round,
    last_records: Mapping[int, LastRecord],
    *,
    is_decided: bool,
) -> Verdict:
    """Return the verdict on a batch by the result of a TransactionReader.

    `is_decided`: the batch's data is aborted, or no data of the marker's transaction is left.
    """
    discards = is_decided
    if batch.is_control:
        discards &= is_past_horizon(batch, this_round.now_ms)
        discards &= not this_round.is_held_back(batch)
    last = last_records.get(batch.producer_id)
    is_last_of_producer = (
        batch.producer_id != NO_PRODUCER_ID and last is not None and last.is_in(batch)
    )
    is_last_of_round = batch.next_offset == this_round.first_uncleanable_offset
    if is_last_of_producer or is_last_of_round:
        retention = Retention.RETAIN_EMPTY
    else:
        retention = Retention.DELETE if discards else Retention.DELETE_EMPTY
    return Verdict(discards, batch.is_control and is_decided, retention)


def is_past_horizon(batch: Batch, now_ms: int) -> bool:
    """Return whether the batch's tombstones or marker are due, by its horizon (KIP-534)."""
    return batch.delete_horizon_ms is not None and batch.delete_horizon_ms <= now_ms


def drops_tombstones(batch: Batch, this_round: Round) -> bool:
    """Return whether the round removes the batch's tombstones."""
    return are_tombstones_due(batch, this_round) and not this_round.is_held_back(batch)


def are_tombstones_due(batch: Batch, this_round: Round) -> bool:
    """Return whether the batch's tombstones are due: by horizon, or before magic 2 by segment age.

    Kafka: Cleaner.doClean (legacyDeleteHorizonMs), Cleaner.shouldRetainRecord.
    """
    if not batch.is_legacy:
        return is_past_horizon(batch, this_round.now_ms)
    modified_ms = dict(this_round.segments)
    clean = [ms for base, ms in this_round.segments if base < this_round.first_dirty_offset]
    horizon_ms = earlier(clean[-1], this_round.delete_retention_ms) if clean else 0
    segment = segment_of(list(modified_ms), batch.base_offset)
    return modified_ms[segment] <= horizon_ms


def is_retained(
    *, has_key: bool, is_latest: bool, is_tombstone: bool, is_past_batch_horizon: bool
) -> bool:
    """Return whether a record is retained; its batch is not discarded."""
    return has_key and is_latest and not (is_tombstone and is_past_batch_horizon)


def needs_horizon(batch: Batch, verdict: Verdict, survivors: Survivors) -> bool:
    """Return whether this round sets the delete horizon of the batch's tombstones or marker."""
    waits = survivors.has_tombstone or verdict.is_marker_of_empty_transaction
    return survivors.records > 0 and waits and batch.delete_horizon_ms is None


def rewrite(
    batch: Batch, verdict: Verdict, survivors: Survivors, this_round: Round
) -> Batch | None:
    """Return the batch's header after the round, or None if the round removes the batch.

    A batch below the log start offset stays until its segment is removed. Kafka cleans its records,
    which are no longer in the table, by keys. Most are superseded, so its data then counts 0 bytes.
    """
    if this_round.is_hidden(batch):
        is_cleaned = not (batch.is_control or this_round.is_idle)
        return batch._replace(size_bytes=0) if is_cleaned else batch
    if verdict.retention is Retention.DELETE:
        return None
    left = 0 if verdict.discards_records else survivors.records + survivors.hidden
    if left == 0:
        return _emptied(batch) if verdict.retention is Retention.RETAIN_EMPTY else None
    sets_horizon = needs_horizon(batch, verdict, survivors)
    if left == batch.record_count and not sets_horizon and not batch.is_legacy:
        return batch
    changes: dict[str, Any] = {"record_count": left}
    if batch.is_legacy:
        changes |= _converted(survivors)
    if sets_horizon:
        changes["attributes"] = batch.attributes | DELETE_HORIZON
        changes["base_timestamp_ms"] = this_round.horizon_ms
    elif batch.delete_horizon_ms is None and not survivors.hidden:
        changes["base_timestamp_ms"] = survivors.first_timestamp_ms
    changes |= _retimed(batch, survivors)
    return batch._replace(size_bytes=rewritten_bytes(batch, survivors), **changes)


def _converted(survivors: Survivors) -> dict[str, int]:
    """Return the changes that make a header magic 2, with its offsets those of the records."""
    if survivors.hidden or survivors.first_offset is None or survivors.last_offset is None:
        return {"magic": 2}
    offsets = {"header_base_offset": survivors.first_offset, "last_offset": survivors.last_offset}
    return {"magic": 2, **offsets}


def _retimed(batch: Batch, survivors: Survivors) -> dict[str, int]:
    """Return the changes of timestamps if the batch's newest record was removed.

    The largest timestamp of a producer's batch is recorded as that of its last append.
    """
    newest_ms = survivors.max_timestamp_ms
    if batch.is_log_append_time or survivors.hidden or newest_ms == batch.max_timestamp_ms:
        return {}
    if batch.producer_id == NO_PRODUCER_ID:
        return {"max_timestamp_ms": newest_ms}
    return {"max_timestamp_ms": newest_ms, "producer_timestamp_ms": batch.last_append_ms}


def _emptied(batch: Batch) -> Batch:
    """Return the header without records, compression and horizon; producer state is retained."""
    if batch.is_legacy:
        raise NotCoveredError(
            f"expected a retained record in the batch at offset {batch.base_offset}, the last of "
            f"the round, found none: magic {batch.magic} has no empty batch, and Kafka stops "
            "cleaning such a log too. Clean again when another segment was written"
        )
    return batch._replace(
        attributes=batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON),
        base_timestamp_ms=NO_TIMESTAMP,
        record_count=0,
        size_bytes=HEADER_BYTES,
    )


def rewritten_bytes(batch: Batch, survivors: Survivors) -> int:
    """Return the size of the batch after a rewrite with these records.

    It is exact for an uncompressed batch, and an estimate for a compressed one.
    """
    before = survivors.records_bytes_before
    overhead = LEGACY_OVERHEAD_BYTES[batch.magic] if batch.is_legacy else HEADER_BYTES
    payload = batch.size_bytes - overhead
    if not batch.is_compressed or before == 0:
        hidden = payload - before if survivors.hidden else 0
        return HEADER_BYTES + hidden + survivors.records_bytes
    return HEADER_BYTES + compressed_bytes(payload, before, survivors.records_bytes)


def compressed_bytes(compressed: int, before: int, after: int) -> int:
    """Estimate the compressed size of `after` bytes of records, if `before` took `compressed`.

    The fewer records, the worse they compress, most of all if the whole batch compressed well. On
    the sample: 0.5 % off in all, half of the batches within 4 %.
    """
    exponent = 0.6 + 0.4 * min(1.0, compressed / before)
    estimate: float = compressed * (after / before) ** exponent
    return min(round(estimate), after + CODEC_FRAME_BYTES)


def control_left(batch: Batch, verdict: Verdict, this_round: Round) -> Survivors:
    """Return a control batch's retained record; its delta grows when its horizon is set."""
    if verdict.discards_records or not batch.record_count:
        return Survivors(0)
    at_ms = batch.max_timestamp_ms
    left = Survivors(batch.record_count, first_timestamp_ms=at_ms, max_timestamp_ms=at_ms)
    if not needs_horizon(batch, verdict, left):
        return left
    horizon_ms = this_round.horizon_ms
    # A control record's length fits in one varint byte: it stays below 64.
    body_bytes = batch.size_bytes - HEADER_BYTES - 1
    body_bytes -= varint_size(at_ms - batch.base_timestamp_ms)
    body_bytes += varint_size(at_ms - horizon_ms)
    return left._replace(records_bytes=body_bytes + varint_size(body_bytes))


def idle_reason(
    verdicts: Iterable[tuple[Batch, Verdict]], this_round: Round, with_tombstone: Container[int]
) -> Reason | None:
    """Return why a log that Kafka's cleaner would skip gets a round, or None if it gets none.

    `with_tombstone` has the base offsets of the batches with a tombstone.
    """
    for batch, verdict in verdicts:
        if this_round.is_hidden(batch):
            continue
        is_marker = batch.is_control and batch.record_count > 0
        may_wait = is_marker or batch.base_offset in with_tombstone
        is_due = is_past_horizon(batch, this_round.now_ms) and not this_round.is_held_back(batch)
        if may_wait and is_due:
            return Reason.HORIZON_REACHED
        has_outlived = is_marker and verdict.is_marker_of_empty_transaction
        if has_outlived and batch.delete_horizon_ms is None:
            return Reason.MARKER_OUTLIVED
    return None
