"""Encode a table's batches and their records as the bytes of a segment file: always magic 2.

A batch of magic 0 or 1 becomes one of magic 2 with the same offsets, records, codec and times.
Source: KIP-534 and Kafka's `DefaultRecordBatch`, `MemoryRecords.filterTo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.records.arrays import MAX_TIMESTAMP_MS, Int64s, to_ms
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
)
from ebbtide.records.decoding.record_columns import TIMESTAMP_HEADER
from ebbtide.records.header_keys import HeaderPairs, with_own_keys
from ebbtide.records.v2_writer import BatchFields, Record, write_batch

# The columns of a records table that are written.
RECORD_COLUMNS = (
    *("offset", "batch", "timestamp", "event_time"),
    *("key", "value", "headers", "attributes"),
)
# Python objects of this many records are alive at a time, and those of one batch.
ROWS_AT_ONCE = 4096


class StoredBatch(NamedTuple):
    """A row of a batches table, as far as it is written; times in ms since the epoch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    crc: int | None = None  # null once a round rewrote the batch
    control_key: bytes | None = None
    control_value: bytes | None = None
    header_base_offset: int | None = None  # where it is not `base_offset`

    @property
    def is_control(self) -> bool:
        """Whether this holds a control record, such as a transaction marker."""
        return bool(self.attributes & CONTROL) and self.magic == 2

    @property
    def has_producer_times(self) -> bool:
        """Whether the records' timestamp deltas are the producer's, not from the broker's clock.

        Kafka leaves them unchanged where the broker stamps a batch, until the cleaner rewrites it.
        """
        return bool(self.attributes & LOG_APPEND_TIME) and self.crc is not None


class WrittenBatch(NamedTuple):
    """A batch, how many records are left of it, and its bytes."""

    batch: StoredBatch
    record_count: int
    data: bytes


def to_stored_batches(rows: pa.Table) -> list[StoredBatch]:
    """Read rows of a batches table; columns of StoredBatch that were added later may be missing."""
    names = [name for name in StoredBatch._fields if name in rows.column_names]
    # A live topic's source does not tell the epoch.
    unknown = rows["leader_epoch"].fill_null(NO_LEADER_EPOCH)
    rows = rows.set_column(rows.schema.get_field_index("leader_epoch"), "leader_epoch", unknown)
    columns = [rows[name].to_pylist() for name in names]
    return [StoredBatch(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def write_batches(batches: Sequence[StoredBatch], rows: pa.Table) -> Iterator[WrittenBatch]:
    """Yield each batch with the records that `rows` (RECORD_COLUMNS, in offset order) has of it."""
    records = _to_records(rows, _times_ms(batches, rows))
    bases, counts = np.unique(rows["batch"].to_numpy(), return_counts=True)
    held = dict(zip(bases.tolist(), counts.tolist(), strict=True))
    for batch in batches:
        left = list(islice(records, held.get(batch.base_offset, 0)))
        yield WrittenBatch(batch, len(left), encode_batch(batch, left))


def encode_batch(batch: StoredBatch, records: Sequence[Record]) -> bytes:
    """Encode a batch with `records`, which may be fewer than it counts.

    A control batch has its own record. A batch that lost all its records is encoded as Kafka
    leaves it: as a header alone.
    """
    if batch.is_control and batch.record_count:
        records = [_control_record(batch)]
    attributes, base_timestamp_ms = batch.attributes, batch.base_timestamp_ms
    if batch.record_count and not records:
        attributes &= ~(COMPRESSION_MASK | DELETE_HORIZON)
        base_timestamp_ms = NO_TIMESTAMP
    if batch.magic < 2:
        attributes &= COMPRESSION_MASK | (LOG_APPEND_TIME if batch.magic == 1 else 0)
        base_timestamp_ms = records[0].timestamp_ms if records else NO_TIMESTAMP
    fields = BatchFields(
        base_offset=_written_base_offset(batch),
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    return write_batch(fields, records, attributes & COMPRESSION_MASK)


def _written_base_offset(batch: StoredBatch) -> int:
    return batch.base_offset if batch.header_base_offset is None else batch.header_base_offset


def _control_record(batch: StoredBatch) -> Record:
    offset = _written_base_offset(batch)
    return Record(offset, batch.max_timestamp_ms, batch.control_key, batch.control_value)


def _times_ms(batches: Sequence[StoredBatch], rows: pa.Table) -> Int64s:
    """Return the time that each record's delta leads to; -1 where no column holds it."""
    timestamp_ms = to_ms(rows["timestamp"])
    producer_timed = [batch.base_offset for batch in batches if batch.has_producer_times]
    if not producer_timed:
        return timestamp_ms
    is_own = np.isin(rows["batch"].to_numpy(), producer_timed)
    return np.where(is_own, to_ms(rows["event_time"]), timestamp_ms)


def _to_records(rows: pa.Table, times_ms: Int64s) -> Iterator[Record]:
    for start in range(0, rows.num_rows, ROWS_AT_ONCE):
        chunk = rows.slice(start, ROWS_AT_ONCE)
        times = times_ms[start : start + ROWS_AT_ONCE].tolist()
        names = ("offset", "key", "value", "attributes", "headers", "timestamp")
        columns = [_values(chunk, name) for name in names]
        for offset, key, value, attributes, headers, is_timed, time_ms in zip(
            *columns, times, strict=True
        ):
            if not is_timed:
                headers, time_ms = without_kept_time(headers, time_ms)
            yield Record(offset, time_ms, key, value, with_own_keys(headers), attributes)


def _values(chunk: pa.Table, name: str) -> list[Any]:
    if name == "headers":
        return [header_pairs(headers) for headers in chunk[name].to_pylist()]
    if name == "timestamp":
        return list(chunk[name].is_valid().to_pylist())
    return list(chunk[name].to_pylist())


def header_pairs(headers: Sequence[Mapping[str, Any]] | None) -> HeaderPairs:
    """Return a record's headers as they are written."""
    return [(header["key"].encode(), header["value"]) for header in headers or ()]


def without_kept_time(headers: HeaderPairs, time_ms: int) -> tuple[HeaderPairs, int]:
    """Remove the header that ingest adds for a timestamp that no column can hold."""
    if not headers or headers[-1][0] != TIMESTAMP_HEADER.encode():
        return headers, time_ms
    try:
        kept_ms = int(headers[-1][1] or b"")
    except ValueError:
        return headers, time_ms
    if -MAX_TIMESTAMP_MS <= kept_ms <= MAX_TIMESTAMP_MS:
        return headers, time_ms  # a column holds such a time: this header is the producer's own
    return headers[:-1], kept_ms if time_ms == NO_TIMESTAMP else time_ms
