"""How a run stands, from what Airflow's API says of it."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.orchestration.approval import SHOWN
from ebbtide.orchestration.pages.airflow_api import Reply
from ebbtide.orchestration.pages.app import log_lines
from ebbtide.orchestration.pages.overview import questions
from ebbtide.orchestration.pages.run import progress_of, question_of

AT = "2026-11-24T10:00:00Z"
TASK = {"task_id": "plan", "map_index": -1, "state": "success", "try_number": 1, "start_date": AT}
RUN = {
    "state": "running",
    "triggering_user_name": "ann",
    "start_date": AT,
    "end_date": None,
    "note": None,
    "conf": {"topic": "log.a", "keys": ["k-secret", "b"], "age": None, "offsets": {"0": 4}},
}
DETAIL = {
    "subject": "delete_records: remove 3 records from log.a?",
    "options": ["Approve", "Reject"],
    "assigned_users": [{"id": "7", "name": "bob"}],
    "params": {SHOWN: {"value": "0123456789ab"}},
    "response_received": False,
    "created_at": AT,
    "task_instance": {
        "task_id": "approve",
        "map_index": -1,
        "dag_id": "delete_records",
        "dag_run_id": "manual__1",
    },
}


def task(name: str, **changes: Any) -> dict[str, Any]:
    return {**TASK, "task_id": name, **changes}


def test_tasks_come_in_the_order_in_which_they_began() -> None:
    tasks = [
        task("report_run", start_date=None, state=None, try_number=0),
        task("approve", start_date="2026-11-24T10:05:00Z", state="awaiting_input"),
        task("plan", map_index=1, rendered_map_index="clean_log"),
    ]
    progress = progress_of(RUN, tasks)
    assert [shown_task.name for shown_task in progress.tasks] == [
        "plan clean_log",
        "approve",
        "report_run",
    ]
    assert [shown_task.in_words for shown_task in progress.tasks] == [
        "success",
        "waits for an answer",
        "not started",
    ]
    assert [shown_task.has_log for shown_task in progress.tasks] == [True, True, False]
    assert [shown_task.task for shown_task in progress.waits_for] == ["approve"]
    assert not progress.is_over


def test_tasks_to_come_are_in_the_order_of_the_dag() -> None:
    names = ("approve", "publish", "plan", "undo_run", "report_run")
    tasks = [task(name, start_date=None, state=None) for name in names]
    following = {
        "report_run": [],
        "publish": ["report_run"],
        "undo_run": ["publish", "report_run"],
        "approve": ["undo_run"],
        "plan": ["approve"],
    }
    listed = progress_of(RUN, tasks, following).tasks
    assert [shown_task.name for shown_task in listed] == [
        "plan",
        "approve",
        "undo_run",
        "publish",
        "report_run",
    ]


def test_a_note_is_shown_as_it_was_before_it_was_escaped() -> None:
    assert progress_of({**RUN, "note": r"in \[1, 2\]"}, []).note == "in [1, 2]"


def test_the_params_are_shown_without_keys() -> None:
    params = progress_of(RUN, []).params
    assert params == {"topic": "log.a", "keys": "2, not shown here", "offsets": '{"0": 4}'}


def test_a_question_is_open_until_somebody_has_answered() -> None:
    question = question_of(DETAIL)
    assert question is not None
    assert (question.task, question.asked) == ("approve", ["bob"])
    assert question.digests == "0123456789ab"
    assert question_of({**DETAIL, "response_received": True}) is None


def test_questions_of_other_dags_are_not_ours() -> None:
    (need,) = questions([DETAIL], ["delete_records"])
    assert (need.kind, need.run_id, need.dag) == ("approval", "manual__1", "delete_records")
    assert questions([DETAIL], ["erase_keys"]) == []


def test_a_log_is_shown_without_the_marks_that_fold_it() -> None:
    content = [{"event": "::group::Log message source"}, {"event": "a\nb"}, "c", {"event": " "}]
    assert log_lines(content) == ["a", "b", "c"]


NOT_IN_SCHEMA = "'x' was expected\n\nFailed validating 'const'"
BROKEN = {"reason": "Database error", "statement": "hidden", "message": "Look for ID 7 in the log."}
SAID = "Airflow answered 500: Database error. Try again. Look for ID 7 in the log."


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply(404, {"detail": "no run"}), "no run"),
        (Reply(400, {"detail": NOT_IN_SCHEMA}), "'x' was expected"),
        (Reply(422, {"detail": [{"msg": "a"}, {"msg": "b"}]}), "a; b"),
        (Reply(502, "<html>"), "Airflow answered 502"),
        (Reply(500, {"detail": BROKEN}), SAID),
    ],
)
def test_why_airflow_did_not_do_it_is_said_in_words(reply: Reply, problem: str) -> None:
    assert reply.problem == problem
