"""A request to make, change or end a hold, and the hold after it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from ebbtide.errors import RequestError
from ebbtide.ledger.holds import Hold, HoldEvent, Kind

# In the driver's environment: the keys that were typed in, one a line, since they may be personal.
HOLD_KEYS = "EBBTIDE_HOLD_KEYS"
MAX_HOLD_KEYS = 10_000
CONDITIONS = ("partition", "first_offset", "end_offset", "event_time_from", "event_time_until")
WORDS = ("case_id", "reason", "owner", "review_date")


class Action(StrEnum):
    """The action of a request."""

    MAKE = "make"
    CHANGE = "change"
    END = "end"


EVENTS = {
    Action.MAKE: HoldEvent.MADE,
    Action.CHANGE: HoldEvent.CHANGED,
    Action.END: HoldEvent.ENDED,
}


def hashes_of(keys: Iterable[bytes]) -> list[str]:
    """Return the SHA-256 of each key in hex. Raise RequestError if there are too many."""
    hashes = [hashlib.sha256(key).hexdigest() for key in keys]
    if len(hashes) > MAX_HOLD_KEYS:
        raise RequestError(
            f"expected at most {MAX_HOLD_KEYS:,} keys in a hold, found {len(hashes):,}. Hold "
            "offsets or event times instead, or make several holds"
        )
    return hashes


def hold_asked(
    asked: Mapping[str, Any], topic: str, before: Hold | None, *, at: datetime, run_id: str
) -> Hold:
    """Return the hold as the request leaves it; `before` is what it was.

    A field that is left empty stays as it was. RequestError for what cannot be.
    """
    action, hold_id = Action(asked["action"]), asked["hold_id"]
    _check_standing(action, hold_id, topic, before)
    event: dict[str, Any] = {
        "event": EVENTS[action],
        "at": at,
        "by": asked.get("by") or "-",
        "run_id": run_id,
        "approver": asked.get("approver"),
    }
    if action is Action.END:
        assert before is not None
        return replace(before, **event)
    given = _given(asked)
    if action is Action.CHANGE:
        assert before is not None
        hold = replace(before, **event, **given)
    else:
        check_says_why(given)
        hold = Hold(hold_id=hold_id, kind=Kind.KEEP, topic=topic, **event, **given)
    _check_hold_bounds(hold)
    return hold


def narrows(before: Hold, after: Hold) -> bool:
    """Return whether the hold may cover less than before, by its conditions."""
    if after.event is HoldEvent.ENDED:
        return True
    is_wider = (
        after.partition in (None, before.partition)
        and _reaches_down(before.first_offset, after.first_offset)
        and _reaches_up(before.end_offset, after.end_offset)
        and _reaches_down(before.event_time_from, after.event_time_from)
        and _reaches_up(before.event_time_until, after.event_time_until)
        and _has_all(before.key_hashes, after.key_hashes)
    )
    return not is_wider


def _reaches_down(before: Any, after: Any) -> bool:
    return after is None or (before is not None and after <= before)


def _reaches_up(before: Any, after: Any) -> bool:
    return after is None or (before is not None and after >= before)


def _has_all(before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> bool:
    return after is None or (before is not None and set(before) <= set(after))


def _check_standing(action: Action, hold_id: str, topic: str, before: Hold | None) -> None:
    if action is Action.MAKE:
        if before is not None:
            raise RequestError(f"expected the id of a new hold, found {hold_id}, a hold on {topic}")
        return
    if before is None or before.event is HoldEvent.ENDED:
        state = "none of this id" if before is None else f"that it ended at {before.at:%Y-%m-%d}"
        raise RequestError(
            f"expected a hold {hold_id} in force on {topic}, found {state}. Name a hold that is "
            "in force"
        )
    if before.kind is Kind.PAUSE and action is Action.CHANGE:
        raise RequestError(
            f"expected a hold that copies records, found {hold_id}, a pause. A pause can only be "
            "ended"
        )


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hold's fields that are not empty."""
    given = {name: asked[name] for name in (*CONDITIONS, *WORDS) if asked.get(name) is not None}
    for name in ("event_time_from", "event_time_until"):
        if name in given:
            given[name] = _moment(name, given[name])
    if "review_date" in given:
        given["review_date"] = _day(given["review_date"])
    if asked.get("key_hashes"):
        given["key_hashes"] = tuple(asked["key_hashes"])
    return given


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RequestError(
            f"expected {name} as ISO 8601 with its zone, such as 2026-11-22T01:00:00+00:00, found "
            f"{text!r}"
        )
    return moment


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f"expected review_date as a day, such as 2027-01-31, found {text!r}"
        ) from None


def check_says_why(given: Mapping[str, Any]) -> None:
    """Raise RequestError if a new hold lacks its case, reason or owner."""
    if missing := [name for name in ("case_id", "reason", "owner") if not given.get(name)]:
        raise RequestError(
            f"expected {', '.join(missing)} of a new hold, found none. Fill in case, reason and "
            "owner: a review of the hold needs them"
        )


def _check_hold_bounds(hold: Hold) -> None:
    for first, end in (("first_offset", "end_offset"), ("event_time_from", "event_time_until")):
        low, high = getattr(hold, first), getattr(hold, end)
        if low is not None and high is not None and low >= high:
            raise RequestError(f"expected {first} before {end}, found {low} and {high}")
    if min(
        number
        for number in (hold.partition, hold.first_offset, hold.end_offset, 0)
        if number is not None
    ):
        raise RequestError("expected partition and offsets of 0 and more, found a negative one")
