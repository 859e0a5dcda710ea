"""A run's page: each stage and topic with its numbers; of one topic, its partitions too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ebbtide.lake.reader import Lake
from ebbtide.lake.runs import Attempts, low_watermarks
from ebbtide.log.attempts import Run
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.moments import minute
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.outcome import cause_of
from ebbtide.orchestration.report import find_run
from ebbtide.text import NOTHING, number, size

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
            after = _text(name, numbers.get(f"{what}{_AFTER}", numbers.get(what)))
            texts[what.replace("_", " ")] = f"{_text(name, value)} → {after}"
        elif (text := _text(name, value)) != NOTHING:
            texts[name.replace("_", " ").removesuffix(" ms")] = text
    return texts


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{of} {_text(of, n)}" for of, n in value.items() if n) or NOTHING
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
