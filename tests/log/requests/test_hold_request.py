"""Which changes of a hold cover less than before, and what a request leaves as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import RequestError
from ebbtide.ledger.holds import Hold, HoldEvent, Kind
from ebbtide.specs.hold_request import MAX_HOLD_KEYS, hashes_of, hold_asked, narrows
from tests.log.test_holds import HASH, NOON, hold

OTHER = "cd" * 32
LATER = NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("before", "after", "is_narrower"),
    [
        ({}, {}, False),
        ({}, {"owner": "bob"}, False),
        ({}, {"partition": 1}, True),
        ({"partition": 1}, {"partition": 2}, True),
        ({"partition": 1}, {"partition": None}, False),
        ({"first_offset": 5}, {"first_offset": 4}, False),
        ({"first_offset": 5}, {"first_offset": 6}, True),
        ({}, {"first_offset": 0}, True),
        ({"end_offset": 5}, {"end_offset": 6}, False),
        ({"end_offset": 5}, {"end_offset": 4}, True),
        ({}, {"end_offset": 9}, True),
        ({"event_time_from": LATER}, {"event_time_from": NOON}, False),
        ({"event_time_from": NOON}, {"event_time_from": LATER}, True),
        ({"event_time_until": NOON}, {"event_time_until": LATER}, False),
        ({"event_time_until": LATER}, {"event_time_until": NOON}, True),
        ({"key_hashes": (HASH,)}, {"key_hashes": (OTHER, HASH)}, False),
        ({"key_hashes": (HASH, OTHER)}, {"key_hashes": (HASH,)}, True),
        ({}, {"key_hashes": (HASH,)}, True),
        ({}, {"event": HoldEvent.ENDED}, True),
    ],
)
def test_less_is_covered(before: dict[str, Any], after: dict[str, Any], is_narrower: bool) -> None:
    assert narrows(hold(**before), hold(**{**before, **after})) is is_narrower


def asked(action: str, before: Hold | None = None, **fields: Any) -> Hold:
    request = {"action": action, "hold_id": "h-1", "by": "bob", **fields}
    return hold_asked(request, "log.t", before, at=LATER, run_id="run-2")


def test_a_change_leaves_what_is_empty_as_it_was() -> None:
    before = hold(first_offset=5, key_hashes=(HASH,), case_id="7", owner="ann")
    after = asked("change", before, end_offset=9, first_offset=None, key_hashes=[], owner="bob")
    assert (after.first_offset, after.end_offset, after.key_hashes) == (5, 9, (HASH,))
    assert (after.case_id, after.owner, after.by, after.at) == ("7", "bob", "bob", LATER)
    ended = asked("end", after, approver="cid", end_offset=1)
    assert (ended.event, ended.approver, ended.end_offset) == (HoldEvent.ENDED, "cid", 9)


@pytest.mark.parametrize(
    ("action", "before", "told"),
    [
        ("make", hold(), "expected the id of a new hold"),
        ("change", None, "found none of this id"),
        ("end", hold(event=HoldEvent.ENDED), "found that it ended at 2026-03-01"),
        ("change", hold(kind=Kind.PAUSE), "a pause. A pause can only be ended"),
    ],
)
def test_only_a_hold_that_stands_changes(action: str, before: Hold | None, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        asked(action, before)


def test_a_pause_can_be_ended() -> None:
    assert asked("end", hold(kind=Kind.PAUSE)).event is HoldEvent.ENDED


def test_a_time_without_a_zone_is_refused() -> None:
    why = {"case_id": "7", "reason": "x", "owner": "y"}
    made = asked("make", event_time_from="2026-01-01T00:00:00Z", **why)
    assert made.event_time_from == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(RequestError, match="event_time_from as ISO 8601 with its zone"):
        asked("make", event_time_from="2026-01-01T00:00:00", **why)


@pytest.mark.parametrize("name", ["partition", "first_offset", "end_offset"])
def test_a_negative_number_is_refused(name: str) -> None:
    why = {"case_id": "7", "reason": "x", "owner": "y"}
    with pytest.raises(RequestError, match="found a negative one"):
        asked("make", **{name: -1}, **why)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 10,000 keys"):
        hashes_of(str(number).encode() for number in range(MAX_HOLD_KEYS + 1))
