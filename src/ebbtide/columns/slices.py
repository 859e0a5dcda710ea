"""Cut a table into slices in one pass; a filter for each value would read all rows each time.

Sorting copies every row, so that rows that come in order are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa


def slices_by_value(rows: pa.Table, column: str) -> Iterator[tuple[Any, pa.Table]]:
    """Yield each value of a column with its rows as a slice; equal values must lie together."""
    if not rows.num_rows:
        return
    rows = rows.combine_chunks()
    encoded = rows.column(column).combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1), len(codes)]
    for start, end in pairwise(edges):
        yield encoded.dictionary[codes[start]].as_py(), rows.slice(start, end - start)


def sorted_by(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows ordered by the columns; as they are where each is above the one before."""
    if is_ascending(rows, columns):
        return rows
    return rows.sort_by([(name, "ascending") for name in columns])


def is_ascending(rows: pa.Table, columns: Sequence[str]) -> bool:
    """Return whether each row is above the one before, by columns of numbers; False for nulls."""
    is_above = np.zeros(max(rows.num_rows - 1, 0), np.bool_)
    for name in columns:
        if rows[name].null_count:
            return False
        values = rows[name].to_numpy()
        if np.any(~is_above & (values[1:] < values[:-1])):
            return False
        is_above |= values[1:] > values[:-1]
    return bool(is_above.all())
