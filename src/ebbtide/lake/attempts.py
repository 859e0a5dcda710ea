"""One attempt of a job on a topic, as a row of `lake.ebbtide.runs` has it, without its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from ebbtide.log.state.topic_summary import TopicSummary, parse_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job on a topic; times are UTC."""

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
    summary: TopicSummary | None = None

    @property
    def succeeded(self) -> bool:
        """Whether this attempt did what it was asked to."""
        return self.status == "succeeded"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.started).total_seconds()


COLUMNS = tuple(field.name for field in fields(Attempt))


def attempt_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an attempt from a row."""
    values = {name: row[name] for name in COLUMNS}
    return {**values, "summary": parse_summary(values["summary"])}
