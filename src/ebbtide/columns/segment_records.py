"""Records of one segment as columns, grouped by their batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ebbtide.records.arrays import Bools, Int64s, to_ms
from ebbtide.records.attributes import NO_TIMESTAMP
from ebbtide.records.files.segment_writer import header_pairs, without_kept_time

# The columns that a round reads of a record: never its value.
COLUMNS = (
    *("offset", "batch", "timestamp", "event_time", "append_time"),
    *("key", "is_tombstone", "size_bytes"),
)
# It reads the headers too where a timestamp is missing: one may keep it.
COLUMNS_OF_UNTIMED = (*COLUMNS, "headers")


class Records(NamedTuple):
    """Records of one segment in offset order; times in ms since the epoch, -1 where there is none.

    `batch_of` numbers the batches that hold any, whose base offsets are `bases`; batch i's records
    start at `starts[i]`.
    """

    offsets: Int64s
    keys: pa.ChunkedArray
    is_tombstone: Bools
    timestamps_ms: Int64s
    event_times_ms: Int64s
    size_bytes: Int64s
    bases: Int64s
    starts: Int64s
    batch_of: Int64s

    @classmethod
    def of(cls, rows: pa.Table, future_limit_ms: int) -> Records:
        """Group a table's rows as records; a too far future event time becomes the append time."""
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
        """How many records each batch has here."""
        return np.diff(self.starts, append=len(self.offsets))

    def sums(self, of_records: npt.NDArray[np.generic]) -> Int64s:
        """Return the sum over each batch's records."""
        return np.add.reduceat(of_records.astype(np.int64), self.starts)

    def largest(self, of_records: Int64s) -> Int64s:
        """Return the largest over each batch's records."""
        return np.maximum.reduceat(of_records, self.starts)


def timestamps_of(rows: pa.Table) -> Int64s:
    """Return each record's timestamp in ms since the epoch, -1 for none.

    A timestamp that the column cannot hold is read from the header that keeps it, if the rows
    have their headers.
    """
    timestamps_ms = to_ms(rows["timestamp"])
    if "headers" in rows.column_names:
        untimed = np.flatnonzero(rows["timestamp"].is_null().to_numpy())
        headers = pc.take(rows["headers"], pa.array(untimed)).to_pylist()
        for row, of_record in zip(untimed.tolist(), headers, strict=True):
            timestamps_ms[row] = without_kept_time(header_pairs(of_record), NO_TIMESTAMP)[1]
    return timestamps_ms


def record_bytes(records: Records, bases: Int64s, bases_ms: Int64s) -> Int64s:
    """Return the bytes of each v2 record, its length field included."""
    return v2_record_bytes(
        records.timestamps_ms - bases_ms[records.batch_of],
        records.offsets - bases[records.batch_of],
        records.size_bytes,
    )


def v2_record_bytes(
    timestamp_deltas_ms: Int64s, offset_deltas: Int64s, size_bytes: Int64s
) -> Int64s:
    """Return bytes of v2 records whose key, value and headers take `size_bytes`."""
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
