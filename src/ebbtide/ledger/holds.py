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
    """What a hold does."""

    KEEP = "keep"  # records are copied before they are removed
    PAUSE = "pause"  # nothing is removed until it ends


class HoldEvent(StrEnum):
    """What happened to a hold."""

    MADE = "made"
    CHANGED = "changed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A hold as an event left it, a row of `lake.ebbtide.holds`; times are UTC.

    Offsets and event times are half-open, and None is open; no partition is every partition, no
    hashes are every key. All conditions that are set apply together. `key_hashes` are SHA-256 of
    the keys' bytes in hex. A pause ends at `ends_at`, or when somebody ends it.
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
        """Name the hold and its case."""
        return f"hold {self.hold_id}" + (f" (case {self.case_id})" if self.case_id else "")

    def is_on(self, partition: int) -> bool:
        """Return whether it covers the partition, or some of it."""
        return self.partition in (None, partition)

    def stands_at(self, now: datetime) -> bool:
        """Return whether it is neither ended nor, as a pause, over."""
        is_over = self.kind is Kind.PAUSE and self.ends_at is not None and self.ends_at <= now
        return self.event is not HoldEvent.ENDED and not is_over

    def is_to_be_reviewed(self, now: datetime) -> bool:
        """Return whether its review date has passed."""
        return self.review_date is not None and self.review_date < now.astimezone(UTC).date()

    @property
    def is_pause(self) -> bool:
        """Whether nothing is removed while it stands; else records are copied before."""
        return self.kind is Kind.PAUSE

    @property
    def covers(self) -> str:
        """Say which records it covers: all of its conditions apply together."""
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
        """Say until when somebody was to review it, and whom to ask."""
        ask = f"; ask {self.owner}" if self.owner else ""
        return f"{self} was to be reviewed by {self.review_date}{ask}"


def _hold(**cells: Any) -> Hold:
    """Return the hold of a row; HoldError for a row that says less than a hold needs."""
    if problem := _problem(cells):
        raise HoldError(
            f"expected a hold in each row of lake.ebbtide.holds, found that of hold "
            f"{cells['hold_id']!r} on {cells['topic']} with {problem}; append a row that "
            "is right with hold_records, delete this one and accept that (docs/holds.md)"
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
    ends_at TIMESTAMP COMMENT 'of a pause; null: until somebody ends it'
    """,
    day="at",
    build=_hold,
)


def new_hold_id(made_at: datetime) -> str:
    """Return a new id: the day and eight hexadecimal digits."""
    return f"h-{made_at:%Y%m%d}-{uuid.uuid4().hex[:8]}"


def newest_events(events: Iterable[Hold]) -> list[Hold]:
    """Return each hold as its newest event left it, ended ones too, in the order they were made."""
    newest: dict[tuple[str, str], Hold] = {}
    for hold in sorted(events, key=lambda hold: (hold.at, hold.event is not HoldEvent.MADE)):
        newest[hold.topic, hold.hold_id] = hold
    return list(newest.values())


def holds_of(events: Iterable[Hold], now: datetime) -> list[Hold]:
    """Return the holds that stand at a moment, in the order they were made."""
    return [hold for hold in newest_events(events) if hold.stands_at(now)]


def that_keep(holds: Iterable[Hold]) -> list[Hold]:
    """Return the holds that keep records; a pause keeps none."""
    return [hold for hold in holds if hold.kind is Kind.KEEP]


def pause_of(holds: Iterable[Hold], partition: int) -> Hold | None:
    """Return the pause that ends last of those on a partition; None where none is."""
    pauses = [hold for hold in holds if hold.kind is Kind.PAUSE and hold.is_on(partition)]
    forever = datetime.max.replace(tzinfo=UTC)
    return max(pauses, key=lambda hold: hold.ends_at or forever, default=None)


def paused(pause: Hold) -> str:
    """Return why nothing is removed, and what ends that."""
    until = "somebody ends it" if pause.ends_at is None else f"{pause.ends_at:%Y-%m-%d %H:%M} UTC"
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause} lets nothing be removed until {until}{why}"


def paused_until_ended(pause: Hold) -> str:
    """Return why a request is refused, and how to remove before the pause is over."""
    return f"{paused(pause)}; to remove before then, end {pause.hold_id} with hold_records"


def _minute(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _problem(values: Mapping[str, Any]) -> str:
    """Return what of a row cannot be understood; empty where all can."""
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
