"""A run's page: its topics and jobs, its progress in Airflow, and its plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.lake.reader import Lake
from ebbtide.lake.runs import Attempts, low_watermarks
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.plans import Plan
from ebbtide.moments import minute
from ebbtide.orchestration.approval import SHOWN, digests_of, kept
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.report import find_run
from ebbtide.orchestration.run_note import as_written
from ebbtide.text import NOTHING, number, size

OVER = ("success", "failed")
WAITS = "awaiting_input"
RETRIES = "up_for_retry"
KEYS = "keys"  # a Param with values that may be personal data
# In this time the scheduler polls its executor several times.
SETTLING = timedelta(seconds=10)
_KINDS = {
    "success": "good",
    "failed": "bad",
    "upstream_failed": "bad",
    WAITS: "warn",
    RETRIES: "warn",
}
_WORDS = {
    None: "not started",
    WAITS: "waits for an answer",
    RETRIES: "failed, will be retried",
    "upstream_failed": "upstream failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of the run, or one instance of a mapped task."""

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
        """The kind of the task's badge."""
        return _KINDS.get(self.state or "", "")

    @property
    def in_words(self) -> str:
        """The task's state in words."""
        return _WORDS.get(self.state) or str(self.state).replace("_", " ")

    @property
    def has_failed(self) -> bool:
        """True if the task's newest attempt failed. Another attempt may follow."""
        return self.state in ("failed", RETRIES)

    @property
    def has_log(self) -> bool:
        """True if an attempt has started."""
        return self.attempt > 0 and self.started is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An open question of a run."""

    task: str
    map_index: int
    subject: str
    options: Sequence[str]
    asked: Sequence[str]  # the only users who may answer; empty: all with that right
    digests: str  # of the question's plans; the answer sends them back
    is_settled: bool = True  # Airflow's scheduler knows that the task waits: it takes an answer
    stands: bool = True  # False: the task was cleared, and will ask again

    def is_about(self, plan: Plan) -> bool:
        """Return whether the question is about the plan."""
        return digests_of([kept(plan)]) in self.digests.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run's progress in Airflow. Times are UTC."""

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
        """True if the run has ended."""
        return self.state in OVER

    @property
    def has_failed(self) -> bool:
        """True if the run failed. Its note or a task has the cause."""
        return self.state == "failed"

    @property
    def badge(self) -> str:
        """The kind of the run's badge."""
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
    """Return a run's progress, from Airflow's API values for the run and its tasks.

    `following` has the downstream tasks of each task of the DAG.
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
    """Return an open question from its API value, or None if it was answered.

    `heartbeat` is the newest heartbeat of Airflow's scheduler. Airflow 3.3.2 fails a task that is
    answered before its scheduler has heard from the executor that the task waits.
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
    """Return the number of tasks before each task, on the longest path to it."""
    places = dict.fromkeys(following, 0)
    for _ in following:  # no path is longer
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


TOPICS_A_PAGE = 25
# Numbers that the page shows in another place, or that are only for programs.
_LEFT_OUT = {"picked", "reason", "note", "error_code", "log_start_offset", "log_end_offset"}
_LEFT_OUT |= {"low_watermark", "low_watermark_before", "next_run", "changes", "seconds", "drift"}
_BEFORE, _AFTER = "_before", "_after"
_NO_ERROR = ("error_name", "NONE")  # Kafka's answer for a partition without an error


def run_page(
    lake: Lake, run_id: str, dag: str | None, topic: str | None, page: int
) -> dict[str, Any]:
    """Return the values of a run's page: one page of its topics, failed ones first.

    `stages` is empty unless the run has one topic or `topic` names one.
    """
    runs = [run for run in find_run(lake, run_id) if dag is None or run.dag == dag]
    topics = topics_of_run(run for run in runs if not topic or run.topic == topic)
    pages = max(-(-len(topics) // TOPICS_A_PAGE), 1)
    page = min(max(page, 1), pages)
    start = (page - 1) * TOPICS_A_PAGE
    return {
        "run_id": run_id,
        "dag": dag or (runs[0].dag if runs else None),
        "first": runs[0] if runs else None,
        "topics": topics[start : start + TOPICS_A_PAGE],
        "stages": _stages(lake, topics[0]) if len(topics) == 1 else [],
        "topic_count": len(topics),
        "failed": sum(map(_has_failed, topics)),
        "rows_removed": sum(of_topic.rows_removed for of_topic in topics),
        "page": page,
        "pages": pages,
    }


def topics_of_run(runs: Iterable[Run]) -> list[Attempts[Run]]:
    """Return each topic's newest attempts, failed topics first. `runs` are oldest first."""
    by_topic: dict[str, dict[str, Run]] = {}
    for run in runs:
        by_topic.setdefault(run.topic, {})[run.task or run.job] = run
    topics = [Attempts(list(of_topic.values())) for of_topic in by_topic.values()]
    return sorted(topics, key=lambda topic: (not _has_failed(topic), topic.topics))


def _has_failed(topic: Attempts[Run]) -> bool:
    return any(not run.succeeded for run in topic.rows)


def _stages(lake: Lake, topic: Attempts[Run]) -> list[dict[str, Any]]:
    """Return a topic's stages in order, each with the low watermarks from before it."""
    began = topic.rows[0].started
    earlier = lake.runs(began - HISTORY, topic=topic.topics)
    marks = low_watermarks(run for run in earlier if run.ended <= began)
    stages = []
    for run in topic.rows:
        stages.append(_stage(run, marks))
        marks = {**marks, **low_watermarks([run])}
    return stages


def _stage(run: Run, before: Mapping[int, int]) -> dict[str, Any]:
    """Return one job's newest attempt on a topic. `columns` name all numbers of its partitions."""
    result = run.topic_result
    partitions = [
        _partition(p, numbers, before.get(p)) for p, numbers in sorted(run.partitions.items())
    ]
    return {
        "run": run,
        "cause": None if run.succeeded else cause_of(run),
        "notes": [str(result["note"])] if "note" in result else [],
        "changes": {
            name: (_setting(pair[0]), _setting(pair[1]))
            for name, pair in result.get("changes", {}).items()
            if isinstance(pair, list)
        },
        "numbers": in_words(result),
        "partitions": partitions,
        "columns": list(dict.fromkeys(name for row in partitions for name in row["numbers"])),
    }


def _partition(partition: int, numbers: Mapping[str, Any], before: int | None) -> dict[str, Any]:
    """Return a partition's result. `before` is its low watermark if the job recorded none."""
    mark = numbers.get("low_watermark", INVALID_LOW_WATERMARK)
    known = numbers.get("low_watermark_before", INVALID_LOW_WATERMARK)
    return {
        "partition": partition,
        "log_start_offset": numbers.get("log_start_offset"),
        "low_watermark_before": before if known == INVALID_LOW_WATERMARK else known,
        "low_watermark": None if mark == INVALID_LOW_WATERMARK else mark,
        "log_end_offset": numbers.get("log_end_offset"),
        "numbers": in_words(numbers),
        "reason": str(numbers.get("reason") or numbers.get("note") or ""),
    }


def in_words(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Return the numbers of a result as texts. A count before and after becomes `a → b`."""
    texts: dict[str, str] = {}
    for name, value in numbers.items():
        if name in _LEFT_OUT or name.endswith(_AFTER) or (name, value) == _NO_ERROR:
            continue
        if name.endswith(_BEFORE):
            what = name.removesuffix(_BEFORE)
            after = _text_page(name, numbers.get(f"{what}{_AFTER}", numbers.get(what)))
            texts[what.replace("_", " ")] = f"{_text_page(name, value)} → {after}"
        elif (text := _text_page(name, value)) != NOTHING:
            texts[name.replace("_", " ").removesuffix(" ms")] = text
    return texts


def _text_page(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{label} {_text_page(label, n)}" for label, n in value.items() if n)
            or NOTHING
        )
    if isinstance(value, list):
        return ", ".join(map(str, value)) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | None):
        return str(value)
    if name.endswith("_ms"):
        return minute(value)
    return size(value) if "bytes" in name else number(value)


def _setting(value: str | None) -> str:
    return "not set" if value is None else value or "(empty)"
