"""Times and spans within 64 bits: sums saturate, and every time has a text.

Times are in ms since the epoch, spans in ms. Kafka's own sums wrap around; docs/exactness.md lists
the effects.
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
    """Return the time that is later by the span, at most the largest long."""
    return saturated(ms + span_ms)


def earlier(ms: int, span_ms: int) -> int:
    """Return the time that is earlier by the span, at least the smallest long."""
    return saturated(ms - span_ms)


def saturated(ms: int) -> int:
    """Return the nearest 64-bit value."""
    return max(MIN_LONG, min(ms, MAX_LONG))


def machine_clock() -> datetime:
    """Return the time of the machine clock, for timestamps of events and for ages.

    It never decides which records are removed: that is the run's `now` (docs/adr/0003).
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
    """Return the time in UTC; outside the years 1 to 9999, the first or last time of them."""
    if ms < FIRST_MS:
        return _FIRST
    return _LAST if ms > LAST_MS else _EPOCH + ms * _MS


def after(at: datetime, span_ms: int) -> datetime:
    """Return the time that is later than `at` by the span, at most the end of the year 9999."""
    return _LAST if span_ms > (_LAST - at) // _MS else at + span_ms * _MS


def before(at: datetime, span_ms: int) -> datetime:
    """Return the time that is earlier than `at` by the span, at least the start of the year 1."""
    return _FIRST if span_ms > (at - _FIRST) // _MS else at - span_ms * _MS


def following(earlier_ones: Iterable[datetime], now: datetime) -> datetime:
    """Return `now`, or the time right after the latest of `earlier_ones` if a clock went back."""
    return max([now, *(at + timedelta(microseconds=1) for at in earlier_ones)])


def minute(ms: int | None) -> str:
    """Format a time in UTC to the minute; `-` for Kafka's -1 and any time before 1970."""
    return NOTHING if ms is None or ms < 0 else _formatted(ms, "%Y-%m-%d %H:%M")


def second(ms: int) -> str:
    """Format a time in UTC to the second."""
    return _formatted(ms, "%Y-%m-%d %H:%M:%S")


def iso_seconds(ms: int) -> str:
    """Format a time in UTC as ISO 8601 to the second."""
    return beyond(ms) or to_datetime(ms).isoformat(timespec="seconds")


def beyond(ms: int) -> str:
    """Return the text for a time that no date can express, or "" for any other."""
    if ms < FIRST_MS:
        return "before year 1"
    return "after 9999" if ms > LAST_MS else ""


def _formatted(ms: int, form: str) -> str:
    return beyond(ms) or f"{to_datetime(ms):{form}}"
