"""The headers of batches as columns, their totals, and slices of sorted columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.kafka.batch_header import Batch
from ebbtide.kafka.transactions import OpenTransactions
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL
from ebbtide.state.logical_segments import Segment, SegmentStart

# A table is cut into slices in one pass: a filter per value would read all rows each time. Sorting
# copies every row, so rows that are in order are not sorted.


def slices_by_value(rows: pa.Table, column: str) -> Iterator[tuple[Any, pa.Table]]:
    """Yield each value of a column with its rows as a slice. Equal values must be consecutive."""
    if not rows.num_rows:
        return
    rows = rows.combine_chunks()
    encoded = rows.column(column).combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1), len(codes)]
    for start, end in pairwise(edges):
        yield encoded.dictionary[codes[start]].as_py(), rows.slice(start, end - start)


def sorted_by(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows ordered by the columns; no copy is made if they already ascend."""
    if is_ascending(rows, columns):
        return rows
    return rows.sort_by([(name, "ascending") for name in columns])


def is_ascending(rows: pa.Table, columns: Sequence[str]) -> bool:
    """Return whether each row is above the previous one, by columns of numbers; False for nulls."""
    is_above = np.zeros(max(rows.num_rows - 1, 0), np.bool_)
    for name in columns:
        if rows[name].null_count:
            return False
        values = rows[name].to_numpy()
        if np.any(~is_above & (values[1:] < values[:-1])):
            return False
        is_above |= values[1:] > values[:-1]
    return bool(is_above.all())


# The columns of a record that are read.
TIMES = ("offset", "batch", "timestamp", "event_time", "append_time")
TOTALS = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("records", pa.int64()),
        ("untimed", pa.int64()),
        ("event_times_missing", pa.int64()),
        ("event_ms", pa.int64()),
        ("append_ms", pa.int64()),
    ]
)
KEYS = ("partition", "base_offset")
_NONE = np.iinfo(np.int64).min


def batch_totals(partition: int, rows: pa.Table, future_limit_ms: int) -> pa.Table:
    """Return a row of TOTALS per batch. The rows have the columns TIMES and are in offset order.

    An event time too far in the future counts as the append time. A batch without times gets null.
    """
    if not rows.num_rows:
        return TOTALS.empty_table()
    batches = rows["batch"].to_numpy()
    starts = np.flatnonzero(np.append(True, batches[1:] != batches[:-1]))
    append_ms, event_ms = _ms(rows["append_time"]), _ms(rows["event_time"])
    has_both = (append_ms != _NONE) & (event_ms != _NONE)
    is_future = has_both & (event_ms - append_ms > future_limit_ms)
    is_untimed = rows["timestamp"].is_null().to_numpy().astype(np.int64)
    count = len(starts)
    return pa.table(
        [
            np.full(count, partition, np.int32),
            batches[starts],
            np.diff(starts, append=len(batches)),
            np.add.reduceat(is_untimed, starts),
            np.zeros(count, np.int64),
            _largest(np.where(is_future, append_ms, event_ms), starts),
            _largest(append_ms, starts),
        ],
        schema=TOTALS,
    )


def together_by_batch(parts: Sequence[pa.Table]) -> pa.Table:
    """Join the parts into one table; a batch with records in several parts gets one row."""
    rows = pa.concat_tables([TOTALS.empty_table(), *parts])
    keys = list(KEYS)
    if is_ascending(rows, keys):
        return rows
    summed = ["records", "untimed", "event_times_missing"]
    largest = ["event_ms", "append_ms"]
    totals = rows.group_by(keys).aggregate(
        [*((name, "sum") for name in summed), *((name, "max") for name in largest)]
    )
    return totals.rename_columns([*keys, *summed, *largest]).cast(TOTALS)


def with_totals(batches: pa.Table, totals: pa.Table) -> pa.Table:
    """Return batches by partition and offset, with their totals; null without records."""
    batches = sorted_by(batches, KEYS)
    of_partitions = dict(slices_by_value(sorted_by(totals, KEYS), KEYS[0]))
    parts = [
        _beside(rows, of_partitions.get(partition, totals.slice(0, 0)))
        for partition, rows in slices_by_value(batches, KEYS[0])
    ]
    return pa.concat_tables(parts)


def _beside(batches: pa.Table, totals: pa.Table) -> pa.Table:
    """Add each batch's totals as columns; both tables are of one partition and ascend."""
    bases, wanted = totals["base_offset"].to_numpy(), batches["base_offset"].to_numpy()
    at = np.searchsorted(bases, wanted)
    is_missing = np.append(bases, -1)[at] != wanted
    rows = totals.drop_columns(list(KEYS)).take(pa.array(at, mask=is_missing))
    return pa.table([*batches.columns, *rows.columns], [*batches.column_names, *rows.column_names])


def _ms(times: pa.ChunkedArray) -> Int64s:
    """Return ms since the epoch; _NONE for null."""
    micros = times.cast(pa.int64())
    ms = micros.fill_null(0).to_numpy() // 1000
    return np.where(micros.is_null().to_numpy(), _NONE, ms)


def _largest(ms: Int64s, starts: Int64s) -> pa.Array:
    largest_ms = np.maximum.reduceat(ms, starts)
    return pa.array(largest_ms, mask=largest_ms == _NONE)


NOTHING = np.array([], np.int64)
COLUMNS = (*Batch._fields, "segment", "max_event_time_ms", "append_time_ms")


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """Batch rows of one partition in offset order: the columns of Batch, and more."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Int64s:
        """Return a column of integers, with -1 for null."""
        column = self.table[name]
        numbers = column.fill_null(-1) if column.null_count else column
        return np.array(numbers.to_numpy(), np.int64)

    def has_bit(self, bit: int) -> Bools:
        """Return for each batch whether its attributes have `bit` set."""
        return np.asarray(self.column("attributes") & bit, np.bool_)

    def where(self, mask: Bools) -> BatchHeaders:
        """Return the batches whose mask is true."""
        return self if mask.all() else BatchHeaders(self.table.filter(pa.array(mask)))

    def first(self, mask: Bools) -> BatchHeaders:
        """Return the first batch whose mask is true, or none."""
        return self.at(np.flatnonzero(mask)[:1])

    def batches(self) -> list[Batch]:
        """Return the batches as Python values."""
        columns = (self.table[name].to_pylist() for name in Batch._fields)
        return [Batch(*row) for row in zip(*columns, strict=True)]

    def at(self, rows: Int64s) -> BatchHeaders:
        """Return the batches at these row numbers."""
        return BatchHeaders(self.table.take(pa.array(rows)))

    def with_more(self, others: Iterable[BatchHeaders]) -> BatchHeaders:
        """Join these batches and more of the same log, each batch once, in offset order."""
        both = together([self, *(headers for headers in others if len(headers))])
        _, rows = np.unique(both.column("base_offset"), return_index=True)
        return both.at(rows)

    def split(self, count: int) -> tuple[BatchHeaders, BatchHeaders]:
        """Return the first `count` batches, and the rest."""
        return BatchHeaders(self.table.slice(0, count)), BatchHeaders(self.table.slice(count))

    @property
    def written_bases(self) -> Int64s:
        """The base offset in each batch's header."""
        written = pc.coalesce(self.table["header_base_offset"], self.table["base_offset"])
        return np.asarray(written.to_numpy(), np.int64).copy()

    @property
    def is_legacy(self) -> Bools:
        """For each batch, whether it is of magic 0 or 1."""
        return np.asarray(self.column("magic") < 2)

    @property
    def is_control(self) -> Bools:
        """For each batch, whether it holds a control record, such as a transaction marker."""
        return self.has_bit(CONTROL)

    @property
    def were_emptied_at_source(self) -> Bools:
        """For each batch, whether it is a marker without a record: Kafka reads only its header."""
        is_empty = self.column("record_count") == 0
        has_no_type = self.table["control_type"].is_null().to_numpy()
        return np.asarray(self.is_control & is_empty & has_no_type, np.bool_)

    def is_astride(self, offset: int) -> Bools:
        """Return for each batch whether it straddles the offset."""
        return (self.written_bases < offset) & (self.column("last_offset") >= offset)

    @property
    def is_in_transaction(self) -> Bools:
        """For each batch, whether it is transactional data or a control batch."""
        return self.has_bit(CONTROL | TRANSACTIONAL)

    @property
    def last_batches_of_producers(self) -> BatchHeaders:
        """The batches that determine each producer's last record."""
        return self.where(self.may_be_last_records)

    @property
    def may_be_last_records(self) -> Bools:
        """For each batch, whether it is its producer's last data or a marker after that."""
        producers = self.column("producer_id")
        may_be = producers != NO_PRODUCER_ID
        is_control, bases = self.is_control[may_be], self.column("base_offset")[may_be]
        ids, numbers = np.unique(producers[may_be], return_inverse=True)
        last_data = np.full(len(ids), -1, np.int64)
        np.maximum.at(last_data, numbers[~is_control], bases[~is_control])
        may_be[may_be] = np.where(
            is_control, bases > last_data[numbers], bases == last_data[numbers]
        )
        return np.asarray(may_be, np.bool_)

    def newest_of_producers(self, removed: Int64s = NOTHING) -> BatchHeaders:
        """Return each producer's last batch, in offset order.

        Batches at the base offsets `removed`, and markers emptied at the source, do not count.
        """
        may_be = (self.column("producer_id") != NO_PRODUCER_ID) & ~self.were_emptied_at_source
        rows = np.flatnonzero(may_be)
        rows = rows[~np.isin(self.column("base_offset")[rows], removed)][::-1]
        # np.unique returns the first of equal values, so the rows are in reverse order.
        _, firsts = np.unique(self.column("producer_id")[rows], return_index=True)
        return self.at(np.sort(rows[firsts]))


def headers_of(batches: Sequence[Batch]) -> BatchHeaders:
    """Return the batches as columns, with only the columns of Batch."""
    columns = {}
    for name in Batch._fields:
        of_type = pa.string() if name == "control_type" else pa.int64()
        columns[name] = pa.array([getattr(batch, name) for batch in batches], of_type)
    return BatchHeaders(pa.table(columns))


def together(parts: Sequence[BatchHeaders]) -> BatchHeaders:
    """Join the parts in this order."""
    tables = [part.table for part in parts]
    return BatchHeaders(pa.concat_tables(tables, promote_options="permissive").combine_chunks())


def segment_totals(
    headers: BatchHeaders, segments: Sequence[SegmentStart], log_start_offset: int = 0
) -> list[Segment]:
    """Return the logical segments with the totals of their batches.

    Batches before the first segment are retained only for their producers, and count for no
    segment.
    """
    bases = headers.column("base_offset")
    firsts = np.searchsorted(bases, [base for base, _ in segments])
    ends = [*firsts, len(bases)][1:]
    sizes, times = headers.column("size_bytes"), headers.column("max_timestamp_ms")
    event_times, append_times = (
        headers.column("max_event_time_ms"),
        headers.column("append_time_ms"),
    )
    counts = np.where(headers.is_control, 0, headers.column("record_count"))
    offsets_left = np.maximum(headers.column("last_offset") + 1 - log_start_offset, 0)
    hidden = np.where(bases < log_start_offset, np.maximum(counts - offsets_left, 0), 0)
    return [
        Segment(
            base,
            modified_ms,
            size_bytes=int(sizes[first:end].sum()),
            max_timestamp_ms=int(times[first:end].max(initial=-1)),
            first_batch_timestamp_ms=int(times[first]) if first < end else None,
            max_event_time_ms=int(event_times[first:end].max(initial=-1)),
            max_append_time_ms=int(append_times[first:end].max(initial=-1)),
            record_count=int(counts[first:end].sum()),
            hidden_count=int(hidden[first:end].sum()),
        )
        for (base, modified_ms), first, end in zip(segments, firsts, ends, strict=True)
    ]


def open_transactions(headers: BatchHeaders) -> OpenTransactions:
    """Return the transactions that are undecided at the end of the batches."""
    transactions = OpenTransactions()
    for batch in headers.where(headers.is_in_transaction).batches():
        transactions.append(batch)
    return transactions
