"""Turn rows of Spark's Kafka source into records-table rows, cut into batches and segments.

The source does not return the brokers' record batches. So batches are cut here, with as many
records as fit. Segments begin as in Kafka's LogSegment.shouldRoll.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.kafka.batch_header import HEADER_BYTES
from ebbtide.moments import earlier, later
from ebbtide.numbers import MAX_INT
from ebbtide.records.arrays import Bools, Int64s, to_ms
from ebbtide.records.attributes import (
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from ebbtide.records.batch import BATCH_SCHEMA, HEADERS_TYPE, RECORD_SCHEMA
from ebbtide.records.log_directory_writer import header_pairs, without_kept_time
from ebbtide.settings.config import TopicConfig

_TIME = pa.timestamp("us", tz="UTC")
INGESTED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("segment", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", _TIME),
        ("event_time", _TIME),
        ("append_time", _TIME),
        *(RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "attributes")),
        ("is_tombstone", pa.bool_()),
        ("tombstone_by", pa.string()),
        ("size_bytes", pa.int32()),
    ]
)


# The columns of a record that a round reads: never its value.
COLUMNS = (
    *("offset", "batch", "timestamp", "event_time", "append_time"),
    *("key", "is_tombstone", "size_bytes"),
)
# If a timestamp is missing, a round also reads the headers: one may have the timestamp.
COLUMNS_OF_UNTIMED = (*COLUMNS, "headers")


class Records(NamedTuple):
    """Records of one segment in offset order; times in ms since the epoch, -1 for none."""

    offsets: Int64s
    keys: pa.ChunkedArray
    is_tombstone: Bools
    timestamps_ms: Int64s
    event_times_ms: Int64s
    size_bytes: Int64s
    bases: Int64s  # base offsets of the batches with a record
    starts: Int64s  # of each of these batches: the row of its first record
    batch_of: Int64s  # of each record: the index of its batch in `bases`

    @classmethod
    def of(cls, rows: pa.Table, future_limit_ms: int) -> Records:
        """Read rows of a records table; a too far future event time becomes the append time."""
        batches = rows["batch"].to_numpy()
        is_first = np.ones(len(batches), np.bool_)
        is_first[1:] = batches[1:] != batches[:-1]
        starts = np.flatnonzero(is_first)
        event_ms, append_ms = to_ms(rows["event_time"]), to_ms(rows["append_time"])
        is_future = (append_ms >= 0) & (event_ms - append_ms > future_limit_ms)
        return cls(
            rows["offset"].to_numpy(),
            rows["key"],
            rows["is_tombstone"].to_numpy(),
            timestamps_of(rows),
            np.where(is_future, append_ms, event_ms),
            rows["size_bytes"].to_numpy().astype(np.int64),
            batches[starts],
            starts,
            np.cumsum(is_first) - 1,
        )

    @property
    def counts(self) -> Int64s:
        """The number of records in each batch."""
        return np.diff(self.starts, append=len(self.offsets))

    def sums(self, of_records: npt.NDArray[np.generic]) -> Int64s:
        """Return the sum over each batch's records."""
        return np.add.reduceat(of_records.astype(np.int64), self.starts)

    def largest(self, of_records: Int64s) -> Int64s:
        """Return the largest over each batch's records."""
        return np.maximum.reduceat(of_records, self.starts)


def timestamps_of(rows: pa.Table) -> Int64s:
    """Return each record's timestamp in ms since the epoch, -1 for none.

    If the rows have headers, a timestamp that does not fit into the column is read from its header.
    """
    timestamps_ms = to_ms(rows["timestamp"])
    if "headers" in rows.column_names:
        untimed = np.flatnonzero(rows["timestamp"].is_null().to_numpy())
        headers = pc.take(rows["headers"], pa.array(untimed)).to_pylist()
        for row, of_record in zip(untimed.tolist(), headers, strict=True):
            timestamps_ms[row] = without_kept_time(header_pairs(of_record), NO_TIMESTAMP)[1]
    return timestamps_ms


def record_bytes(records: Records, bases: Int64s, bases_ms: Int64s) -> Int64s:
    """Return the size of each v2 record, its length field included."""
    return v2_record_bytes(
        records.timestamps_ms - bases_ms[records.batch_of],
        records.offsets - bases[records.batch_of],
        records.size_bytes,
    )


def v2_record_bytes(
    timestamp_deltas_ms: Int64s, offset_deltas: Int64s, size_bytes: Int64s
) -> Int64s:
    """Return the sizes of v2 records whose key, value and headers take `size_bytes`."""
    body = 1 + varint_bytes(timestamp_deltas_ms) + varint_bytes(offset_deltas) + size_bytes
    return body + varint_bytes(body)


def varint_bytes(values: Int64s) -> Int64s:
    """Return the lengths of zigzag varints, in bytes."""
    magnitudes = np.maximum(values, -values - 1)
    largest = int(magnitudes.max(initial=0))
    lengths = np.ones(len(values), np.int64)
    for bits in range(6, 63, 7):
        if largest < 1 << bits:
            break
        lengths += magnitudes >= 1 << bits
    return lengths


# The columns of Spark's Kafka source.
SOURCE_COLUMNS = ("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
STAMPED = 1  # a timestampType: LogAppendTime
MIN_RECORD_BYTES = 4  # attributes, two deltas and the length, without key, value and headers


class AppendedBatch(NamedTuple):
    """The properties of a new batch that decide whether a segment rolls; times in ms."""

    base_offset: int
    last_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: int


class ActiveSegment(NamedTuple):
    """The properties of the active segment that decide whether it rolls; times in ms."""

    base_offset: int
    created_ms: int
    size_bytes: int = 0
    first_timestamp_ms: int = NO_TIMESTAMP  # of its first record

    def is_old_at(self, timestamp_ms: int, config: TopicConfig, now_ms: int) -> bool:
        """Return whether segment.ms has passed since the first record, or by the clock without one.

        Kafka compares the largest timestamp of the first batch. Batches here are larger than a
        producer's. So the first record's timestamp is compared, to roll segments as small batches
        would.
        """
        if self.first_timestamp_ms >= 0:
            return self.first_timestamp_ms < earlier(timestamp_ms, config.segment_ms)
        return self.size_bytes > 0 and self.created_ms < earlier(now_ms, config.segment_ms)

    def must_roll(self, batch: AppendedBatch, config: TopicConfig, now_ms: int) -> bool:
        """Return whether the batch begins a new segment (LogSegment.shouldRoll)."""
        # A single record may be larger than a segment here; Kafka would have refused it.
        is_full = self.size_bytes > 0 and self.size_bytes + batch.size_bytes > config.segment_bytes
        is_far = batch.last_offset - self.base_offset > MAX_INT
        return is_full or is_far or self.is_old_at(batch.max_timestamp_ms, config, now_ms)

    def with_batch(self, batch: AppendedBatch) -> ActiveSegment:
        """Return the segment with the batch appended."""
        first_ms = self.first_timestamp_ms if self.size_bytes else batch.first_timestamp_ms
        size_bytes = self.size_bytes + batch.size_bytes
        return self._replace(size_bytes=size_bytes, first_timestamp_ms=first_ms)


class LiveRows(NamedTuple):
    """Records of one partition in offset order; times in ms since the epoch, -1 for none."""

    offsets: Int64s
    timestamps_ms: Int64s
    is_stamped: Bools  # by the broker's clock
    size_bytes: Int64s

    @classmethod
    def of(cls, table: pa.Table) -> LiveRows:
        """Read rows of the source."""
        return cls(
            table["offset"].to_numpy(),
            timestamps_of(table),
            table["timestampType"].to_numpy() == STAMPED,
            payload_bytes(table),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def batch_of(self, span: slice) -> AppendedBatch:
        """Return these rows as one batch."""
        times, offsets = self.timestamps_ms[span], self.offsets[span]
        sizes = v2_record_bytes(times - times[0], offsets - offsets[0], self.size_bytes[span])
        return AppendedBatch(
            int(offsets[0]),
            int(offsets[-1]),
            int(times[0]),
            int(times.max()),
            HEADER_BYTES + int(sizes.sum()),
        )

    def splits(self) -> Int64s:
        """Return the rows at which a new batch must begin.

        All records of a batch share the flag for the broker's clock. If it is set, they share one
        timestamp.
        """
        is_other = self.is_stamped[1:] != self.is_stamped[:-1]
        is_later = self.is_stamped[1:] & (self.timestamps_ms[1:] != self.timestamps_ms[:-1])
        return np.flatnonzero(is_other | is_later) + 1


class Appender:
    """Appends rows to one partition's log, in offset order, and assigns batches and segments."""

    def __init__(self, active: ActiveSegment, config: TopicConfig, now: datetime) -> None:
        self._active = active
        self._config = config
        self._now = pa.scalar(now, _TIME)
        self._now_ms = int(now.timestamp() * 1000)
        self._waiting: pa.Table | None = None  # rows of a batch that may still grow
        self._end_offset = 0  # after the last row appended

    def append(self, table: pa.Table, *, is_last: bool = False) -> pa.Table:
        """Return records-table rows of all complete batches; keep the rest for the next call.

        A row with the same offset as the previous row is skipped.
        """
        table = self._without_repeats(table)
        if self._waiting is not None:
            table = pa.concat_tables([self._waiting, table])
        rows = LiveRows.of(table)
        bases, segments, counts = [], [], []
        for batch, count in self._batches(rows, is_last=is_last):
            if self._active.must_roll(batch, self._config, self._now_ms):
                self._active = ActiveSegment(batch.base_offset, self._now_ms)
            self._active = self._active.with_batch(batch)
            bases.append(batch.base_offset)
            segments.append(self._active.base_offset)
            counts.append(count)
        done = sum(counts)
        self._waiting = table.slice(done)
        return to_records(
            table.slice(0, done),
            np.repeat(np.array(bases, np.int64), counts),
            np.repeat(np.array(segments, np.int64), counts),
            self._now,
        )

    def _without_repeats(self, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table
        offsets = table["offset"].to_numpy()
        is_new = np.diff(offsets, prepend=self._end_offset - 1) > 0
        self._end_offset = int(offsets[-1]) + 1
        return table if is_new.all() else table.filter(pa.array(is_new))

    def _batches(self, rows: LiveRows, *, is_last: bool) -> Iterator[tuple[AppendedBatch, int]]:
        """Yield each batch with its number of rows; unless `is_last`, not one that may grow."""
        splits = np.append(rows.splits(), len(rows))
        least = np.cumsum(rows.size_bytes + MIN_RECORD_BYTES)
        start = 0
        while start < len(rows):
            split = int(splits[np.searchsorted(splits, start, side="right")])
            before = int(least[start - 1]) if start else 0
            reach = int(np.searchsorted(least, before + self._max_batch_bytes, side="right")) + 1
            count = self._fitting(rows, slice(start, min(split, reach)))
            if start + count == len(rows) and not is_last:
                return
            yield rows.batch_of(slice(start, start + count)), count
            start += count

    def _fitting(self, rows: LiveRows, span: slice) -> int:
        """Return the number of rows that fit into one batch without a roll, at least one."""
        times, offsets = rows.timestamps_ms[span], rows.offsets[span]
        deltas = offsets - offsets[0]
        sizes = v2_record_bytes(times - times[0], deltas, rows.size_bytes[span])
        fits = (HEADER_BYTES + np.cumsum(sizes) <= self._max_batch_bytes) & (deltas <= MAX_INT)
        first_ms = self._active.first_timestamp_ms
        if first_ms < 0 or self._active.is_old_at(int(times[0]), self._config, self._now_ms):
            first_ms = int(times[0])
        if first_ms >= 0:
            fits &= times <= later(first_ms, self._config.segment_ms)
        return max(1, int(np.argmin(np.append(fits, np.False_))))

    @property
    def _max_batch_bytes(self) -> int:
        return min(self._config.max_message_bytes, self._config.segment_bytes)


def payload_bytes(table: pa.Table) -> Int64s:
    """Return the column `size_bytes`: key, value and headers as v2 encodes them.

    A header that ingest added for a timestamp does not count.
    """
    headers = _own_headers(table)
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy().astype(np.int64)
    flat = headers.flatten()
    names, values = (pc.struct_field(flat, name) for name in ("key", "value"))
    of_each = nullable_bytes(pc.binary_length(names)) + nullable_bytes(pc.binary_length(values))
    ends = np.cumsum(counts)
    before = np.concatenate([[0], np.cumsum(of_each)])
    of_headers = before[ends] - before[ends - counts]
    key_and_value_bytes = (
        nullable_bytes(pc.binary_length(table[name])) for name in ("key", "value")
    )
    return np.asarray(sum(key_and_value_bytes) + varint_bytes(counts) + of_headers, np.int64)


def _own_headers(table: pa.Table) -> pa.Array:
    headers = table["headers"].combine_chunks()
    untimed = np.flatnonzero(table["timestamp"].is_null().to_numpy())
    if not untimed.size:
        return headers
    of_records = headers.to_pylist()
    for row in untimed.tolist():
        count = len(without_kept_time(header_pairs(of_records[row]), NO_TIMESTAMP)[0])
        of_records[row] = (of_records[row] or [])[:count]
    return pa.array(of_records, HEADERS_TYPE)


def nullable_bytes(lengths: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return the sizes of byte strings of these lengths, each with its varint; null is -1."""
    sizes = pc.fill_null(lengths, -1).to_numpy().astype(np.int64)
    return np.asarray(varint_bytes(sizes) + np.maximum(sizes, 0), np.int64)


def to_records(table: pa.Table, batches: Int64s, segments: Int64s, now: pa.Scalar) -> pa.Table:
    """Convert rows of the source to rows of the records table."""
    count = table.num_rows
    is_timed = pc.not_equal(pc.cast(table["timestamp"], pa.int64()), NO_TIMESTAMP * 1000)
    timestamp = pc.if_else(is_timed, table["timestamp"], pa.scalar(None, _TIME))
    is_stamped = pc.equal(table["timestampType"], STAMPED)
    empty = pa.scalar([], HEADERS_TYPE)
    return pa.table(
        {
            "partition": table["partition"],
            "offset": table["offset"],
            "segment": segments,
            "batch": batches,
            "timestamp": timestamp,
            "event_time": timestamp,
            "append_time": pc.if_else(is_stamped, pc.coalesce(timestamp, now), now),
            "key": table["key"],
            "value": table["value"],
            "headers": pc.coalesce(table["headers"].cast(HEADERS_TYPE), empty),
            "attributes": pa.array(np.zeros(count, np.int32)),
            "is_tombstone": pa.repeat(pa.scalar(False), count),
            "tombstone_by": pa.nulls(count, pa.string()),
            "size_bytes": payload_bytes(table).astype(np.int32),
        }
    )


def to_headers(records: pa.Table, is_stamped: Bools) -> pa.Table:
    """Make each batch's header from its records, with its partition and segment.

    `records` are rows of the records table by partition and offset. `is_stamped` is true for
    records with the broker's timestamp. The headers have no producer.
    """
    partitions, batches = records["partition"].to_numpy(), records["batch"].to_numpy()
    offsets, times = records["offset"].to_numpy(), timestamps_of(records)
    is_first = np.ones(len(batches), np.bool_)
    is_first[1:] = (batches[1:] != batches[:-1]) | (partitions[1:] != partitions[:-1])
    is_again = np.zeros(len(batches), np.bool_)
    is_again[1:] = ~is_first[1:] & (offsets[1:] == offsets[:-1])
    starts = np.flatnonzero(is_first)
    batch_of = np.cumsum(is_first) - 1
    lasts = np.append(starts[1:], len(batches))[: len(starts)] - 1
    sizes = v2_record_bytes(
        times - times[starts][batch_of],
        offsets - batches,
        records["size_bytes"].to_numpy().astype(np.int64),
    )
    count = len(starts)
    known = {
        "base_offset": batches[starts],
        "last_offset": offsets[lasts],
        "magic": np.full(count, 2),
        "attributes": np.where(is_stamped[starts], LOG_APPEND_TIME, 0),
        "base_timestamp_ms": times[starts],
        "max_timestamp_ms": np.maximum.reduceat(times, starts),
        "producer_id": np.full(count, NO_PRODUCER_ID),
        "producer_epoch": np.full(count, NO_PRODUCER_EPOCH),
        "base_sequence": np.full(count, NO_SEQUENCE),
        "record_count": np.add.reduceat(~is_again, starts, dtype=np.int64),
        "size_bytes": HEADER_BYTES + np.add.reduceat(sizes, starts),
    }
    columns = {
        field.name: pa.array(known[field.name], pa.int64()).cast(field.type)
        if field.name in known
        else pa.nulls(count, field.type)
        for field in BATCH_SCHEMA
    }
    where = {name: records[name].take(pa.array(starts)) for name in ("partition", "segment")}
    return pa.table({**where, **columns})
