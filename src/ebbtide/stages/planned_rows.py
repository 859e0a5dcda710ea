"""Rows that a segment would lose, as a kept plan tells them; gathered in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from ebbtide.log.plans.offsets import union
from ebbtide.log.plans.summary import EXAMPLE_KEYS, LeavingRows
from ebbtide.records.arrays import Bools


class PlannedRows(NamedTuple):
    """Offsets that would leave, the extremes of their event times in ms, and a few keys."""

    offsets: BitMap64 = BitMap64()
    event_times_ms: tuple[int, ...] = ()
    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, rows: pa.Table, leaves: Bools) -> PlannedRows:
        """Return those of a segment's rows that leave; `rows` has offset, event_time and key."""
        going = rows.filter(pa.array(leaves))
        extremes = pc.min_max(going["event_time"].cast(pa.int64()))
        times_us = [extremes[side].as_py() for side in ("min", "max")]
        keys = going["key"].drop_null().slice(0, 1000).to_pylist()
        return cls(
            BitMap64(going["offset"].to_numpy().astype(np.uint64)),
            tuple(us // 1000 for us in times_us if us is not None),
            tuple(dict.fromkeys(keys))[:EXAMPLE_KEYS],
        )

    @classmethod
    def together(cls, parts: Sequence[PlannedRows]) -> PlannedRows:
        """Return those of several segments, with the extremes of their event times."""
        times_ms = [ms for part in parts for ms in part.event_times_ms]
        keys = (key for part in parts for key in part.keys)
        return cls(
            union(part.offsets for part in parts),
            (min(times_ms), max(times_ms)) if times_ms else (),
            tuple(dict.fromkeys(keys))[:EXAMPLE_KEYS],
        )


def by_partition(parts: Iterable[tuple[int, PlannedRows]]) -> dict[int, PlannedRows]:
    """Put the rows of segments together, given by partition."""
    mine: dict[int, list[PlannedRows]] = {}
    for partition, rows in parts:
        mine.setdefault(partition, []).append(rows)
    return {partition: PlannedRows.together(of) for partition, of in mine.items()}


def add_to(leaving: LeavingRows, rows: PlannedRows) -> None:
    """Count the rows beside those that leave already."""
    leaving.records += len(rows.offsets)
    leaving.event_times_ms += rows.event_times_ms
    leaving.keys += rows.keys
