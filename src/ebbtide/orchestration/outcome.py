"""Outcomes of a task's topics and a run's stages, by the rows in `runs`."""

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

_OUTPUT = "Last spark-submit output:\n"  # in the error message of Airflow's hook
_TELLS = re.compile(r"^\S*(Error|Exception)\b|^Caused by:|\b(error|ERROR|[Kk]illed)\b")
NAMED_TOPICS = 3


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of a task."""

    answers: list[LowWatermark]
    failures: list[str]  # a line for each failed topic
    can_retry: bool  # whether a retry can help

    @classmethod
    def of(
        cls,
        topics: Sequence[str] | None,
        answers: Sequence[LowWatermark],
        runs: Mapping[str, Run],
        problem: str | None,
    ) -> Self:
        """Return the outcome by the rows in `runs`. `problem` is why spark-submit failed, if so."""
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
    """Return the topics' names, or the first few and the number of the rest."""
    more = len(topics) - NAMED_TOPICS
    return ", ".join(topics[:NAMED_TOPICS]) + (f" and {more} more" if more > 0 else "")


class Failure(NamedTuple):
    """The first stage that a topic did not pass, and the cause."""

    topic: str
    stage: str
    cause: str


def cause_of(run: Attempt | None) -> str:
    """Return why an attempt failed, in one line. ebbtide's own errors keep their whole message."""
    if run is None or run.succeeded:
        return "spark-submit ended before the job wrote a row in runs; see the task's log"
    return cause_line(run.error_class or "error", run.error or "no message")


def cause_line(error_class: str | None, message: str) -> str:
    """Return an error's class and message in one line, without a stack trace."""
    if error_class is None:  # an error of the arguments
        return one_line(message)
    is_ours = class_named(error_class) is not None
    return f"{error_class}: {one_line(message) if is_ours else before_trace(message)}"


def cause_of_submit(message: str, code: int | None, causes: Sequence[str]) -> str:
    """Return why spark-submit failed: the job's `causes`, or else the last line with an error.

    `message` is from Airflow's hook. Its command line belongs only in the log.
    """
    if causes:
        return "; ".join(dict.fromkeys(causes))
    if code is None:  # it was not started
        return one_line(message)
    lines = [line.strip() for line in message.partition(_OUTPUT)[2].splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if _TELLS.search(line)), (lines or [""])[-1])
    ended = f"spark-submit ended with exit code {code} before the job reported a cause"
    return f"{ended}: {said}" if said else f"{ended}; see the task's log"


def before_trace(message: str) -> str:
    """Return a message's first line. For a Java error in py4j, that is the second line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    is_from_java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1].removeprefix(": ") if is_from_java else "".join(lines[:1])


def unfinished(topics: Iterable[str], runs: Mapping[str, Run], is_retry: bool) -> list[str]:
    """Return the topics that this attempt must run: all that did not succeed yet in this DAG run.

    Airflow's own retry also skips permanent failures. A task that a user cleared runs them again.
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
    """Return the first stage that each failed topic did not pass. Stages are in order."""
    failures = []
    for topic in topics:
        for stage, healthy in handed_on.items():
            if topic not in healthy:
                failures.append(Failure(topic, stage, cause_of(runs.get((topic, stage)))))
                break
    return failures


def request_of(answers: Iterable[LowWatermark], topics: Iterable[str]) -> dict[str, Any]:
    """Return a DeleteRecords request for `topics`, with their log start offsets in `answers`."""
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
