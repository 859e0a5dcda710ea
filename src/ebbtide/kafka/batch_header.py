"""A record batch for the cleaner and retention: its header, without its records."""

from __future__ import annotations

from typing import NamedTuple

from ebbtide.moments import later, minute
from ebbtide.records.attributes import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
)

HEADER_BYTES = 61

COMMIT = "COMMIT"
ABORT = "ABORT"


class Batch(NamedTuple):
    """The header of one record batch; times in ms since the epoch, sizes in bytes."""

    base_offset: int  # the batch's identity, which never changes
    last_offset: int
    attributes: int = 0
    base_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    record_count: int = 0
    size_bytes: int = HEADER_BYTES
    control_type: str | None = None
    txn_first_offset: int | None = None
    magic: int = 2
    header_base_offset: int | None = None  # in the header after a round converted magic 0 or 1
    producer_timestamp_ms: int | None = None  # of the producer's last append, if not in the header

    @property
    def written_base_offset(self) -> int:
        """The base offset in the batch's header."""
        return self.base_offset if self.header_base_offset is None else self.header_base_offset

    @property
    def last_append_ms(self) -> int:
        """The timestamp of the producer's last append, as Kafka remembers it."""
        if self.producer_timestamp_ms is not None:
            return self.producer_timestamp_ms
        return self.max_timestamp_ms

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.last_offset + 1

    @property
    def is_control(self) -> bool:
        """True if the batch holds a control record, such as a transaction marker."""
        return bool(self.attributes & CONTROL)

    @property
    def was_emptied_at_source(self) -> bool:
        """True if the batch is a marker without a record: Kafka too reads only its header."""
        return self.is_control and self.record_count == 0 and self.control_type is None

    @property
    def is_transactional(self) -> bool:
        """True if the batch was written in a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """True if the broker's clock, not the producer's, stamped the records."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_legacy(self) -> bool:
        """True if the batch is of magic 0 or 1, which the next round converts."""
        return self.magic < 2

    @property
    def is_compressed(self) -> bool:
        """True if the records are compressed."""
        return bool(self.attributes & COMPRESSION_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The batch's delete horizon, from which on tombstones or markers are removed, or None."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None


_FIRST_MS = 978_307_200_000  # 2001: Kafka is younger, and so are the events of most topics
_DAY_MS = 86_400_000
_LARGER = {"microseconds": 1_000, "nanoseconds": 1_000_000}


def likely_unit(timestamp_ms: int, now_ms: int) -> str | None:
    """Return the unit in which the timestamp is probably given, or None for milliseconds.

    The unit must make it a time between 2001 and a day after `now_ms`. Return None too if none
    does.
    """
    last_ms = later(now_ms, _DAY_MS)
    if _FIRST_MS <= timestamp_ms <= last_ms:
        return None
    if _FIRST_MS <= timestamp_ms * 1_000 <= last_ms:
        return "seconds"
    for unit, factor in _LARGER.items():
        if _FIRST_MS <= timestamp_ms // factor <= last_ms:
            return unit
    return None


def in_likely_unit(timestamp_ms: int, now_ms: int) -> int:
    """Return the time in ms that the timestamp means in its likely unit."""
    unit = likely_unit(timestamp_ms, now_ms)
    if unit == "seconds":
        return timestamp_ms * 1_000
    return timestamp_ms if unit is None else timestamp_ms // _LARGER[unit]


def unit_in_words(unit: str, timestamp_ms: int) -> str:
    """Return a warning about the timestamps' unit."""
    return (
        f"timestamps look like {unit}: Kafka and all time limits read the largest, {timestamp_ms}, "
        f"as milliseconds: {minute(timestamp_ms)} UTC. Let the producer send milliseconds"
    )
