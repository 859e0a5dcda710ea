"""Ranges of an adopted log's offsets: those with a delete horizon, and those that never arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from ebbtide.moments import later

# Delete horizons by ranges of offsets, for tables without batches, which have them in Kafka.
#
# Kafka sets a tombstone's horizon in the first round that covers its offset
# (MemoryRecords.filterTo), so the horizon follows from the offset (docs/adr/0016).


# The horizon of a range with late tombstones, which no round has covered yet.
PENDING = -1
# The horizon of a range whose tombstones were removed.
NOTHING_LEFT = 0
# If a segment has more late tombstones than this, one range spans them all.
MOST_LATE = 100


class HorizonRange(NamedTuple):
    """Offsets from the end of the previous range up to `end_offset`, and their delete horizon."""

    end_offset: int
    horizon_ms: int  # ms since the epoch, PENDING or NOTHING_LEFT


Horizons = Sequence[HorizonRange]


class OffsetRange(NamedTuple):
    """The offsets in [first, end)."""

    first: int
    end: int


def covered_end(horizons: Horizons) -> int:
    """Return the offset up to which rounds have covered the log."""
    return horizons[-1].end_offset if horizons else 0


def due_ranges(horizons: Horizons, end_offset: int, now_ms: int) -> list[OffsetRange]:
    """Return the offsets below `end_offset` with a due horizon, tombstones or not."""
    due = (
        OffsetRange(first, min(horizon.end_offset, end_offset))
        for first, horizon in _with_starts(horizons)
        if NOTHING_LEFT < horizon.horizon_ms <= now_ms
    )
    return [offsets for offsets in due if offsets.first < offsets.end]


def after_round(
    horizons: Horizons, end_offset: int, now_ms: int, delete_retention_ms: int
) -> tuple[HorizonRange, ...]:
    """Return the ranges after a round that covered all offsets below `end_offset`.

    Offsets that it covered first get its horizon. Ranges that were due have lost their tombstones.
    """
    after: list[HorizonRange] = []
    for first, horizon in _with_starts(horizons):
        inside = min(horizon.end_offset, end_offset)
        if first < inside:
            after.append(HorizonRange(inside, _horizon_after(horizon, now_ms, delete_retention_ms)))
        if inside < horizon.end_offset:
            after.append(horizon)
    if end_offset > covered_end(horizons):
        after.append(HorizonRange(end_offset, later(now_ms, delete_retention_ms)))
    return _merged(after)


def with_late(horizons: Horizons, late: Iterable[OffsetRange]) -> tuple[HorizonRange, ...]:
    """Return the ranges, with those of late tombstones waiting for the next round's horizon.

    Other tombstones in these ranges wait too, longer than in Kafka.
    """
    end = covered_end(horizons)
    for offsets in late:
        waiting = OffsetRange(offsets.first, min(offsets.end, end))
        if waiting.first < waiting.end:
            horizons = _carved(horizons, waiting)
    return _merged(horizons)


def next_horizon_ms(horizons: Horizons, now_ms: int) -> int | None:
    """Return the first horizon after `now_ms`, or None if there is none."""
    return min(
        (horizon.horizon_ms for horizon in horizons if horizon.horizon_ms > now_ms), default=None
    )


def _horizon_after(horizon: HorizonRange, now_ms: int, delete_retention_ms: int) -> int:
    if horizon.horizon_ms == PENDING:
        return later(now_ms, delete_retention_ms)
    return NOTHING_LEFT if horizon.horizon_ms <= now_ms else horizon.horizon_ms


def _with_starts(horizons: Horizons) -> Iterable[tuple[int, HorizonRange]]:
    starts = [0, *(horizon.end_offset for horizon in horizons)]
    return zip(starts, horizons, strict=False)


def _carved(horizons: Horizons, waiting: OffsetRange) -> list[HorizonRange]:
    """Return the ranges with one more among them, which waits for a horizon."""
    carved: list[HorizonRange] = []
    for first, horizon in _with_starts(horizons):
        before, after = min(horizon.end_offset, waiting.first), max(first, waiting.end)
        if first < before:
            carved.append(horizon._replace(end_offset=before))
        inside = min(horizon.end_offset, waiting.end)
        if max(first, waiting.first) < inside:
            carved.append(HorizonRange(inside, PENDING))
        if after < horizon.end_offset:
            carved.append(horizon)
    return carved


def _merged(horizons: Iterable[HorizonRange]) -> tuple[HorizonRange, ...]:
    """Return the ranges, with neighbours of the same horizon joined."""
    merged: list[HorizonRange] = []
    for horizon in horizons:
        if merged and merged[-1].horizon_ms == horizon.horizon_ms:
            merged.pop()
        merged.append(horizon)
    return tuple(merged)


# Offsets of an adopted topic that never arrived: above the first row, but without a row.
#
# A sink that fails without an error leaves such holes. So do transaction markers, aborted records
# and records that the broker compacted before the sink read them. So a hole alone is no fault.


# If there are more ranges than this, the older ones are joined into one.
MOST_RANGES = 100


class MissingRange(NamedTuple):
    """Offsets in [first, end), of which `offsets` never arrived: all or some."""

    first: int
    end: int
    offsets: int

    @property
    def is_whole(self) -> bool:
        """True if none of the offsets arrived, so that late ones can be subtracted."""
        return self.offsets == self.end - self.first


Missing = tuple[MissingRange, ...]


# Sums of offsets are taken modulo this prime: products of smaller numbers are longs.
PRIME = 2**31 - 1


class Expected(NamedTuple):
    """The offsets [first, end) that new rows should have."""

    first: int
    end: int

    def is_met_by(self, count: int, total: int, squares: int, xor: int) -> bool:
        """Return whether new rows have exactly these offsets, from their count and sums.

        `total` and `squares` must be right modulo PRIME only. In ranges of up to PRIME / 2 offsets,
        one or two duplicates in place of other offsets are always detected. More are detected
        unless all three numbers are equal by chance.
        """
        return (
            count == self.end - self.first
            and (total - _sum_below(self.end) + _sum_below(self.first)) % PRIME == 0
            and (squares - _squares_below(self.end) + _squares_below(self.first)) % PRIME == 0
            and xor == _xor_below(self.end) ^ _xor_below(self.first)
        )


def count_missing(missing: Missing) -> int:
    """Return the number of offsets that never arrived."""
    return sum(hole.offsets for hole in missing)


def in_words(missing: Missing, partition: int) -> str:
    """Return a sentence: how many offsets of a partition never arrived, and the newest of them."""
    newest = missing[-1]
    return (
        f"partition {partition}: {count_missing(missing):,} offsets never arrived, the newest from "
        f"{newest.first} to {newest.end - 1}. Transaction markers, aborted records and records "
        "that the broker compacted have no row either"
    )


def with_arrivals(
    missing: Missing, log_start_offset: int, expected: Expected, arrived: BitMap64 | None
) -> Missing:
    """Return the missing offsets after new rows. `arrived` None: exactly `expected` arrived.

    Late offsets in `arrived` fill the ranges. Offsets below the log start offset no longer count.
    """
    left = [hole for hole in missing if hole.end > log_start_offset]
    older = [hole for hole in left if not hole.is_whole]
    spans = [
        Expected(max(hole.first, log_start_offset), hole.end) for hole in left if hole.is_whole
    ]
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
    first, end = min(hole.first for hole in ranges), max(hole.end for hole in ranges)
    return (MissingRange(first, end, sum(hole.offsets for hole in ranges)),)


def _joined(ranges: Sequence[MissingRange]) -> list[MissingRange]:
    """Return the ranges, given in order, with adjacent ones joined."""
    joined: list[MissingRange] = []
    for hole in ranges:
        if joined and joined[-1].end == hole.first:
            hole = MissingRange(joined[-1].first, hole.end, joined.pop().offsets + hole.offsets)
        joined.append(hole)
    return joined


def _holes(arrived: BitMap64, span: Expected, most: int) -> list[MissingRange]:
    """Return the ranges of a span's offsets that have not arrived, newest first.

    There are at most `most`, then one for all older ones. A hole may be too wide for a bitmap.
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
    """Return the position at which the run begins that ends before position `high`."""
    last, end = arrived[high - 1] if high > low else 0, high - 1
    while low < end:  # in a run, offsets are as far apart as their places
        middle = (low + end) // 2
        if last - arrived[middle] == high - 1 - middle:
            end = middle
        else:
            low = middle + 1
    return low


def _sum_below(end: int) -> int:
    """Return the sum of the numbers below `end`."""
    return end * (end - 1) // 2


def _squares_below(end: int) -> int:
    """Return the sum of the squares of the numbers below `end`."""
    return end * (end - 1) * (2 * end - 1) // 6


def _xor_below(end: int) -> int:
    """Return the exclusive or of the numbers below `end`."""
    return (0, end - 1, 1, end)[end % 4] if end else 0
