"""The question for plans in Markdown, how long it stands, and the answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from ebbtide.errors import ConfigurationError, RequestError
from ebbtide.ledger.plans import LeavingRows, Plan, RuleNumbers, Staying, Summary, partition_summary
from ebbtide.orchestration.approval import (
    SHOWN,
    ApprovalAnswer,
    Decision,
    StoredPlan,
    answer_by,
    digests_of,
    in_markdown,
    page_of,
    question,
    removes_something,
)

MADE = datetime(2026, 1, 2, 2, tzinfo=UTC)
PLAN_ID = "delete_records-20260102-0123abcd"
KEPT = [StoredPlan(plan_id=PLAN_ID, job="delete_records", topic="log.a_b", digest="0" * 64)]


CHANGES = {"kafka.retention.ms": "1", "kafka.retention.bytes": None}


def plan_of(partitions: int = 1, **given: Any) -> Plan:
    """A plan that removes 1,200 records of each partition."""
    leaving = LeavingRows(records=1_200, files=2, event_times_ms=[0, 86_400_000], keys=[b"k"])
    rules = {"delete_records": RuleNumbers(records=1_200, segments=8)}
    stays = [Staying(reason="a segment is kept | whole", records=12)]
    summary = partition_summary(leaving, rules, stays, bytes_removed=96_000)
    return Plan(
        **{
            "plan_id": PLAN_ID,
            "job": "delete_records",
            "topic": "log.a_b",
            "run_id": "run-1",
            "dag": "delete_records",
            "requested_by": "ann",
            "made_at": MADE,
            "expires_at": MADE + timedelta(days=1),
            "now": MADE,
            "parameters": {},
            "bounds": {},
            "snapshots": {},
            "removes": None,
            "summary": Summary(partitions={str(p): summary for p in range(partitions)}, seconds=35),
            "text": "",
            "digest": "abcdef012345" + "0" * 52,
            **given,
        }
    )


def test_a_plan_in_markdown() -> None:
    key = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"
    assert in_markdown([plan_of()], "2026-01-03 02:00").splitlines() == [
        "### log.a\\_b",
        "",
        "**delete\\_records** would remove 1,200 records from log.a\\_b (96.0 kB)."
        " Requested by **ann** at 2026-01-02 02:00 UTC.",
        "",
        "| Partition | Records | Entire files | Bytes | By rule | Oldest event | Newest event |",
        "| --- | ---: | ---: | ---: | --- | --- | --- |",
        "| 0 | 1,200 | 2 | 96.0 kB | delete records: 1,200 records in 8 segments "
        "| 1970-01-01 00:00 | 1970-01-02 00:00 |",
        "",
        "* 12 records are retained in partition 0: a segment is kept \\| whole.",
        f"* Example keys: {key}.",
        "* Earlier runs of the job took 35.0 s on this topic.",
        "* Plan [delete\\_records-20260102-0123abcd](/ebbtide/plans/delete_records-20260102-"
        "0123abcd), digest `abcdef012345`, can be executed until 2026-01-03 02:00 UTC.",
        "",
        "Without an answer by 2026-01-03 02:00 UTC, **Reject** applies: nothing is changed.",
    ]


def test_a_plan_of_many_partitions_stays_a_page() -> None:
    text = in_markdown([plan_of(partitions=500)] * 12, "2026-01-03 02:00")
    assert "remove 600,000 records from" in text
    assert text.count("* 6,000 records are retained in partitions 0-499: ") == 10
    assert text.count("| and 480 more partitions on the plan's page |") == 10
    assert len(text) < 60_000


def test_what_a_guard_says_comes_first() -> None:
    summary = {**plan_of().summary, "guard": "expected at most 0.5 of the bytes, found 0.7"}
    plan = plan_of(summary=summary, requested_by=None, dag="nightly_retention")
    lines = in_markdown([plan], "2026-01-03 02:00").splitlines()
    assert "Planned by nightly\\_retention at 2026-01-02 02:00 UTC." in lines[2]
    guard = "expected at most 0.5 of the bytes, found 0.7"
    assert lines[8] == f"* A guard stopped delete\\_records in the nightly run: {guard}."


def test_a_plan_of_snapshots_has_no_table() -> None:
    due = {"snapshots": {"records": [1, 2], "batches": [3]}, "files": ["a.parquet"]}
    plan = plan_of(partitions=0, job="expire_snapshots", parameters=due)
    assert removes_something(plan)
    assert not removes_something(plan_of(partitions=0))
    lines = in_markdown([plan], "2026-01-03 02:00").splitlines()
    act = "expire 3 snapshots of log.a\\_b and rewrite 1 file"
    assert lines[2].startswith(f"**expire\\_snapshots** would {act}. Requested by")
    assert lines[4] == "* Earlier runs of the job took 35.0 s on this topic."


def test_a_plan_of_a_repair_tells_what_others_did_and_what_of_the_state_is_set() -> None:
    summary = partition_summary(
        LeavingRows(records=2),
        {"copies": RuleNumbers(records=2)},
        sets=["log-end-offset 13, it is 15", "first-dirty-offset 0"],
    )
    parameters = {"found": ["records: append by spark"], "back_to": {"records": "7"}}
    repair = {"job": "repair_state", "summary": Summary(partitions={"0": summary}, seconds=None)}
    plan = plan_of(**repair, parameters=parameters)
    assert question([plan]) == "repair_state: repair log.a_b and remove 2 records?"
    lines = in_markdown([plan], "2026-01-03 02:00").splitlines()
    assert lines[8:11] == [
        "* Foreign change: records: append by spark.",
        "* The records table is rolled back to snapshot 7.",
        "* Partition 0 gets log-end-offset 13, it is 15; first-dirty-offset 0.",
    ]
    nothing = {"partitions": {}, "seconds": None}
    assert removes_something(plan_of(**repair | {"summary": nothing}, parameters=parameters))
    assert not removes_something(plan_of(**repair, parameters=parameters | {"found": []}))


@pytest.mark.parametrize(
    ("plans", "subject"),
    [
        ([plan_of()], "delete_records: remove 1,200 records from log.a_b?"),
        (
            [plan_of(job="expire_segments"), plan_of(topic="log.c")],
            "expire_segments, delete_records: remove 2,400 records from 2 topics?",
        ),
        (
            [plan_of(job="hold_records", parameters={"action": "end", "hold_id": "h-1"})],
            "hold_records: end hold h-1 on log.a_b and delete 1,200 copies of held records?",
        ),
        (
            [plan_of(job="hold_records", parameters={"action": "change", "hold_id": "h-1"})],
            "hold_records: narrow hold h-1 on log.a_b and delete 1,200 copies of held records?",
        ),
        (
            [plan_of(job="configure_topic", parameters={"changes": CHANGES})],
            "configure_topic: set kafka.retention.ms=1, unset kafka.retention.bytes on log.a_b "
            "(the next nightly run would remove 1,200 records)?",
        ),
        (
            [plan_of(0, job="configure_topic", parameters={"changes": {"ebbtide.x": "v" * 41}})],
            f"configure_topic: set ebbtide.x={'v' * 40}... on log.a_b (the next nightly run would "
            "remove nothing, but a later one may)?",
        ),
        (
            [plan_of(job="erase_keys", parameters={"keys": 1})],
            "erase_keys: erase 1 key from log.a_b and remove 1,200 records of it?",
        ),
        (
            [plan_of(job="mark_tombstones")],
            "mark_tombstones: mark tombstones of log.a_b and move 1,200 records to quarantine?",
        ),
        (
            [plan_of(job="undo_run", parameters={"run": "run-7"})],
            "undo_run: undo run run-7 on log.a_b and restore 1,200 records?",
        ),
        (
            [plan_of(), plan_of(0, job="expire_snapshots", topic="log.c")],
            "delete_records: remove 1,200 records from log.a_b; "
            "expire_snapshots: expire 0 snapshots of log.c and rewrite 0 files?",
        ),
    ],
)
def test_the_question(plans: list[Plan], subject: str) -> None:
    assert question(plans) == subject


def test_a_plans_page_is_below_airflows_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_of("x") == "/ebbtide/plans/x"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/airflow/")
    assert page_of("x") == "/airflow/ebbtide/plans/x"


@pytest.mark.parametrize(
    ("setting", "until"),
    [
        pytest.param("", MADE + timedelta(days=1), id="until the plan expires"),
        pytest.param("PT8H", MADE + timedelta(hours=9), id="as set"),
        pytest.param("P2D", MADE + timedelta(days=1), id="no longer than the plan"),
    ],
)
def test_how_long_an_answer_counts(
    setting: str, until: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_APPROVAL_TIMEOUT", setting)
    later = plan_of(expires_at=MADE + timedelta(days=7))
    assert answer_by([later, plan_of()], MADE + timedelta(hours=1)) == until


@pytest.mark.parametrize("setting", ["8 hours", "PT0S", "2026-01-02", "-PT1H"])
def test_a_timeout_that_is_none_is_refused(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_APPROVAL_TIMEOUT", setting)
    message = f"^expected an ISO 8601 duration above zero, such as PT8H, in .*, found '{setting}'$"
    with pytest.raises(ConfigurationError, match=message):
        answer_by([plan_of()], MADE)


def test_an_expired_plan_is_not_asked_for() -> None:
    message = f"found {PLAN_ID}, which expired at 2026-01-03 02:00 UTC. Make a new plan$"
    with pytest.raises(RequestError, match=message):
        answer_by([plan_of()], MADE + timedelta(days=1))


def event(chosen: str, user: dict[str, str] | None, **params: Any) -> dict[str, Any]:
    """What Airflow resumes an approval with."""
    return {"chosen_options": [chosen], "responded_by_user": user, "params_input": params}


BEN = {"id": "7", "name": "ben"}
APPROVED, SEEN = Decision.APPROVED, digests_of(KEPT)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (event("Approve", BEN, note=" ticket 7 ", digests=SEEN), (APPROVED, "ben", "ticket 7")),
        (event("Approve", BEN, note=None, digests=SEEN), (APPROVED, "ben", "")),
        (event("Reject", BEN), (Decision.REJECTED, "ben", "")),
        ({**event("Reject", None), "timedout": True}, (Decision.UNANSWERED, None, "")),
    ],
)
def test_an_answer(response: dict[str, Any], answer: tuple[Any, ...]) -> None:
    given = ApprovalAnswer.of_response(response, KEPT)
    assert (given.decision, given.by, given.note) == answer
    assert ApprovalAnswer.of_xcom(given.to_xcom()) == given
    assert given.may_execute is (given.decision is Decision.APPROVED)


def test_an_approval_by_nobody_is_none() -> None:
    with pytest.raises(
        AirflowFailException, match=r"found one without a user\. Nothing was executed\."
    ):
        ApprovalAnswer.of_response(event("Approve", None), KEPT)


@pytest.mark.parametrize("seen", [{}, {SHOWN: ""}, {SHOWN: "0123456789ab"}])
def test_an_approval_of_other_plans_is_none(seen: dict[str, str]) -> None:
    with pytest.raises(AirflowFailException, match=f"plans with the digests {SEEN}, found one for"):
        ApprovalAnswer.of_response(event("Approve", BEN, **seen), KEPT)


def test_a_plan_of_settings_says_that_an_approval_removes_nothing() -> None:
    plan = plan_of(job="configure_topic", parameters={"changes": CHANGES})
    text = in_markdown([plan], "2026-01-03 02:00")
    only = "Approving only changes the settings. The next nightly run then removes the records."
    assert f"* {only}" in text
    assert "set kafka.retention.ms=1, unset kafka.retention.bytes on log.a\\_b" in text
