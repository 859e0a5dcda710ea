"""Judge what became of a task's topics and a run's stages, by the rows in `runs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ebbtide.errors import class_named
from ebbtide.ledger.own_tables import Attempt, Run
from ebbtide.orchestration.night import LowWatermark, low_watermarks_of_run
from ebbtide.specs.delete_request import TIMEOUT_MS
from ebbtide.text import one_line

_OUTPUT = "Last spark-submit output:\n"  # in the message of Airflow's hook
_TELLS = re.compile(r"^\S*(Error|Exception)\b|^Caused by:|\b(error|ERROR|[Kk]illed)\b")
NAMED_TOPICS = 3


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
