"""Offsets that a plan removes, by partition: sets that keep ranges as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap64

# The offsets of each partition that would leave its log.
Removes = Mapping[int, BitMap64]


class NewOffsets(NamedTuple):
    """How many offsets of a partition would leave that the plan does not have, and the first."""

    partition: int
    number: int
    first: int

    def __str__(self) -> str:
        return f"{self.number:,} offsets of partition {self.partition} from {self.first} on"


def offset_range(start: int, end: int) -> BitMap64:
    """Return the offsets [start, end) as a run, however many there are."""
    offsets = BitMap64()
    if start < end:
        offsets.add_range(start, end)
    return offsets


def union(parts: Iterable[BitMap64]) -> BitMap64:
    """Return the offsets of all parts."""
    together = BitMap64()
    for part in parts:
        together |= part
    return together


def to_bytes(offsets: BitMap64) -> bytes:
    """Return the offsets in Roaring's portable format; the same offsets give the same bytes."""
    canonical = offsets.copy()
    canonical.run_optimize()
    serialized: bytes = canonical.serialize()
    return serialized


def from_bytes(serialized: bytes) -> BitMap64:
    """Return the offsets of Roaring's portable format."""
    return BitMap64.deserialize(serialized)


def new_offsets(removes: Removes, planned: Removes) -> list[NewOffsets]:
    """Return what would leave beyond a plan, by partition; empty where all is within it."""
    beyond = []
    for partition, offsets in sorted(removes.items()):
        new = offsets - planned.get(partition, BitMap64())
        if new:
            beyond.append(NewOffsets(partition, len(new), new.min()))
    return beyond
