"""Find the rows of an adopted table that lie below the log start offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.rows import AdoptedRows, small_frame


class RowsBelow(NamedTuple):
    """Live rows below their log start offset: their positions by file, and counts by partition."""

    positions: dict[str, BitMap64]
    rows: Counter[int]


def find_below(rows: AdoptedRows, snapshot: int, starts: Mapping[int, int]) -> RowsBelow:
    """Return the rows of a snapshot below these offsets, given by partition."""
    frame = small_frame(rows.spark, list(starts.items()), ("of_partition", "start"))
    is_below = (F.col("partition") == F.col("of_partition")) & (F.col("offset") < F.col("start"))
    records = rows.at(snapshot).where(F.col("offset") < max(starts.values()))
    below = records.join(F.broadcast(frame), is_below)
    found = below.groupBy("file", "partition").agg(F.collect_list("position").alias("positions"))
    positions: dict[str, BitMap64] = {}
    counts: Counter[int] = Counter()
    table = found.toArrow()
    columns = (table["file"], table["partition"], table["positions"])
    for file, partition, of_file in zip(*columns, strict=True):
        places = BitMap64(of_file.values.to_numpy().astype(np.uint64))
        counts[partition.as_py()] += len(places)
        before = positions.get(file.as_py(), BitMap64())
        positions[file.as_py()] = before | places
    return RowsBelow(positions, counts)
