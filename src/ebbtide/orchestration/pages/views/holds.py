"""Holds as pages show them: what each covers, in words, and whether somebody has to look at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ebbtide.errors import HoldError
from ebbtide.lake.holds import HoldStanding, read_all_holds, read_holds
from ebbtide.lake.reader import Lake
from ebbtide.log.holds import Hold, Kind
from ebbtide.text import number


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRow:
    """A hold that stands, whether its review date has passed, and what it has kept so far."""

    hold: Hold
    is_to_be_reviewed: bool
    kept_records: int = 0  # counted for one topic only

    @property
    def is_pause(self) -> bool:
        """Whether it lets nothing be removed; else held records are kept as they leave."""
        return self.hold.kind is Kind.PAUSE

    def form(self, action: str) -> dict[str, Any]:
        """Return what the form of hold_records is filled in with; its keys nobody knows."""
        hold = self.hold
        values = {
            "action": action,
            "topic": hold.topic,
            "hold": hold.hold_id,
            "partition": hold.partition,
            "first_offset": hold.first_offset,
            "end_offset": hold.end_offset,
            "event_time_from": _for_field(hold.event_time_from),
            "event_time_until": _for_field(hold.event_time_until),
            "case_id": hold.case_id,
            "reason": hold.reason,
            "owner": hold.owner,
            "review_date": hold.review_date,
        }
        if action == "end":
            values = {name: values[name] for name in ("action", "topic", "hold")}
        return {name: str(value) for name, value in values.items() if value is not None}

    @property
    def covers(self) -> str:
        """Say which records it covers: all of its conditions apply together."""
        return ", ".join(_conditions(self.hold)) or "all records"


def standing_holds(lake: Lake, clock: datetime, topic: str) -> list[HoldRow]:
    """Return the holds on a topic that stand; HoldError where a row is wrong."""
    return [_row(standing) for standing in read_holds(lake, clock, topic)]


def all_standing_holds(lake: Lake, clock: datetime) -> tuple[list[HoldRow], list[HoldError]]:
    """Return the holds of all topics that stand, and what is wrong with those of other topics."""
    standings, problems = read_all_holds(lake, clock)
    return [_row(standing) for standing in standings], [*problems.values()]


def _row(of: HoldStanding) -> HoldRow:
    return HoldRow(
        hold=of.hold, is_to_be_reviewed=of.is_to_be_reviewed, kept_records=of.kept_records
    )


def holds_of_key(rows: Iterable[HoldRow], sha256: str) -> list[HoldRow]:
    """Return the holds that may cover records of a key, by its hash; a pause covers none."""
    return [
        row
        for row in rows
        if not row.is_pause and (row.hold.key_hashes is None or sha256 in row.hold.key_hashes)
    ]


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


def _for_field(at: datetime | None) -> str | None:
    """Return a time as a browser's field has it."""
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S}"


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
