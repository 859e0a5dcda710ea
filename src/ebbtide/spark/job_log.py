"""A job's log, one line per phase, on standard error: Airflow's task log shows it."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Event, Thread
from typing import TextIO

from pyspark import SparkContext
from pyspark.sql import SparkSession

from ebbtide.settings.names import TopicName

# Partitions logged per phase. A topic may have thousands; `runs` has them all.
MOST_LINES = 20
# Interval of progress lines. Shorter work gets none.
WORD_EVERY_S = 5.0

_where: ContextVar[str] = ContextVar("where", default="ebbtide")
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


def start(job: str) -> None:
    """Log to standard error from level INFO on, each line with the job."""
    _where.set(job)
    log = logging.getLogger("ebbtide")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _StandardError) for handler in log.handlers):
        log.addHandler(_StandardError())


@contextmanager
def about(job: str, topic: TopicName) -> Iterator[None]:
    """Add the job and topic to each log line of this thread, until the block ends."""
    token = _where.set(f"{job} {topic}")
    try:
        yield
    finally:
        _where.reset(token)


def where() -> str:
    """Return the prefix of this thread's log lines: the job, and its topic if it works on one."""
    return _where.get()


@contextmanager
def gathering_notes() -> Iterator[list[str]]:
    """Gather the notes of this thread's work, also if it fails later."""
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(log: logging.Logger, text: str) -> None:
    """Log a warning that is also shown in the run's row and report."""
    log.warning(text)
    notes = _notes.get()
    if notes is not None and text not in notes:
        notes.append(text)


def log_partitions(log: logging.Logger, lines: Mapping[int, str]) -> None:
    """Log one line per partition, up to MOST_LINES partitions."""
    for partition in sorted(lines)[:MOST_LINES]:
        log.info("partition %d: %s", partition, lines[partition])
    if len(lines) > MOST_LINES:
        log.info("and %d more partitions", len(lines) - MOST_LINES)


@contextmanager
def watched(spark: SparkSession, log: logging.Logger, doing: str) -> Iterator[None]:
    """Log the progress of the block's Spark work, and the time left, at intervals.

    Progress is in Spark tasks. `doing` names the work.
    """
    context, group = spark.sparkContext, uuid.uuid4().hex
    context.setJobGroup(group, doing)
    try:
        with progress_logged(log, doing, "tasks", partial(_tasks, context, group)):
            yield
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


@contextmanager
def progress_logged(
    log: logging.Logger, doing: str, what: str, progress: Callable[[], tuple[int, int]]
) -> Iterator[None]:
    """Log at intervals how many `what` of all are done, and the time left, until the block ends."""
    ended = Event()
    watch = partial(_watch, log, doing, what, progress, ended)
    watcher = Thread(target=copy_context().run, args=(watch,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(
    log: logging.Logger,
    doing: str,
    what: str,
    progress: Callable[[], tuple[int, int]],
    ended: Event,
) -> None:
    started = time.monotonic()
    while not ended.wait(WORD_EVERY_S):
        done, total = progress()
        if 0 < done < total:
            seconds = time.monotonic() - started
            left_s = seconds * (total - done) / done
            line = "%s: %d of %d %s done in %.0f s, %.0f s left"
            log.info(line, doing, done, total, what, seconds, left_s)


def _tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """Return the numbers of finished tasks and of all tasks so far, of the group's Spark jobs."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    known = [stage for stage in stages if stage]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current standard error; each line begins with time, level, job and topic."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(where)s: %(message)s", "%H:%M:%S")
        )
        self.addFilter(_add_where)

    @property
    def stream(self) -> TextIO:
        """Standard error as it is now; tests replace it."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Ignore the value that the base class sets."""


def _add_where(record: logging.LogRecord) -> bool:
    record.where = where()
    return True
