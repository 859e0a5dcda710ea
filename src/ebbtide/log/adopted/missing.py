"""Offsets of an adopted topic that never arrived: no row has had them since the first one seen.

A sink that fails in silence leaves such holes. So do transaction markers, aborted records and
what a broker had compacted before its sink read it, so a hole alone is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyroaring import BitMap64

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
    spans = [Expected(max(of.first, log_start_offset), of.end) for of in left if of.is_whole]
    if arrived is not None:
        spans.append(expected)
    newest_first: list[MissingRange] = []
    for span in reversed(spans):
        most = MOST_RANGES - len(newest_first)
        found = _holes(arrived or BitMap64(), span, most)
        newest_first += found[:most]
        older += found[most:]
    return (*_as_one(older), *_joined(newest_first[::-1]))


def _as_one(ranges: Sequence[MissingRange]) -> Sequence[MissingRange]:
    if not ranges:
        return ()
    first, end = min(of.first for of in ranges), max(of.end for of in ranges)
    return (MissingRange(first, end, sum(of.offsets for of in ranges)),)


def _joined(ranges: Sequence[MissingRange]) -> list[MissingRange]:
    """Return the ranges, in order, with neighbours as one."""
    joined: list[MissingRange] = []
    for of in ranges:
        if joined and joined[-1].end == of.first:
            of = MissingRange(joined[-1].first, of.end, joined.pop().offsets + of.offsets)
        joined.append(of)
    return joined


def _holes(arrived: BitMap64, span: Expected, most: int) -> list[MissingRange]:
    """Return the runs of a span's offsets that have not arrived, newest first.

    At most `most`, and then one for all before them. A hole may be too wide for a bitmap.
    """
    low = arrived.rank(span.first - 1) if span.first else 0
    high = arrived.rank(span.end - 1) if span.end else 0
    left = span.end - span.first - (high - low)
    holes: list[MissingRange] = []
    end = span.end
    while left:
        last = arrived[high - 1] if high > low else span.first - 1
        if last + 1 < end:
            if len(holes) == most:
                return [*holes, MissingRange(span.first, end, left)]
            holes.append(MissingRange(last + 1, end, end - last - 1))
            left -= end - last - 1
        high = _start_of_run(arrived, low, high)
        end = arrived[high] if left else span.first
    return holes


def _start_of_run(arrived: BitMap64, low: int, high: int) -> int:
    """Return the place at which the run begins that ends before place `high`."""
    last, end = arrived[high - 1] if high > low else 0, high - 1
    while low < end:  # in a run, offsets are as far apart as their places
        middle = (low + end) // 2
        if last - arrived[middle] == high - 1 - middle:
            end = middle
        else:
            low = middle + 1
    return low


def _xor_below(end: int) -> int:
    """Return the exclusive or of the numbers from 0 to `end` - 1."""
    return (0, end - 1, 1, end)[end % 4] if end else 0
