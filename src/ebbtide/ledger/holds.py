"""Holds on a topic: records that are kept whatever a rule removes, and partitions at rest.

A hold is made, changed and ended by events, the rows of `lake.ebbtide.holds`. The newest event of a
hold says how it stands.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

from ebbtide.errors import HoldError
from ebbtide.ledger.own_tables import OwnTable
from ebbtide.text import number

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Kind(StrEnum):
    """The effect of a hold."""

    KEEP = "keep"  # records are copied before they are removed
    PAUSE = "pause"  # nothing is removed until it ends


class HoldEvent(StrEnum):
    """The event of a hold."""

    MADE = "made"
    CHANGED = "changed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold after an event: a row of `lake.ebbtide.holds`; times are UTC.

    A record is held if it matches all conditions that are set. Ranges of offsets and event times
    are half-open; None is no bound. No partition means every partition, no hashes every key.
    `key_hashes` are SHA-256 of the keys' bytes, in hex. A pause ends at `ends_at`, or earlier if a
    person ends it.
    """

    hold_id: str
    event: HoldEvent
    at: datetime
    by: str
    run_id: str
    kind: Kind
    topic: str
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    event_time_from: datetime | None = None
    event_time_until: datetime | None = None
    key_hashes: tuple[str, ...] | None = None
    case_id: str | None = None
    reason: str | None = None
    owner: str | None = None
    approver: str | None = None
    review_date: date | None = None
    ends_at: datetime | None = None

    def __str__(self) -> str:
        """The hold with its case."""
        return f"hold {self.hold_id}" + (f" (case {self.case_id})" if self.case_id else "")

    def is_on(self, partition: int) -> bool:
        """Return whether the hold covers records of the partition."""
        return self.partition in (None, partition)

    def stands_at(self, now: datetime) -> bool:
        """Return whether the hold is in force."""
        is_over = self.kind is Kind.PAUSE and self.ends_at is not None and self.ends_at <= now
        return self.event is not HoldEvent.ENDED and not is_over

    def is_to_be_reviewed(self, now: datetime) -> bool:
        """Return whether the hold's review date has passed."""
        return self.review_date is not None and self.review_date < now.astimezone(UTC).date()

    @property
    def is_pause(self) -> bool:
        """True if the hold is a pause: nothing is removed. Otherwise records are copied first."""
        return self.kind is Kind.PAUSE

    @property
    def covers(self) -> str:
        """The records that the hold covers, in words."""
        keys = None if self.key_hashes is None else len(self.key_hashes)
        conditions = [
            (self.partition, f"partition {self.partition}"),
            (self.first_offset, f"from offset {number(self.first_offset)}"),
            (self.end_offset, f"before offset {number(self.end_offset)}"),
            (self.event_time_from, f"from {_minute(self.event_time_from)}"),
            (self.event_time_until, f"before {_minute(self.event_time_until)}"),
            (keys, f"{number(keys)} {'key' if keys == 1 else 'keys'}"),
        ]
        return ", ".join(text for value, text in conditions if value is not None) or "all records"

    @property
    def review_warning(self) -> str:
        """The overdue review, in words."""
        ask = f"; ask {self.owner}" if self.owner else ""
        return f"the review of {self} was due by {self.review_date}{ask}"


def _hold(**cells: Any) -> Hold:
    """Return the hold of a row. Raise HoldError if the row is not valid."""
    if problem := _problem(cells):
        raise HoldError(
            f"expected valid rows in lake.ebbtide.holds, found one of hold {cells['hold_id']!r} "
            f"on {cells['topic']} with {problem}. Append a valid row with hold_records, delete "
            "this one and accept the deletion (docs/holds.md)"
        )
    hashes = cells["key_hashes"]
    cells["key_hashes"] = None if hashes is None else tuple(hashes)
    return Hold(**{**cells, "event": HoldEvent(cells["event"]), "kind": Kind(cells["kind"])})


HOLDS = OwnTable(
    name="holds",
    columns="""
    hold_id STRING,
    event STRING COMMENT 'made, changed or ended; the newest of a hold says how it stands',
    `at` TIMESTAMP, `by` STRING, run_id STRING,
    kind STRING COMMENT 'keep: copied before it is removed; pause: nothing is removed',
    topic STRING,
    `partition` INT COMMENT 'null: every partition',
    first_offset BIGINT, end_offset BIGINT COMMENT 'half-open; null: open',
    event_time_from TIMESTAMP, event_time_until TIMESTAMP COMMENT 'half-open; null: open',
    key_hashes ARRAY<STRING> COMMENT 'SHA-256 of the bytes of each key, in hex; null: every key',
    case_id STRING, reason STRING, owner STRING, approver STRING, review_date DATE,
    ends_at TIMESTAMP COMMENT 'of a pause; null: until it is ended'
    """,
    day="at",
    build=_hold,
)


def new_hold_id(made_at: datetime) -> str:
    """Return a new id: the day and eight hexadecimal digits."""
    return f"h-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"


def newest_events(events: Iterable[Hold]) -> list[Hold]:
    """Return each hold by its newest event, ended ones too, in the order of their making."""
    newest: dict[tuple[str, str], Hold] = {}
    for hold in sorted(events, key=lambda hold: (hold.at, hold.event is not HoldEvent.MADE)):
        newest[hold.topic, hold.hold_id] = hold
    return list(newest.values())


def holds_of(events: Iterable[Hold], now: datetime) -> list[Hold]:
    """Return the holds in force at `now`, in the order in which they were made."""
    return [hold for hold in newest_events(events) if hold.stands_at(now)]


def that_keep(holds: Iterable[Hold]) -> list[Hold]:
    """Return the holds that are no pauses."""
    return [hold for hold in holds if hold.kind is Kind.KEEP]


def pause_of(holds: Iterable[Hold], partition: int) -> Hold | None:
    """Return the pause of a partition that ends last, or None."""
    pauses = [hold for hold in holds if hold.kind is Kind.PAUSE and hold.is_on(partition)]
    forever = datetime.max.replace(tzinfo=UTC)
    return max(pauses, key=lambda hold: hold.ends_at or forever, default=None)


def paused(pause: Hold) -> str:
    """Return a sentence about a pause: its end and reason."""
    until = "it is ended" if pause.ends_at is None else f"{pause.ends_at:%Y-%m-%d %H:%M} UTC"
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause} blocks removals until {until}{why}"


def paused_until_ended(pause: Hold) -> str:
    """Return why a pause refuses a request, and how to end the pause."""
    return f"{paused(pause)}. To remove records before then, end {pause.hold_id} with hold_records"


def _minute(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _problem(values: Mapping[str, Any]) -> str:
    """Return the problem of a row, or empty text."""
    for name in ("hold_id", "event", "at", "by", "run_id", "kind", "topic"):
        if values.get(name) is None:
            return f"no {name}"
    for name, kind in (("event", HoldEvent), ("kind", Kind)):
        if values[name] not in set(map(str, kind)):
            return f"{name} = {values[name]!r}, which is none of {', '.join(kind)}"
    for first, end in (("first_offset", "end_offset"), ("event_time_from", "event_time_until")):
        low, high = values.get(first), values.get(end)
        if low is not None and high is not None and low >= high:
            return f"{first} = {low}, not before {end} = {high}"
    hashes = values.get("key_hashes")
    if hashes is not None and not (hashes and all(map(_SHA256.fullmatch, hashes))):
        return "key_hashes that are no SHA-256 in hex"
    return ""
