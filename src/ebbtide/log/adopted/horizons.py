"""Delete horizons as ranges of offsets, for tables without batches that could carry them.

Kafka fixes a tombstone's horizon in the first round that covers its offset
(MemoryRecords.filterTo), so the offset alone tells it (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ebbtide.moments import later

# Of a range whose tombstones no round has covered: rows that arrived late.
PENDING = -1
# Of a range whose horizon has passed and whose tombstones are gone.
NOTHING_LEFT = 0
# More late tombstones than this of a segment share one range with what lies between them.
MOST_LATE = 100


class HorizonRange(NamedTuple):
    """Offsets up to `end_offset`, from the end of the range before, and their delete horizon."""

    end_offset: int
    horizon_ms: int  # since the epoch, or PENDING, or NOTHING_LEFT


Horizons = Sequence[HorizonRange]


class OffsetRange(NamedTuple):
    """The offsets in [first, end)."""

    first: int
    end: int


def covered_end(horizons: Horizons) -> int:
    """Return the offset up to which rounds have covered the log."""
    return horizons[-1].end_offset if horizons else 0


def due_ranges(horizons: Horizons, end_offset: int, now_ms: int) -> list[OffsetRange]:
    """Return the offsets below `end_offset` whose horizon is reached; tombstones may be left."""
    due = (
        OffsetRange(first, min(of.end_offset, end_offset))
        for first, of in _with_starts(horizons)
        if NOTHING_LEFT < of.horizon_ms <= now_ms
    )
    return [offsets for offsets in due if offsets.first < offsets.end]


def after_round(
    horizons: Horizons, end_offset: int, now_ms: int, delete_retention_ms: int
) -> tuple[HorizonRange, ...]:
    """Return the ranges after a round that covered all below `end_offset`.

    What it was the first to cover gets its horizon; what was due has lost its tombstones.
    """
    after: list[HorizonRange] = []
    for first, of in _with_starts(horizons):
        inside = min(of.end_offset, end_offset)
        if first < inside:
            after.append(HorizonRange(inside, _horizon_after(of, now_ms, delete_retention_ms)))
        if inside < of.end_offset:
            after.append(of)
    if end_offset > covered_end(horizons):
        after.append(HorizonRange(end_offset, later(now_ms, delete_retention_ms)))
    return _merged(after)


def with_late(horizons: Horizons, late: Iterable[OffsetRange]) -> tuple[HorizonRange, ...]:
    """Return the ranges with the tombstones in these waiting for the next round's horizon.

    What else lies in a range waits too, longer than in Kafka.
    """
    end = covered_end(horizons)
    for of in late:
        waiting = OffsetRange(of.first, min(of.end, end))
        if waiting.first < waiting.end:
            horizons = _carved(horizons, waiting)
    return _merged(horizons)


def next_horizon_ms(horizons: Horizons, now_ms: int) -> int | None:
    """Return the first horizon after `now_ms`; None where none is to come."""
    return min((of.horizon_ms for of in horizons if of.horizon_ms > now_ms), default=None)


def _horizon_after(of: HorizonRange, now_ms: int, delete_retention_ms: int) -> int:
    if of.horizon_ms == PENDING:
        return later(now_ms, delete_retention_ms)
    return NOTHING_LEFT if of.horizon_ms <= now_ms else of.horizon_ms


def _with_starts(horizons: Horizons) -> Iterable[tuple[int, HorizonRange]]:
    starts = [0, *(of.end_offset for of in horizons)]
    return zip(starts, horizons, strict=False)


def _carved(horizons: Horizons, waiting: OffsetRange) -> list[HorizonRange]:
    """Return the ranges with one more in them, which waits for a horizon."""
    carved: list[HorizonRange] = []
    for first, of in _with_starts(horizons):
        before, after = min(of.end_offset, waiting.first), max(first, waiting.end)
        if first < before:
            carved.append(of._replace(end_offset=before))
        inside = min(of.end_offset, waiting.end)
        if max(first, waiting.first) < inside:
            carved.append(HorizonRange(inside, PENDING))
        if after < of.end_offset:
            carved.append(of)
    return carved


def _merged(horizons: Iterable[HorizonRange]) -> tuple[HorizonRange, ...]:
    """Return the ranges with equal neighbours as one."""
    merged: list[HorizonRange] = []
    for of in horizons:
        if merged and merged[-1].horizon_ms == of.horizon_ms:
            merged.pop()
        merged.append(of)
    return tuple(merged)
