"""How a run stands by Airflow: its tasks, what it was started with, and the question it asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from ebbtide.log.plans.plan import Plan
from ebbtide.orchestration.approval.answer import SHOWN, digests_of, kept
from ebbtide.orchestration.run_note import as_written

OVER = ("success", "failed")
WAITS = "awaiting_input"
RETRIES = "up_for_retry"
KEYS = "keys"  # of the Params; they may be personal
# A scheduler that has gone on for so long has asked its executor some times.
SETTLING = timedelta(seconds=10)
_KINDS = {
    "success": "good",
    "failed": "bad",
    "upstream_failed": "bad",
    WAITS: "warn",
    RETRIES: "warn",
}
_WORDS = {
    None: "to come",
    WAITS: "waits for an answer",
    RETRIES: "failed, will be retried",
    "upstream_failed": "not reached",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of the run, or one of a mapped one; `badge` is the kind of its badge."""

    task: str
    map_index: int
    name: str
    state: str | None
    attempt: int
    started: datetime | None
    cause: str | None = None  # why its newest attempt failed

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Return a task instance of Airflow's API."""
        task, index = value["task_id"], value["map_index"]
        mapped = "" if index < 0 else f" {value.get('rendered_map_index') or index}"
        return cls(
            task=task,
            map_index=index,
            name=f"{task}{mapped}",
            state=value["state"],
            attempt=value["try_number"],
            started=_time(value["start_date"]),
        )

    @property
    def badge(self) -> str:
        """The kind of its badge."""
        return _KINDS.get(self.state or "", "")

    @property
    def in_words(self) -> str:
        """Its state as a person would say it."""
        return _WORDS.get(self.state) or str(self.state).replace("_", " ")

    @property
    def has_failed(self) -> bool:
        """Whether its newest attempt failed; it may wait for the next one."""
        return self.state in ("failed", RETRIES)

    @property
    def has_log(self) -> bool:
        """Whether an attempt has begun."""
        return self.attempt > 0 and self.started is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a run asks, and of whom: of everybody who may, where nobody is named.

    It takes an answer once it is settled: Airflow's scheduler knows by then that the task waits.
    """

    task: str
    map_index: int
    subject: str
    options: Sequence[str]
    asked: Sequence[str]
    digests: str  # of the plans that it is about, as the answer sends them back
    is_settled: bool = True
    stands: bool = True  # else its task was cleared and makes the question anew

    def is_about(self, plan: Plan) -> bool:
        """Return whether the answer counts for the plan."""
        return digests_of([kept(plan)]) in self.digests.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run as Airflow has it; times are UTC."""

    state: str
    user: str | None
    started: datetime | None
    ended: datetime | None
    note: str | None
    params: Mapping[str, str]
    plans: Sequence[str]
    tasks: Sequence[Task]
    question: Question | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.state in OVER

    @property
    def has_failed(self) -> bool:
        """Whether a task of it failed for good; its note or the task has the cause."""
        return self.state == "failed"

    @property
    def badge(self) -> str:
        """The kind of its badge."""
        return _KINDS.get(self.state, "")

    @property
    def waits_for(self) -> list[Task]:
        """The tasks that wait for an answer."""
        return [task for task in self.tasks if task.state == WAITS]


def progress_of(
    run: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    following: Mapping[str, Sequence[str]] | None = None,
) -> Progress:
    """Return the progress of a run from what Airflow's API says of it and of its tasks.

    `following` are the tasks behind each task of the DAG.
    """
    conf = run["conf"] or {}
    places = _places(following or {})
    listed = sorted(map(Task.of, tasks), key=lambda task: _order(task, places))
    return Progress(
        state=run["state"],
        user=run["triggering_user_name"],
        started=_time(run["start_date"]),
        ended=_time(run["end_date"]),
        note=run["note"] and as_written(run["note"]),
        params={name: _text(name, value) for name, value in conf.items() if value is not None},
        plans=[str(plan) for plan in conf.get("plans") or ()],
        tasks=listed,
    )


def question_of(detail: Mapping[str, Any], heartbeat: datetime | None = None) -> Question | None:
    """Return what the API says of a question, or None for one that somebody has answered.

    `heartbeat` is the newest one of Airflow's scheduler. Airflow 3.3.2 fails a task whose answer
    comes before its scheduler has heard from the executor that the task waits.
    """
    if detail["response_received"]:
        return None
    instance = detail["task_instance"]
    return Question(
        task=instance["task_id"],
        map_index=instance["map_index"],
        subject=detail["subject"],
        options=detail["options"],
        asked=[user["name"] or user["id"] for user in detail["assigned_users"]],
        digests=detail["params"].get(SHOWN, {}).get("value") or "",
        stands=instance.get("state", WAITS) == WAITS,
        is_settled=heartbeat is None
        or heartbeat >= datetime.fromisoformat(detail["created_at"]) + SETTLING,
    )


def _order(task: Task, places: Mapping[str, int]) -> tuple[bool, str, int, str]:
    return task.started is None, str(task.started or ""), places.get(task.task, 0), task.name


def _places(following: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many tasks come before each, on the longest way to it."""
    places = dict.fromkeys(following, 0)
    for _ in following:  # no way is longer
        for task, behind in following.items():
            for name in behind:
                places[name] = max(places.get(name, 0), places[task] + 1)
    return places


def _text(name: str, value: Any) -> str:
    if name == KEYS:
        return f"{len(value)}, not shown here"
    return value if isinstance(value, str) else json.dumps(value)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
