"""Cut a table into slices in one pass; a filter for each value would read all rows each time."""

from __future__ import annotations

from collections.abc import Iterator
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
