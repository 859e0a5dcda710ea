"""`lake.ebbtide.runs`: a row for each attempt of a job on a topic."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import is_transient
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_own
from ebbtide.log.attempts import RUNS, Run
from ebbtide.log.results import VERSION, Result
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.runs.outages import clock_of, in_words

log = logging.getLogger(__name__)


@dataclass(slots=True)
class JobOutcome:
    """A job's outcome for a topic: numbers by partition, numbers for the topic, and totals."""

    partitions: dict[int, dict[str, Any]] = field(default_factory=dict)
    topic: dict[str, Any] = field(default_factory=dict)
    rows_removed: int = 0  # records that left the records table
    files_removed: int = 0  # its data files that left as a whole
    bytes_removed: int = 0  # of the log: what its batches are smaller by
    snapshot_ids: list[int] = field(default_factory=list)  # all that it committed to the topic
    error: BaseException | None = None  # what was refused, beside what was done
    summary: TopicSummary | None = None  # of the topic as the job left it

    def add_notes(self, notes: Iterable[str]) -> None:
        """Let the topic's note hold these too."""
        if together := [*filter(None, [self.topic.get("note")]), *notes]:
            self.topic["note"] = "; ".join(together)

    def result(self) -> Result:
        """Return the row's `result`."""
        return Result(
            version=VERSION,
            partitions={str(partition): of for partition, of in self.partitions.items()},
            topic=self.topic,
        )


@dataclass(slots=True)
class EndedAttempt:
    """The row of an attempt; `error` is why it failed, None if it succeeded."""

    run: Run
    error: BaseException | None = None


def ended_attempt(
    outcome: JobOutcome, error: BaseException | None = None, **attempt: Any
) -> EndedAttempt:
    """Return an attempt with its row: `attempt` says who ran what on which topic, and when."""
    run = Run(
        **attempt,
        status="succeeded" if error is None else "failed",
        error=None if error is None else in_words(error),
        error_class=None if error is None else type(error).__name__,
        is_transient=error is not None and is_transient(error),
        result=outcome.result(),
        rows_removed=outcome.rows_removed,
        files_removed=outcome.files_removed,
        bytes_removed=outcome.bytes_removed,
        snapshot_ids=outcome.snapshot_ids,
        summary=outcome.summary,
    )
    return EndedAttempt(run, error)


def append_runs(spark: SparkSession, ended: Sequence[EndedAttempt]) -> None:
    """Write a row for each attempt, all by one commit, also after the machine's clock went back."""
    append = partial(append_own, spark, RUNS, [attempt.run for attempt in ended], Step.RUN_ROW)
    try:
        append()
    except Exception as error:
        if (clock := clock_of(error)) is None:
            raise
        log.warning("the clock is before the newest row of runs: %s", clock)
        append(not_before_last=True)
