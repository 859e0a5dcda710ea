"""`lake.ebbtide.runs`: a row for each attempt of a job on a topic."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from ebbtide.errors import is_transient
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.small_appends import prepare_append
from ebbtide.iceberg.schema import RUNS_TABLE
from ebbtide.log.results import VERSION
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_summary import TopicSummary
from ebbtide.runs.outages import clock_of, in_words

log = logging.getLogger(__name__)

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("run_id", "dag", "task", "job", "topic")),
        *((name, _TIME) for name in ("started", "ended", "now")),
        *((name, pa.string()) for name in ("status", "error", "error_class")),
        ("is_transient", pa.bool_()),
        ("result", pa.string()),
        *((name, pa.int64()) for name in ("rows_removed", "files_removed", "bytes_removed")),
        ("snapshot_ids", pa.list_(pa.int64())),
        ("summary", pa.string()),
    ]
)


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

    def to_json(self) -> str:
        """Return the row's `result`, a `ebbtide.log.results.Result`."""
        partitions = {str(partition): numbers for partition, numbers in self.partitions.items()}
        result = {"version": VERSION, "partitions": partitions, "topic": self.topic}
        return json.dumps(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """Who ran what on which topic, and when."""

    run_id: str
    dag: str | None
    task: str | None
    job: str
    topic: TopicName
    started: datetime
    ended: datetime
    now: datetime


@dataclass(slots=True)
class EndedAttempt:
    """An attempt with its outcome; `error` is why it failed, None if it succeeded."""

    attempt: JobAttempt
    outcome: JobOutcome
    error: BaseException | None = None


def append_runs(spark: SparkSession, ended: Sequence[EndedAttempt]) -> None:
    """Write a row for each attempt, all by one commit, also after the machine's clock went back."""
    rows = pa.Table.from_pylist([_row(of) for of in ended], schema=_SCHEMA)
    prepare = partial(prepare_append, spark, RUNS_TABLE, rows, "started")
    try:
        commit(Step.RUN_ROW, prepare())
    except Exception as error:
        if (clock := clock_of(error)) is None:
            raise
        log.warning("the clock is before the newest row of runs: %s", clock)
        commit(Step.RUN_ROW, prepare(not_before_last=True))


def _row(ended: EndedAttempt) -> dict[str, Any]:
    attempt, outcome, error = ended.attempt, ended.outcome, ended.error
    return {
        "run_id": attempt.run_id,
        "dag": attempt.dag,
        "task": attempt.task,
        "job": attempt.job,
        "topic": str(attempt.topic),
        "started": attempt.started,
        "ended": attempt.ended,
        "now": attempt.now,
        "status": "succeeded" if error is None else "failed",
        "error": None if error is None else in_words(error),
        "error_class": None if error is None else type(error).__name__,
        "is_transient": error is not None and is_transient(error),
        "result": outcome.to_json(),
        "rows_removed": outcome.rows_removed,
        "files_removed": outcome.files_removed,
        "bytes_removed": outcome.bytes_removed,
        "snapshot_ids": outcome.snapshot_ids,
        "summary": None if outcome.summary is None else outcome.summary.to_json(),
    }
