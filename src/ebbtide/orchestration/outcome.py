"""Judge what became of a task's topics and a run's stages, by the rows in `runs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ebbtide.errors import RequestError, class_named
from ebbtide.lake.attempts import Attempt
from ebbtide.lake.reader import Run
from ebbtide.log.requests.delete_request import TIMEOUT_MS, parse_request
from ebbtide.orchestration.night import LowWatermark, low_watermarks_of_run
from ebbtide.text import one_line

_OUTPUT = "Last spark-submit output:\n"  # in the message of Airflow's hook
_TELLS = re.compile(r"^\S*(Error|Exception)\b|^Caused by:|\b(error|ERROR|[Kk]illed)\b")
NAMED_TOPICS = 3
SELECTORS = ("offsets", "timestamp", "age", "groups")  # of the form, one of which is filled in


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task's answers, a line for each failed topic, and whether a retry can help."""

    answers: list[LowWatermark]
    failures: list[str]
    can_retry: bool

    @classmethod
    def of(
        cls,
        topics: Sequence[str] | None,
        answers: Sequence[LowWatermark],
        runs: Mapping[str, Run],
        problem: str | None,
    ) -> Self:
        """Judge by the rows in `runs`; `problem` is what a failed spark-submit said last."""
        asked = list(topics) if topics is not None else sorted(runs)
        answered = {answer["topic"] for answer in answers}
        open_ones = [topic for topic in asked if topic not in answered]
        rows = [runs[topic] for topic in open_ones if topic in runs]
        failed = [run for run in rows if not run.succeeded]
        is_unexplained = len(rows) < len(open_ones)
        if problem is not None and topics is None and not failed:
            is_unexplained = True
        failures = [f"{run.topic}: {cause_of(run)}" for run in failed]
        if unwritten := [topic for topic in open_ones if topic not in runs]:
            failures.append(f"{named(unwritten)}: {problem or cause_of(None)}")
        elif is_unexplained and problem is not None:
            failures.append(problem)
        done = [answer for run in rows if run.succeeded for answer in low_watermarks_of_run(run)]
        can_retry = is_unexplained or any(run.is_transient for run in failed)
        return cls([*answers, *done], failures, can_retry)


def named(topics: Sequence[str]) -> str:
    """Return the topics, or the first few of many and how many more there are."""
    more = len(topics) - NAMED_TOPICS
    return ", ".join(topics[:NAMED_TOPICS]) + (f" and {more} more" if more > 0 else "")


class Failure(NamedTuple):
    """The first stage that a topic did not pass, and why."""

    topic: str
    stage: str
    cause: str


def cause_of(run: Attempt | None) -> str:
    """Return why an attempt failed, in one line; an error of ours keeps its whole message."""
    if run is None or run.succeeded:
        return "spark-submit ended before the job wrote a row in runs; its task's log says more"
    return cause_line(run.error_class or "error", run.error or "no message")


def cause_line(error_class: str | None, message: str) -> str:
    """Return a class and its message in one line; an error of ours keeps its whole message."""
    if error_class is None:  # of arguments
        return one_line(message)
    is_ours = class_named(error_class) is not None
    return f"{error_class}: {one_line(message) if is_ours else before_trace(message)}"


def cause_of_submit(message: str, code: int | None, causes: Sequence[str]) -> str:
    """Return why spark-submit failed: by the job, or else by the last line that tells of an error.

    `message` is that of Airflow's hook, with a command line that belongs in the log alone.
    """
    if causes:
        return "; ".join(dict.fromkeys(causes))
    if code is None:  # it was not started
        return one_line(message)
    lines = [line.strip() for line in message.partition(_OUTPUT)[2].splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if _TELLS.search(line)), (lines or [""])[-1])
    ended = f"spark-submit ended with exit code {code} before the job could say why"
    return f"{ended}: {said}" if said else f"{ended}; the task's log has its output"


def before_trace(message: str) -> str:
    """Return a message's line before its stack trace; py4j has Java's on the second line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    is_from_java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1].removeprefix(": ") if is_from_java else "".join(lines[:1])


def unfinished(topics: Iterable[str], runs: Mapping[str, Run], is_retry: bool) -> list[str]:
    """Return the topics this try must run: those that have not yet succeeded in this DAG run.

    Airflow's own retry also leaves out terminal failures; a task cleared by hand tries them again.
    """
    left = []
    for topic in topics:
        run = runs.get(topic)
        if run is not None and (run.succeeded or (is_retry and not run.is_transient)):
            continue
        left.append(topic)
    return left


def first_failures(
    topics: Iterable[str],
    handed_on: Mapping[str, set[str]],
    runs: Mapping[tuple[str, str | None], Run],
) -> list[Failure]:
    """Return for each topic the first stage that did not hand it on; stages are in order."""
    failures = []
    for topic in topics:
        for stage, healthy in handed_on.items():
            if topic not in healthy:
                failures.append(Failure(topic, stage, cause_of(runs.get((topic, stage)))))
                break
    return failures


def request_of(answers: Iterable[LowWatermark], topics: Iterable[str]) -> dict[str, Any]:
    """Return a DeleteRecords request for `topics` up to their log start offsets in `answers`."""
    wanted: dict[str, list[dict[str, int]]] = {topic: [] for topic in topics}
    for answer in answers:
        if answer["topic"] in wanted:
            wanted[answer["topic"]].append(
                {"partition": answer["partition"], "offset": answer["log_start_offset"]}
            )
    return {
        "topics": [{"topic": topic, "partitions": offsets} for topic, offsets in wanted.items()],
        "timeout_ms": TIMEOUT_MS,
    }


def delete_request(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form's DeleteRecords request, checked: by offsets, by time or by consumer groups."""
    filled = {name: params[name] for name in SELECTORS if params.get(name)}
    if len(filled) != 1:
        raise RequestError(
            f"expected exactly one of {', '.join(SELECTORS)} in the form, "
            f"found {' and '.join(filled) or 'none'}"
        )
    topic, connection = params["topic"], params.get("connection")
    if "offsets" in filled:
        topics = [
            {"topic": name, "partitions": [_partition(*pair) for pair in wanted.items()]}
            for name, wanted in _by_topic(topic, filled["offsets"]).items()
        ]
    else:
        topics = [{"topic": topic or "", **filled}]
    if connection:
        topics = [{**asked, "connection": connection} for asked in topics]
    request = {"topics": topics, "timeout_ms": params["timeout_ms"]}
    parse_request(json.dumps(request))
    return request


def _by_topic(topic: str | None, offsets: Any) -> Mapping[str, Any]:
    by_topic = {topic: offsets} if topic else offsets
    if not by_topic or not all(isinstance(wanted, Mapping) for wanted in by_topic.values()):
        raise RequestError(
            'expected a topic and offsets by partition, {"0": 1200}, or no topic and offsets by '
            f"topic and partition, found topic {topic!r} and offsets {offsets!r}"
        )
    return by_topic


def _partition(partition: str, offset: Any) -> dict[str, int]:
    is_number = partition.isdecimal() and len(partition) <= 10
    if not is_number or type(offset) is not int or offset < -1:
        raise RequestError(
            f"expected a partition's number and an offset of -1 or more, found "
            f"{partition!r}: {offset!r}"
        )
    return {"partition": int(partition), "offset": offset}
