"""Batch headers as columns: tests on all of them, and the few batches that need rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.log.batch_header import Batch
from ebbtide.log.logical_segments import Segment, SegmentStart
from ebbtide.log.transactions import OpenTransactions
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.attributes import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL

NOTHING = np.array([], np.int64)
COLUMNS = (*Batch._fields, "segment", "max_event_time_ms", "append_time_ms")


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """Batch rows of one partition in offset order: the columns of Batch, and some more."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Int64s:
        """Return a column of integers; -1 where there is none."""
        column = self.table[name]
        numbers = column.fill_null(-1) if column.null_count else column
        return np.array(numbers.to_numpy(), np.int64)

    def has_bit(self, bit: int) -> Bools:
        """Return for each batch whether its attributes have `bit` set."""
        return np.asarray(self.column("attributes") & bit, np.bool_)

    def where(self, mask: Bools) -> BatchHeaders:
        """Return the batches for which the mask is true."""
        return self if mask.all() else BatchHeaders(self.table.filter(pa.array(mask)))

    def first(self, mask: Bools) -> BatchHeaders:
        """Return the first batch for which the mask is true, if any."""
        return self.at(np.flatnonzero(mask)[:1])

    def batches(self) -> list[Batch]:
        """Return all of them as values."""
        columns = (self.table[name].to_pylist() for name in Batch._fields)
        return [Batch(*row) for row in zip(*columns, strict=True)]

    def at(self, rows: Int64s) -> BatchHeaders:
        """Return the batches at these row numbers."""
        return BatchHeaders(self.table.take(pa.array(rows)))

    def with_more(self, others: Iterable[BatchHeaders]) -> BatchHeaders:
        """Join these and others of the same log, each batch once, in offset order."""
        both = together([self, *(of for of in others if len(of))])
        _, rows = np.unique(both.column("base_offset"), return_index=True)
        return both.at(rows)

    def split(self, count: int) -> tuple[BatchHeaders, BatchHeaders]:
        """Return the first `count`, and the others."""
        return BatchHeaders(self.table.slice(0, count)), BatchHeaders(self.table.slice(count))

    @property
    def written_bases(self) -> Int64s:
        """The base offset that each header holds."""
        written = pc.coalesce(self.table["header_base_offset"], self.table["base_offset"])
        return np.asarray(written.to_numpy(), np.int64).copy()

    @property
    def is_legacy(self) -> Bools:
        """Whether each batch is of magic 0 or 1."""
        return np.asarray(self.column("magic") < 2)

    @property
    def is_control(self) -> Bools:
        """Whether each batch holds a control record, such as a transaction marker."""
        return self.has_bit(CONTROL)

    @property
    def were_emptied_at_source(self) -> Bools:
        """Whether each is a marker emptied at the source: Kafka too reads only its header."""
        is_empty = self.column("record_count") == 0
        has_no_type = self.table["control_type"].is_null().to_numpy()
        return np.asarray(self.is_control & is_empty & has_no_type, np.bool_)

    def is_astride(self, offset: int) -> Bools:
        """Return which batches begin below the offset and end at or after it."""
        return (self.written_bases < offset) & (self.column("last_offset") >= offset)

    @property
    def is_in_transaction(self) -> Bools:
        """Whether each is transactional data or a control batch."""
        return self.has_bit(CONTROL | TRANSACTIONAL)

    @property
    def last_batches_of_producers(self) -> BatchHeaders:
        """The batches that tell each producer's last record: its last data, markers after it."""
        return self.where(self.may_be_last_records)

    @property
    def may_be_last_records(self) -> Bools:
        """Whether each batch is its producer's last data or a marker after it."""
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

        Batches at the base offsets `removed` are left out, and markers emptied at the source.
        """
        may_be = (self.column("producer_id") != NO_PRODUCER_ID) & ~self.were_emptied_at_source
        rows = np.flatnonzero(may_be)
        rows = rows[~np.isin(self.column("base_offset")[rows], removed)][::-1]
        # np.unique returns the first of equal values, so the rows are in reverse order.
        _, firsts = np.unique(self.column("producer_id")[rows], return_index=True)
        return self.at(np.sort(rows[firsts]))


def headers_of(batches: Sequence[Batch]) -> BatchHeaders:
    """Return the batches as columns, those of Batch alone."""
    columns = {}
    for name in Batch._fields:
        of_type = pa.string() if name == "control_type" else pa.int64()
        columns[name] = pa.array([getattr(batch, name) for batch in batches], of_type)
    return BatchHeaders(pa.table(columns))


def together(parts: Sequence[BatchHeaders]) -> BatchHeaders:
    """Join the parts, one after another."""
    tables = [part.table for part in parts]
    return BatchHeaders(pa.concat_tables(tables, promote_options="permissive").combine_chunks())


def segment_totals(
    headers: BatchHeaders, segments: Sequence[SegmentStart], log_start_offset: int = 0
) -> list[Segment]:
    """Return the logical segments with the totals of their batches.

    Batches before the first segment are kept only for their producers and count for no segment.
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
    """Return the transactions that the batches leave undecided."""
    transactions = OpenTransactions()
    for batch in headers.where(headers.is_in_transaction).batches():
        transactions.append(batch)
    return transactions
