"""Find rows of an adopted table that leave: those below the log start offsets, and old ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.log.logical_segments import SegmentStart
from ebbtide.spark.conditions import any_column

_Numbers = npt.NDArray[np.uint64]


class OldRows(NamedTuple):
    """The offsets [start, end) of a partition in which rows of an earlier time leave; ms."""

    start: int
    end: int
    before_ms: int


@dataclass(slots=True)
class PlacedRows:
    """Live rows: their positions by file, and the offset of each by partition, in no order."""

    positions: dict[str, BitMap64] = field(default_factory=dict)
    offsets: dict[int, _Numbers] = field(default_factory=dict)

    @property
    def rows(self) -> Counter[int]:
        """How many there are, by partition."""
        return Counter({partition: len(of) for partition, of in self.offsets.items()})

    def by_segment(self, partition: int, segments: Sequence[SegmentStart]) -> Counter[int]:
        """Count those of a partition by the base offset of their segment; others are left out."""
        bases = np.array([segment.base_offset for segment in segments], np.int64)
        offsets = self.offsets.get(partition, np.array([], np.uint64)).astype(np.int64)
        places = np.searchsorted(bases, offsets, side="right") - 1
        numbers, counts = np.unique(places[places >= 0], return_counts=True)
        return Counter({int(bases[n]): int(c) for n, c in zip(numbers, counts, strict=True)})


def find_below(rows: AdoptedRows, snapshot: int, starts: Mapping[int, int]) -> PlacedRows:
    """Return the rows of a snapshot below these offsets, given by partition."""
    return placed(rows.at(snapshot).where(_is_below(starts)))


def find_leaving(
    rows: AdoptedRows,
    snapshot: int,
    starts: Mapping[int, int],
    old: Mapping[int, OldRows],
    planned: Mapping[int, BitMap64] | None = None,
) -> PlacedRows:
    """Return the rows below these offsets, and old ones; with `planned`, those at its offsets.

    One without a time is never old.
    """
    found = rows.at(snapshot).where(_is_below(starts) | _is_old(rows, old))
    return placed(found, starts, planned)


def _is_below(starts: Mapping[int, int]) -> Column:
    return any_column(
        (F.col("partition") == partition) & (F.col("offset") < start)
        for partition, start in starts.items()
    )


def _is_old(rows: AdoptedRows, old: Mapping[int, OldRows]) -> Column:
    is_before = any_column(
        (F.col("partition") == partition)
        & (F.col("offset") >= of.start)
        & (F.col("offset") < of.end)
        & ~rows.is_from(of.before_ms)
        for partition, of in old.items()
    )
    return is_before & (F.col("timestamp_ms") >= 0)


def placed(
    records: DataFrame,
    starts: Mapping[int, int] | None = None,
    planned: Mapping[int, BitMap64] | None = None,
) -> PlacedRows:
    """Gather the rows; with `planned`, of those from their start on only the ones it has."""
    lists = (F.collect_list(name).alias(f"{name}s") for name in ("position", "offset"))
    table = records.groupBy("file", "partition").agg(*lists).toArrow()
    found = PlacedRows()
    columns = (table[name] for name in ("file", "partition", "positions", "offsets"))
    for file, of_partition, *of_rows in zip(*columns, strict=True):
        partition = of_partition.as_py()
        positions, offsets = (of.values.to_numpy().astype(np.uint64) for of in of_rows)
        if planned is not None:
            start, known = (starts or {}).get(partition, 0), planned.get(partition, BitMap64())
            leaves = (offsets < start) | np.isin(offsets, np.array(known.to_array(), np.uint64))
            positions, offsets = positions[leaves], offsets[leaves]
        if len(positions):
            found.positions[file.as_py()] = found.positions.get(
                file.as_py(), BitMap64()
            ) | BitMap64(positions)
            before = found.offsets.get(partition, np.array([], np.uint64))
            found.offsets[partition] = np.concatenate([before, offsets])
    return found
