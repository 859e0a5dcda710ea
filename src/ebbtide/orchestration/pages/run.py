"""A run's page: its topics and jobs, how it stands in Airflow, and its plans."""

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
    None: "not started",
    WAITS: "waits for an answer",
    RETRIES: "failed, will be retried",
    "upstream_failed": "upstream failed",
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


TOPICS_A_PAGE = 25
# Numbers that are shown elsewhere, or are for programs only.
_LEFT_OUT = {"picked", "reason", "note", "error_code", "log_start_offset", "log_end_offset"}
_LEFT_OUT |= {"low_watermark", "low_watermark_before", "next_run", "changes", "seconds", "drift"}
_BEFORE, _AFTER = "_before", "_after"
_NO_ERROR = ("error_name", "NONE")  # what Kafka answers for a partition that went well


def run_page(
    lake: Lake, run_id: str, dag: str | None, topic: str | None, page: int
) -> dict[str, Any]:
    """Return a run's page; `topics` are those of the page asked for, failed ones first.

    `stages` are those of the only topic there is, or that was asked for.
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
    """Return the newest attempts of each topic, failed topics first; `runs` are oldest first."""
    by_topic: dict[str, dict[str, Run]] = {}
    for run in runs:
        by_topic.setdefault(run.topic, {})[run.task or run.job] = run
    topics = [Attempts(list(of_topic.values())) for of_topic in by_topic.values()]
    return sorted(topics, key=lambda topic: (not _has_failed(topic), topic.topics))


def _has_failed(topic: Attempts[Run]) -> bool:
    return any(not run.succeeded for run in topic.rows)


def _stages(lake: Lake, topic: Attempts[Run]) -> list[dict[str, Any]]:
    """Return the stages in order; each begins with the low watermarks that the one before left."""
    began = topic.rows[0].started
    earlier = lake.runs(began - HISTORY, topic=topic.topics)
    marks = low_watermarks(run for run in earlier if run.ended <= began)
    stages = []
    for run in topic.rows:
        stages.append(_stage(run, marks))
        marks = {**marks, **low_watermarks([run])}
    return stages


def _stage(run: Run, before: Mapping[int, int]) -> dict[str, Any]:
    """Return one job's newest attempt on a topic; `columns` are numbers that any partition has."""
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
    """Return a partition's result; `before` is the low watermark where the job knew none itself."""
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
    """Return numbers of a result as texts; a count before and one after become a pair."""
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
