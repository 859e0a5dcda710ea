"""One attempt of a job on a topic: a row of `lake.ebbtide.runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ebbtide.log.own_tables import JSON, Cell, OwnTable
from ebbtide.log.state.topic_summary import TopicSummary, parse_summary

# A file a day for ten years makes a 300 KB manifest, which reading a single run would parse.
MAX_RUN_MANIFEST_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job on a topic, without its result; times are UTC."""

    run_id: str
    dag: str | None
    task: str | None
    job: str
    topic: str
    started: datetime
    ended: datetime
    now: datetime
    status: str
    error: str | None
    error_class: str | None
    is_transient: bool
    rows_removed: int
    files_removed: int
    bytes_removed: int
    summary: TopicSummary | None = None  # None in rows of an older version too

    @property
    def succeeded(self) -> bool:
        """Whether this attempt did what it was asked to."""
        return self.status == "succeeded"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.started).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Attempt):
    """An attempt with the job's whole result."""

    result: Mapping[str, Any]
    snapshot_ids: Sequence[int]

    @property
    def partitions(self) -> dict[int, dict[str, Any]]:
        """The job's numbers for each partition."""
        return {int(p): numbers for p, numbers in self.result.get("partitions", {}).items()}

    @property
    def topic_result(self) -> Mapping[str, Any]:
        """The job's numbers for the topic as a whole."""
        numbers: Mapping[str, Any] = self.result.get("topic", {})
        return numbers


def _run(
    *, result: Mapping[str, Any] | None, snapshot_ids: Sequence[int] | None, **fields: Any
) -> Run:
    return Run(**fields, result=result or {}, snapshot_ids=tuple(snapshot_ids or ()))


RUNS = OwnTable(
    name="runs",
    columns="""
    run_id STRING, dag STRING, task STRING, job STRING, topic STRING,
    started TIMESTAMP, ended TIMESTAMP, now TIMESTAMP,
    status STRING, error STRING, error_class STRING, is_transient BOOLEAN,
    result STRING COMMENT 'JSON: per partition and for the topic',
    rows_removed BIGINT, files_removed BIGINT, bytes_removed BIGINT,
    snapshot_ids ARRAY<BIGINT>,
    summary STRING COMMENT 'JSON: the topic in a few numbers at the end of the attempt'
    """,
    day="started",
    build=_run,
    cells={"result": JSON, "summary": Cell(TopicSummary.to_json, parse_summary)},
    properties={"commit.manifest.target-size-bytes": str(MAX_RUN_MANIFEST_BYTES)},
)
RESULT = ("result", "snapshot_ids")  # the columns that an Attempt lacks
ATTEMPT_COLUMNS = tuple(name for name in RUNS.types if name not in RESULT)
