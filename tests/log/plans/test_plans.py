"""A kept plan: its digest, its offsets, how it stands, and who may execute it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from ebbtide.errors import PlanError
from ebbtide.ledger.plans import (
    PLAN_EVENTS,
    PLANS,
    UNANSWERED,
    Plan,
    PlanEvent,
    PlanStep,
    Standing,
    approver_of,
    check_four_eyes,
    check_may_execute,
    from_bytes,
    new_offsets,
    new_plan_id,
    offset_range,
    standing_of,
    to_bytes,
)

MADE = datetime(2026, 3, 1, 2, 3, 4, 567, tzinfo=UTC)
SOON, LATE = MADE + timedelta(hours=1), MADE + timedelta(hours=24)
OFFSETS = st.sets(st.integers(0, 2**40), max_size=20)


def plan_of(**changes: Any) -> Plan:
    plan = Plan(
        plan_id="delete_records-20260301-0123abcd",
        job="delete_records",
        topic="log.t",
        run_id="run-1",
        dag="delete_records",
        requested_by="ann",
        made_at=MADE,
        expires_at=LATE,
        now=MADE - timedelta(minutes=1),
        parameters={"request": {"topics": [{"topic": "log.t", "age": "P1D"}]}},
        bounds={2: {"offset": 5}, 10: {"offset": 7}},
        snapshots={"records": {"table": "x", "snapshot": 1}},
        removes={2: offset_range(0, 5), 10: BitMap64([1, 6])},
        summary={"partitions": {}, "seconds": None},
        text="a plan",
    )
    return replace(plan.sealed(), **changes)


def event(kind: PlanStep, by: str | None = "bob", **more: Any) -> PlanEvent:
    plan = plan_of()
    values = {"plan_id": plan.plan_id, "digest": plan.digest, "event": kind, "by": by, "at": SOON}
    return PlanEvent(**{**values, **more})


def test_a_plan_comes_back_from_its_row() -> None:
    row = PLANS.to_cells(plan_of())
    again = PLANS.to_row(row)
    assert again == plan_of()
    assert again.own_digest == again.digest
    assert PLANS.to_row({k: v for k, v in row.items() if k != "removes"}).removes is None


def test_an_event_comes_back_from_its_row() -> None:
    done = event(PlanStep.EXECUTED, numbers={"records_removed": 3}, note="fine", run_id="r")
    assert PLAN_EVENTS.to_row(PLAN_EVENTS.to_cells(done)) == done
    assert (
        PLAN_EVENTS.to_row(PLAN_EVENTS.to_cells(event(PlanStep.EXCEEDED, by=None))).numbers is None
    )


@pytest.mark.parametrize(
    "change",
    [
        {"job": "erase_keys"},
        {"topic": "log.u"},
        {"now": MADE},
        {"parameters": {}},
        {"bounds": {2: {"offset": 5}, 10: {"offset": 8}}},
        {"removes": {2: offset_range(0, 5), 10: BitMap64([1, 7])}},
        {"removes": {2: BitMap64([1, 6]), 10: offset_range(0, 5)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_digest_is_of_all_that_decides_what_goes(change: dict[str, Any]) -> None:
    edited = plan_of(**change)
    assert edited.own_digest != edited.digest
    if "job" not in change:
        with pytest.raises(PlanError, match=r"its row was edited. Make a new plan$"):
            check_may_execute(edited, [], "delete_records", SOON)


def test_a_digest_does_not_depend_on_the_order_or_zone_in_which_things_are_told() -> None:
    plan = plan_of()
    told_otherwise = plan_of(
        now=plan.now.astimezone(),
        bounds=dict(reversed(plan.bounds.items())),
        removes={10: BitMap64([6, 1]), 2: BitMap64([4, 3, 2, 1, 0]), 3: BitMap64()},
        parameters=json.loads(json.dumps(plan.parameters)),
    )
    assert told_otherwise.own_digest == plan.digest


@given(OFFSETS, OFFSETS)
def test_new_offsets_are_those_that_the_plan_lacks(removes: set[int], planned: set[int]) -> None:
    beyond = new_offsets({3: BitMap64(removes)}, {3: BitMap64(planned)})
    new = removes - planned
    assert [(offsets.number, offsets.first) for offsets in beyond] == (
        [(len(new), min(new))] if new else []
    )
    assert from_bytes(to_bytes(BitMap64(removes))) == BitMap64(removes)


def test_a_partition_that_no_plan_names_is_new_as_a_whole() -> None:
    (beyond,) = new_offsets({7: offset_range(3, 9)}, {0: offset_range(0, 100)})
    assert str(beyond) == "6 offsets of partition 7 from 3 on"


def test_a_range_stays_small_however_long_it_is() -> None:
    """A log of a hundred million offsets that goes whole is a few kilobytes of a plan."""
    assert len(to_bytes(offset_range(0, 100_000_000))) < 25_000
    assert len(to_bytes(offset_range(5, 5))) < 20


@pytest.mark.parametrize(
    ("events", "at", "standing"),
    [
        ([], SOON, Standing.OPEN),
        ([], LATE, Standing.EXPIRED),
        ([event(PlanStep.APPROVED)], SOON, Standing.APPROVED),
        ([event(PlanStep.APPROVED)], LATE, Standing.EXPIRED),
        ([event(PlanStep.APPROVED, digest="another")], SOON, Standing.OPEN),
        ([event(PlanStep.EXCEEDED, None)], SOON, Standing.OPEN),
        ([event(PlanStep.REJECTED)], SOON, Standing.REJECTED),
        ([event(PlanStep.REPLACED, None)], SOON, Standing.REPLACED),
        ([event(PlanStep.APPROVED), event(PlanStep.EXECUTED)], LATE, Standing.EXECUTED),
    ],
)
def test_how_a_plan_stands(events: list[PlanEvent], at: datetime, standing: Standing) -> None:
    assert standing_of(plan_of(), events, at) is standing


@pytest.mark.parametrize(
    ("events", "at", "why"),
    [
        ([], LATE, "expired at 2026-03-02 02:03 UTC"),
        ([event(PlanStep.REJECTED)], SOON, "rejected by bob at 2026-03-01 03:03 UTC"),
        (
            [event(PlanStep.REJECTED, None, note=UNANSWERED)],
            LATE,
            "rejected (no answer in time) at 2026-03-01 03:03 UTC",
        ),
        ([event(PlanStep.EXECUTED)], SOON, "executed by bob at 2026-03-01 03:03 UTC"),
        ([event(PlanStep.REPLACED, None)], SOON, "replaced at 2026-03-01 03:03 UTC"),
    ],
)
def test_a_closed_plan_is_refused_by_name(events: list[PlanEvent], at: datetime, why: str) -> None:
    plan = plan_of()
    message = re.escape(f"expected an open plan, found {plan.plan_id} {why}. Make a new plan")
    with pytest.raises(PlanError, match=message):
        check_may_execute(plan, events, "delete_records", at)


def test_a_plan_of_another_job_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"a plan of delete_records. Execute it with delete_records$"
    ):
        check_may_execute(plan_of(), [], "erase_keys", SOON)


def test_the_last_approval_of_this_digest_counts() -> None:
    earlier, later = event(PlanStep.APPROVED, "cy", at=MADE), event(PlanStep.APPROVED, "bob")
    assert approver_of(plan_of(), [later, earlier]) == "bob"
    assert approver_of(plan_of(), [replace(later, digest="another")]) is None


@pytest.mark.parametrize(
    ("requester", "approver", "message"),
    [
        ("ann", "bob", None),
        ("ann", None, "found none. Ask another person to approve it"),
        ("ann", "", "found none. Ask another person to approve it"),
        (None, "bob", "found no such person. Make a new plan with --requested-by"),
        (
            "ann",
            "Ann ",
            "found one by ann, who asked for the plan. Ask another person to approve it",
        ),
    ],
)
def test_four_eyes_are_two_persons(
    requester: str | None, approver: str | None, message: str | None
) -> None:
    plan = plan_of(requested_by=requester)
    if message is None:
        check_four_eyes(plan, approver)
    else:
        with pytest.raises(PlanError, match=message):
            check_four_eyes(plan, approver)


def test_an_id_names_job_and_day() -> None:
    made = [new_plan_id("clean_log", MADE) for _ in range(2)]
    assert all(plan_id.startswith("clean_log-20260301-") and len(plan_id) == 27 for plan_id in made)
    assert made[0] != made[1]
