"""Recognise timestamps that a producer sent in another unit than Kafka's milliseconds."""

from __future__ import annotations

from ebbtide.moments import minute

_FIRST_MS = 978_307_200_000  # 2001: Kafka is younger, and so is what most topics tell of
_DAY_MS = 86_400_000
_LARGER = {"microseconds": 1_000, "nanoseconds": 1_000_000}


def likely_unit(timestamp_ms: int, now_ms: int) -> str | None:
    """Return the unit in which the timestamp would be of our time, or None for milliseconds.

    None too if no unit makes it a time between 2001 and a day after `now_ms`.
    """
    last_ms = now_ms + _DAY_MS
    if _FIRST_MS <= timestamp_ms <= last_ms:
        return None
    if _FIRST_MS <= timestamp_ms * 1_000 <= last_ms:
        return "seconds"
    for unit, factor in _LARGER.items():
        if _FIRST_MS <= timestamp_ms // factor <= last_ms:
            return unit
    return None


def unit_in_words(unit: str, timestamp_ms: int) -> str:
    """Return what is odd about the timestamps, and what it leads to."""
    return (
        f"timestamps look like {unit}: the largest is {timestamp_ms}, which Kafka and every limit "
        f"of time take for milliseconds, {minute(timestamp_ms)} UTC; let the producer send "
        "milliseconds"
    )
