"""Offsets of an adopted topic that never arrived: no row has had them since the first one seen.

A sink that fails in silence leaves such holes. So do transaction markers, aborted records and
what a broker had compacted before its sink read it, so a hole alone is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from ebbtide.log.plans.offsets import offset_range, union

# Beside so many ranges the older ones become one.
MOST_RANGES = 100


class MissingRange(NamedTuple):
    """Offsets in [first, end) of which `offsets` never arrived: all of them, or some."""

    first: int
    end: int
    offsets: int

    @property
    def is_whole(self) -> bool:
        """Whether none of them arrived, so that it is known which late ones fill it."""
        return self.offsets == self.end - self.first


Missing = tuple[MissingRange, ...]


class Expected(NamedTuple):
    """The offsets [first, end) that new rows should have."""

    first: int
    end: int

    def is_met_by(self, count: int, total: int, xor: int) -> bool:
        """Return whether so many offsets of this sum and exclusive or are these, each once."""
        span = self.end - self.first
        is_sum = total == (self.first + self.end - 1) * span // 2
        return count == span and is_sum and xor == _xor_below(self.end) ^ _xor_below(self.first)


def count_missing(missing: Missing) -> int:
    """Return how many offsets never arrived."""
    return sum(of.offsets for of in missing)


def in_words(missing: Missing, partition: int) -> str:
    """Say how many offsets of a partition never arrived, and which the newest are."""
    newest = missing[-1]
    return (
        f"partition {partition}: {count_missing(missing):,} offsets never arrived, the newest from "
        f"{newest.first} to {newest.end - 1}; transaction markers, aborted records and what the "
        "broker had compacted have no row either"
    )


def with_arrivals(
    missing: Missing, log_start_offset: int, expected: Expected, arrived: BitMap64 | None
) -> Missing:
    """Return what is missing once these offsets have arrived; None if they are those expected.

    Late offsets among `arrived` fill the ranges. What lies below the log start counts no more.
    """
    left = [of for of in missing if of.end > log_start_offset]
    older = [of for of in left if not of.is_whole]
    holes = union(
        offset_range(max(of.first, log_start_offset), of.end) for of in left if of.is_whole
    )
    if arrived is not None:
        holes = (holes | offset_range(expected.first, expected.end)) - arrived
    ranges = _newest_ranges(holes)
    if left_out := len(holes) - sum(of.offsets for of in ranges):
        older.append(MissingRange(holes.min(), ranges[0].first, left_out))
    return (*_as_one(older), *ranges)


def _as_one(ranges: Sequence[MissingRange]) -> Sequence[MissingRange]:
    if not ranges:
        return ()
    first, end = min(of.first for of in ranges), max(of.end for of in ranges)
    return (MissingRange(first, end, sum(of.offsets for of in ranges)),)


def _newest_ranges(holes: BitMap64) -> list[MissingRange]:
    """Return the last MOST_RANGES runs of neighbouring offsets, in order."""
    ranges: list[MissingRange] = []
    left = len(holes)
    while left and len(ranges) < MOST_RANGES:
        last = holes[left - 1]
        # In a run that ends at `last`, offsets are as far apart as their places.
        low, high = 0, left - 1
        while low < high:
            middle = (low + high) // 2
            if last - holes[middle] == left - 1 - middle:
                high = middle
            else:
                low = middle + 1
        ranges.append(MissingRange(holes[low], last + 1, last + 1 - holes[low]))
        left = low
    return ranges[::-1]


def _xor_below(end: int) -> int:
    """Return the exclusive or of the numbers from 0 to `end` - 1."""
    return (0, end - 1, 1, end)[end % 4] if end else 0
