"""Choose which batches of a segment file a walk returns, so that it holds few of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ebbtide.numbers import MAX_LONG
from ebbtide.records.batch import BATCH_SCHEMA


class WantedBatches(NamedTuple):
    """The batches of a file that a walk returns: those that end at or above `first_offset`.

    Of those that end at or above `counted_from`, only `at_most` are returned. Below `first_offset`,
    those that share offsets with `compared` are returned, and the last one if no later one is.
    """

    first_offset: int = 0
    counted_from: int = 0
    at_most: int = MAX_LONG
    compared: tuple[int, int] | None = None  # [first, last]


class KeptBatches:
    """The wanted ones of a file's batches, which are added in offset order, as BATCH_SCHEMA."""

    def __init__(self, wanted: WantedBatches) -> None:
        self._wanted = wanted
        self._pieces: list[pa.RecordBatch] = []
        self._last: pa.RecordBatch | None = None  # where it is not among the pieces
        self.counted = 0
        self.is_cut = False  # whether a batch was left out because enough were there

    def add(self, batches: pa.RecordBatch) -> None:
        """Keep the wanted ones; none once there are enough."""
        if not batches.num_rows or self.is_cut:
            return
        lasts = batches.column("last_offset").to_numpy()
        first = int(np.searchsorted(lasts, self._wanted.first_offset))
        counted = int(np.searchsorted(lasts, self._wanted.counted_from))
        end = min(batches.num_rows, counted + self._wanted.at_most - self.counted)
        self.counted += max(0, end - counted)
        self.is_cut = end < batches.num_rows
        if self._wanted.compared is not None:
            self._keep_compared(batches.slice(0, first), *self._wanted.compared)
        if end > first:
            self._pieces.append(batches.slice(first, end - first))
            self._last = None
        elif end:
            self._last = batches.slice(end - 1, 1)

    def _keep_compared(self, batches: pa.RecordBatch, first: int, last: int) -> None:
        is_below = batches.column("last_offset").to_numpy() < first
        is_above = batches.column("base_offset").to_numpy() > last
        is_compared = ~(is_below | is_above)
        if is_compared.any():
            self._pieces.append(batches.filter(pa.array(is_compared)))

    def together(self) -> pa.RecordBatch:
        """Return the kept batches as one."""
        if self._last is None:
            return _together(self._pieces)
        last_base = self._last.column("base_offset")[0].as_py()
        if self._pieces and self._pieces[-1].column("base_offset")[-1].as_py() == last_base:
            return _together(self._pieces)
        return _together([*self._pieces, self._last])


def _together(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    columns = pa.Table.from_batches(pieces, BATCH_SCHEMA).combine_chunks().columns
    return pa.record_batch([column.combine_chunks() for column in columns], schema=BATCH_SCHEMA)
