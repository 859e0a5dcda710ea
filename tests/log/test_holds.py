"""Which holds stand, by their events alone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import HoldError
from ebbtide.ledger.holds import (
    HOLDS,
    Hold,
    HoldEvent,
    Kind,
    holds_of,
    new_hold_id,
    pause_of,
    paused,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HASH = "ab" * 32


def hold(hold_id: str = "h-1", **changes: Any) -> Hold:
    """An event of a hold, made at noon by ann."""
    return Hold(
        **{
            "hold_id": hold_id,
            "event": HoldEvent.MADE,
            "at": NOON,
            "by": "ann",
            "run_id": "run-1",
            "kind": Kind.KEEP,
            "topic": "log.t",
            **changes,
        }
    )


def test_the_newest_event_of_a_hold_is_what_holds() -> None:
    made = hold(end_offset=10)
    wider = hold(event=HoldEvent.CHANGED, at=NOON + timedelta(hours=1), end_offset=20)
    other = hold("h-2", at=NOON + timedelta(minutes=1))
    assert holds_of([other, wider, made], NOON) == [wider, other]
    ended = hold(event=HoldEvent.ENDED, at=NOON + timedelta(hours=2))
    assert holds_of([ended, wider, made, other], NOON) == [other]


def test_a_hold_of_one_id_stands_on_each_topic_by_itself() -> None:
    ended = hold(event=HoldEvent.ENDED, at=NOON + timedelta(hours=1))
    assert holds_of([hold(), hold(topic="mirror.t"), ended], NOON) == [hold(topic="mirror.t")]


@pytest.mark.parametrize(
    ("ends_at", "stands"),
    [(None, True), (NOON + timedelta(seconds=1), True), (NOON, False)],
    ids=["until it is ended", "before its end", "at its end"],
)
def test_a_pause_is_over_at_its_end(ends_at: datetime | None, stands: bool) -> None:
    assert bool(holds_of([hold(kind=Kind.PAUSE, ends_at=ends_at)], NOON)) is stands


def test_the_pause_that_ends_last_says_why_a_partition_rests() -> None:
    short = hold(kind=Kind.PAUSE, partition=1, ends_at=NOON + timedelta(days=1))
    long = hold("h-2", kind=Kind.PAUSE, ends_at=NOON + timedelta(days=7), reason="undone")
    assert pause_of([short, long, hold("h-3")], 1) == long
    assert pause_of([short, hold("h-3")], 0) is None
    assert paused(long) == ("hold h-2 blocks removals until 2026-03-08 12:00 UTC: undone")
    assert "until it is ended" in paused(hold(kind=Kind.PAUSE, case_id="7"))


def test_a_hold_is_its_row_and_back() -> None:
    kept = hold(key_hashes=(HASH,), review_date=date(2026, 3, 2), case_id="7")
    assert HOLDS.to_row(HOLDS.to_cells(kept)) == kept
    assert HOLDS.to_row(HOLDS.to_cells(kept) | {"more": 1}) == kept
    assert str(kept) == "hold h-1 (case 7)"
    assert not kept.is_to_be_reviewed(NOON + timedelta(days=1))
    assert kept.is_to_be_reviewed(NOON + timedelta(days=2))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"topic": None}, "no topic"),
        ({"event": "made up"}, "event = 'made up'"),
        ({"kind": "freeze"}, "kind = 'freeze'"),
        ({"first_offset": 5, "end_offset": 5}, "first_offset = 5, not before end_offset = 5"),
        ({"key_hashes": []}, "key_hashes that are no SHA-256"),
        ({"key_hashes": ["AB" * 32]}, "key_hashes that are no SHA-256"),
    ],
)
def test_a_row_that_nobody_understands_is_an_error(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(HoldError, match=told):
        HOLDS.to_row(HOLDS.to_cells(hold()) | changes)


def test_ids_tell_the_day() -> None:
    assert new_hold_id(NOON).startswith("h-20260301-")
    assert new_hold_id(NOON) != new_hold_id(NOON)
