"""Numbers in rows, such as offsets, as bitmaps: some thousand rows become one on their way here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# Of the bitmaps that Spark's function builds.
_BITS = 15


def number_sets(
    rows: DataFrame, keys: Sequence[str], number: str
) -> dict[tuple[Any, ...], BitMap64]:
    """Return the numbers, which are not negative, of the rows with the same keys."""
    of_row = F.col(number).cast("long")
    bitmaps = rows.groupBy(*keys, F.shiftright(of_row, _BITS).alias("_place")).agg(
        F.bitmap_construct_agg(of_row.bitwiseAND(F.lit((1 << _BITS) - 1))).alias("_bits")
    )
    sets: dict[tuple[Any, ...], BitMap64] = {}
    for *of_keys, place, bits in bitmaps.toLocalIterator():
        is_set = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        numbers = np.flatnonzero(is_set).astype(np.uint64) + np.uint64(place << _BITS)
        of_group = sets.setdefault(tuple(of_keys), BitMap64())
        of_group |= BitMap64(numbers)
    return sets
