"""Holds as pages show them: what each covers, in words, and whether somebody has to look at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ebbtide.lake.reader import Lake, chosen
from ebbtide.log.holds import Hold, Kind, holds_of
from ebbtide.log.settings.names import OWN_NAMESPACE
from ebbtide.text import number

HOLDS = (OWN_NAMESPACE, "holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRow:
    """A hold that stands, and whether its review date has passed."""

    hold: Hold
    is_to_be_reviewed: bool

    @property
    def is_pause(self) -> bool:
        """Whether it lets nothing be removed; else held records are kept as they leave."""
        return self.hold.kind is Kind.PAUSE

    @property
    def covers(self) -> str:
        """Say which records it covers: all of its conditions apply together."""
        return ", ".join(_conditions(self.hold)) or "all records"


def standing_holds(lake: Lake, clock: datetime, topic: str | None = None) -> list[HoldRow]:
    """Return the holds that stand, of one topic or of all; HoldError where a row is wrong."""
    only = {} if topic is None else {"topic": topic}
    rows = lake.own_rows(HOLDS, chosen("at", None, only))
    holds = holds_of(map(Hold.of_row, rows), clock)
    return [HoldRow(hold=of, is_to_be_reviewed=of.is_to_be_reviewed(clock)) for of in holds]


def held_offsets(
    rows: Iterable[HoldRow], partition: int, start: int, end: int
) -> list[tuple[HoldRow, int, int]]:
    """Return the holds on a partition between two offsets, each with the range that it covers."""
    held = []
    for row in rows:
        first = max(row.hold.first_offset or 0, start)
        last = end if row.hold.end_offset is None else min(row.hold.end_offset, end)
        if row.hold.is_on(partition) and first < last:
            held.append((row, first, last))
    return held


def by_topic(rows: Iterable[HoldRow]) -> dict[str, list[HoldRow]]:
    """Return the holds of each topic."""
    listed: dict[str, list[HoldRow]] = {}
    for row in rows:
        listed.setdefault(row.hold.topic, []).append(row)
    return listed


def _conditions(hold: Hold) -> Sequence[str]:
    conditions = []
    if hold.partition is not None:
        conditions.append(f"partition {hold.partition}")
    if hold.first_offset is not None:
        conditions.append(f"from offset {number(hold.first_offset)}")
    if hold.end_offset is not None:
        conditions.append(f"before offset {number(hold.end_offset)}")
    if hold.event_time_from is not None:
        conditions.append(f"from {hold.event_time_from:%Y-%m-%d %H:%M}")
    if hold.event_time_until is not None:
        conditions.append(f"before {hold.event_time_until:%Y-%m-%d %H:%M}")
    if hold.key_hashes is not None:
        count = len(hold.key_hashes)
        conditions.append(f"{number(count)} {'key' if count == 1 else 'keys'}")
    return conditions
