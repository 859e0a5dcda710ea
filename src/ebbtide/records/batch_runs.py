"""Neighbouring batches of magic 2 in one buffer, their headers as columns.

With one record a batch, a log has as many headers as records: no Python object is made for one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebbtide.records.arrays import Bools, Int64s
from ebbtide.records.batch import BATCH_SCHEMA, HEADER, LOG_OVERHEAD_BYTES, BatchHeader

# Fewer are as fast one by one.
LEAST_BATCHES = 16

_LENGTH = struct.Struct(">i")
_LENGTH_AT, _MAGIC_AT, _FLAGS_AT = 8, 16, 22
_FORMATS = (">i8", ">i4", ">i4", "i1", ">u4", ">u2", ">i4", *(3 * [">i8"]), ">i2", ">i4", ">i4")
_HEADER = np.dtype(list(zip(BatchHeader._fields, _FORMATS, strict=True)))
assert _HEADER.itemsize == HEADER.size


class BatchRun(NamedTuple):
    """Batches one after another, as HEADER says them; where each begins in the data."""

    position: int  # of the data in the file
    data: memoryview
    starts: Int64s
    headers: npt.NDArray[Any]

    def column(self, name: str) -> Int64s:
        """Return a field of BatchHeader of each batch."""
        return self.headers[name].astype(np.int64)

    @property
    def sizes(self) -> Int64s:
        """The bytes that each batch takes in the file."""
        return self.column("length") + LOG_OVERHEAD_BYTES

    @property
    def end(self) -> int:
        """The position in the file after the last batch."""
        return int(self.position + self.starts[-1] + self.sizes[-1])

    def first(self, count: int) -> BatchRun:
        """Return the first `count` of them."""
        return self.between(0, count)

    def between(self, begin: int, end: int) -> BatchRun:
        """Return those with these numbers, counted from 0."""
        return self._replace(starts=self.starts[begin:end], headers=self.headers[begin:end])

    def where(self, mask: Bools) -> BatchRun:
        """Return the batches for which the mask is true."""
        return self._replace(starts=self.starts[mask], headers=self.headers[mask])

    def chunks(self, rows: int, size_bytes: int) -> Iterator[BatchRun]:
        """Yield parts of about `rows` records or `size_bytes`, whichever is reached first."""
        after = np.cumsum(self.column("record_count")), np.cumsum(self.sizes)
        at, count = 0, len(self.starts)
        while at < count:
            before = [of[at - 1] if at else 0 for of in after]
            ends = [
                int(np.searchsorted(of, was + limit))
                for of, was, limit in zip(after, before, (rows, size_bytes), strict=True)
            ]
            end = min(max(at, min(ends)) + 1, count)
            yield self.between(at, end)
            at = end

    def rows(self) -> pa.RecordBatch:
        """Return the batches as BATCH_SCHEMA; none is a control batch."""
        bases = self.column("base_offset")
        derived = {
            "position": self.position + self.starts,
            "last_offset": bases + self.column("last_offset_delta"),
            "size_bytes": self.sizes,
        }
        return pa.record_batch(
            [
                pa.nulls(len(self.starts), field.type)
                if field.name.startswith("control_")
                else pa.array(
                    derived[field.name] if field.name in derived else self.column(field.name)
                ).cast(field.type)
                for field in BATCH_SCHEMA
            ],
            schema=BATCH_SCHEMA,
        )


def find_run(data: memoryview, position: int, max_batch_bytes: int, others: int) -> BatchRun | None:
    """Return the whole batches at the beginning of the data; None for fewer than LEAST_BATCHES.

    They end before one whose attributes have a bit of `others`, or that may be no batch.
    """
    starts: list[int] = []
    at, size_bytes, length_at = 0, len(data), _LENGTH.unpack_from
    while at + HEADER.size <= size_bytes:
        length = LOG_OVERHEAD_BYTES + length_at(data, at + _LENGTH_AT)[0]
        is_whole = HEADER.size <= length <= max_batch_bytes and at + length <= size_bytes
        if not is_whole or data[at + _MAGIC_AT] != 2 or data[at + _FLAGS_AT] & others:
            break
        starts.append(at)
        at += length
    if len(starts) < LEAST_BATCHES:
        return None
    places = np.array(starts, np.int64)
    cells = np.frombuffer(data, np.uint8)[places[:, np.newaxis] + np.arange(HEADER.size)]
    return BatchRun(position, data, places, cells.view(_HEADER)[:, 0])
