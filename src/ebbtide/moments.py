"""Moments and spans up to the edge of 64 bits: sums saturate, and every moment has a text.

A moment is in ms since the epoch, as Kafka has it, a span in ms. Kafka's own sums wrap around;
docs/exactness.md says where that shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ebbtide.numbers import MAX_LONG, MIN_LONG

NOTHING = "-"
_EPOCH = datetime.fromtimestamp(0, UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MS = timedelta(milliseconds=1)
FIRST_MS, LAST_MS = (_FIRST - _EPOCH) // _MS, (_LAST - _EPOCH) // _MS


def later(ms: int, span_ms: int) -> int:
    """Return the moment that much later, at most the last one of 64 bits."""
    return saturated(ms + span_ms)


def earlier(ms: int, span_ms: int) -> int:
    """Return the moment that much earlier, at least the first one of 64 bits."""
    return saturated(ms - span_ms)


def saturated(ms: int) -> int:
    """Return the moment of 64 bits that is nearest."""
    return max(MIN_LONG, min(ms, MAX_LONG))


def machine_clock() -> datetime:
    """Return the time of this machine: when something happens, and how old it is.

    It never decides what is removed: that is the run's `now` (docs/adr/0003).
    """
    return datetime.now(UTC)


def to_ms(moment: datetime) -> int:
    """Return milliseconds since the epoch, exactly."""
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1000 + moment.microsecond // 1000


def to_us(moment: datetime) -> int:
    """Return microseconds since the epoch, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(ms: int) -> datetime:
    """Return the moment in UTC; beyond the years 1 to 9999 the first or the last of them."""
    if ms < FIRST_MS:
        return _FIRST
    return _LAST if ms > LAST_MS else _EPOCH + ms * _MS


def after(at: datetime, span_ms: int) -> datetime:
    """Return the moment that much after `at`, at most the last one of the year 9999."""
    return _LAST if span_ms > (_LAST - at) // _MS else at + span_ms * _MS


def before(at: datetime, span_ms: int) -> datetime:
    """Return the moment that much before `at`, at least the first one of the year 1."""
    return _FIRST if span_ms > (at - _FIRST) // _MS else at - span_ms * _MS


def following(earlier_ones: Iterable[datetime], now: datetime) -> datetime:
    """Return `now`, or the moment after the last of the others if a clock has gone back since."""
    return max([now, *(at + timedelta(microseconds=1) for at in earlier_ones)])


def minute(ms: int | None) -> str:
    """Format a moment in UTC to the minute; Kafka's -1 and any time before 1970 is none."""
    return NOTHING if ms is None or ms < 0 else _formatted(ms, "%Y-%m-%d %H:%M")


def second(ms: int) -> str:
    """Format a moment in UTC to the second."""
    return _formatted(ms, "%Y-%m-%d %H:%M:%S")


def iso_seconds(ms: int) -> str:
    """Format a moment in UTC as ISO 8601 to the second."""
    return beyond(ms) or to_datetime(ms).isoformat(timespec="seconds")


def beyond(ms: int) -> str:
    """Return what stands for a moment that no date has; nothing for any other."""
    if ms < FIRST_MS:
        return "before year 1"
    return "after 9999" if ms > LAST_MS else ""


def _formatted(ms: int, form: str) -> str:
    return beyond(ms) or f"{to_datetime(ms):{form}}"
