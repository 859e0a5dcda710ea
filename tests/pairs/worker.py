"""Run jobs in a lake and stop at their commits: `worker.py HOME`, told by JSON lines on stdin.

`{"job": ..., "arguments": [...], "stops": {topic: step}, "environment": {...}}` runs a job's main
with these variables added. It stops on each topic before the first commit of its step, answers
`{"topic": ..., "stopped": step}`, and waits for `{"go": [topic, ...]}`. At the end it answers
`{"ended": exit code, "steps": {topic: [step, ...]}}`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from typing import Any, TextIO

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.runner import application
from ebbtide.spark import job_log
from tests.lake_sandbox import any_session

# A topic that has stopped is not at work, so as many may be stopped as there are threads.
MOST_STOPPED = 400
AT_WORK = Semaphore(application.TOPICS_AT_ONCE)
SESSION_FOR_TOPIC = application.session_for_topic


class Stops:
    """The commits of the job at work: which topics came where, and where they have to wait."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._lock = Lock()
        self.begin({})

    def begin(self, stops: Mapping[str, str]) -> None:
        self._stops = dict(stops)
        self._waiting: dict[str, Event] = {topic: Event() for topic in stops}
        self.steps: dict[str, list[str]] = {}

    def before_commit(self, step: Step) -> None:
        """Stands in for `commits.before_commit`."""
        topic = topic_at_work()
        if topic is None:
            return
        with self._lock:
            self.steps.setdefault(topic, []).append(str(step))
            if self._stops.get(topic) != step:
                return
            del self._stops[topic]
        AT_WORK.release()
        self.answer({"topic": topic, "stopped": str(step)})
        self._waiting[topic].wait()
        AT_WORK.acquire()

    def go(self, topics: list[str]) -> None:
        for topic in topics:
            self._waiting[topic].set()

    def answer(self, answer: Mapping[str, Any]) -> None:
        with self._lock:
            self._answers.write(json.dumps(answer) + "\n")
            self._answers.flush()


def topic_at_work() -> str | None:
    """The topic of this thread's job, as the job's log names it; None between topics."""
    _, _, topic = job_log.where().partition(" ")
    return topic or None


@contextmanager
def at_work(spark: SparkSession) -> Iterator[SparkSession]:
    """A topic's session, for as many topics at a time as in any job, those apart that wait."""
    with AT_WORK, SESSION_FOR_TOPIC(spark) as session:
        yield session


def run(job: str, arguments: list[str], stops: Stops) -> None:
    try:
        code = int(import_module(f"jobs.{job}").main(arguments))
    except SystemExit as refused:
        code = int(refused.code or 0)
    except Exception as error:
        print(f"{job}: {error!r}", file=sys.stderr)
        code = ExitCode.FAILED
    stops.answer({"ended": code, "steps": stops.steps})


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what jobs print is no answer
    session = any_session(Path(sys.argv[1]))
    SparkSession.Builder.getOrCreate = lambda _: session  # type: ignore[method-assign]
    stops = Stops(answers)
    commits.before_commit = stops.before_commit
    application.TOPICS_AT_ONCE = MOST_STOPPED
    application.session_for_topic = at_work
    stops.answer({"ready": True})
    for line in sys.stdin:
        told = json.loads(line)
        if "go" in told:
            stops.go(told["go"])
            continue
        os.environ.update(told["environment"])
        stops.begin(told["stops"])
        Thread(target=run, args=(told["job"], told["arguments"], stops), daemon=True).start()


if __name__ == "__main__":
    main()
