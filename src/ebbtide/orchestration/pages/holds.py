"""Holds on the pages: values for the form of hold_records, and held ranges of a log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ebbtide.lake.own_tables import HoldStanding
from ebbtide.ledger.holds import Hold

_OF_FORM = (
    *("partition", "first_offset", "end_offset", "event_time_from", "event_time_until"),
    *("case_id", "reason", "owner", "review_date"),
)


def hold_form(hold: Hold, action: str) -> dict[str, str]:
    """Return the form's values for a hold. Keys are missing: a hold stores only their hashes."""
    filled = {"action": action, "topic": hold.topic, "hold": hold.hold_id}
    for name in _OF_FORM if action != "end" else ():
        if (value := getattr(hold, name)) is not None:
            filled[name] = _for_field(value)
    return filled


def _for_field(value: Any) -> str:
    """Return a value as an HTML input takes it."""
    return f"{value:%Y-%m-%dT%H:%M:%S}" if isinstance(value, datetime) else str(value)


def holds_of_key(standings: Iterable[HoldStanding], sha256: str) -> list[Hold]:
    """Return the holds that may cover records of the key with this hash. A pause covers none."""
    holds = (standing.hold for standing in standings if not standing.hold.is_pause)
    return [hold for hold in holds if hold.key_hashes is None or sha256 in hold.key_hashes]


def held_offsets(
    standings: Iterable[HoldStanding], partition: int, start: int, end: int
) -> list[tuple[Hold, int, int]]:
    """Return each hold on a partition between `start` and `end`, with its first and end offset."""
    held = []
    for hold in (standing.hold for standing in standings):
        first = max(hold.first_offset or 0, start)
        last = end if hold.end_offset is None else min(hold.end_offset, end)
        if hold.is_on(partition) and first < last:
            held.append((hold, first, last))
    return held
