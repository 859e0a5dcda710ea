"""Aggregates of rows of `runs`: attempts by run, newest attempts, removals by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.ledger.own_tables import Attempt, Run

A = TypeVar("A", bound=Attempt)


class RemovalReason(NamedTuple):
    """A reason for which a job removes records."""

    job: str
    number: str  # the field of the job's result that counts them
    tag: str  # the metric's value of the tag `reason`
    words: str


REMOVALS = [
    RemovalReason("clean_log", number, tag, words)
    for number, tag, words in (
        ("superseded", "superseded", "superseded by a newer record of the key"),
        ("aborted", "aborted", "of aborted transactions"),
        ("keyless", "keyless", "without a key in a compacted topic"),
        ("tombstones_removed", "tombstone", "tombstones past their horizon"),
        ("markers_removed", "marker", "transaction markers past their horizon"),
    )
]
REMOVALS += [
    RemovalReason(
        "expire_segments",
        "records_in_segments",
        "retention",
        "in segments past a retention limit",
    ),
    RemovalReason(
        "expire_segments",
        "records_expired",
        "event_time",
        "single records past the event-time limit",
    ),
    RemovalReason(
        "delete_records", "records_removed", "delete_records", "below a requested offset"
    ),
]


@dataclass(frozen=True, slots=True)
class Attempts(Generic[A]):
    """One or more attempts of a run, oldest first, on all of its topics or on one."""

    rows: Sequence[A]

    @property
    def last(self) -> A:
        """The last attempt."""
        return self.rows[-1]

    @property
    def topics(self) -> list[str]:
        """The topics, sorted."""
        return sorted({row.topic for row in self.rows})

    @property
    def failed_topics(self) -> list[str]:
        """The topics that failed in the end, sorted."""
        return sorted({row.topic for row in failed(self.rows)})

    @property
    def started(self) -> datetime:
        """When the first attempt began."""
        return min(row.started for row in self.rows)

    @property
    def ended(self) -> datetime:
        """When the last attempt ended."""
        return max(row.ended for row in self.rows)

    @property
    def rows_removed(self) -> int:
        """The number of records that these attempts removed."""
        return sum(row.rows_removed for row in self.rows)

    @property
    def bytes_removed(self) -> int:
        """The bytes of the log that these attempts removed."""
        return sum(row.bytes_removed for row in self.rows)

    @property
    def seconds(self) -> float:
        """The sum of the attempts' durations in seconds."""
        return sum(row.seconds for row in self.rows)


def by_run(rows: Iterable[A]) -> list[Attempts[A]]:
    """Return the attempts of each run, in the order of their first rows."""
    runs: dict[str, list[A]] = {}
    for row in rows:
        runs.setdefault(row.run_id, []).append(row)
    return [Attempts(of_run) for of_run in runs.values()]


def newest(rows: Iterable[A]) -> dict[tuple[str, str | None], A]:
    """Return the last attempt of each (topic, task). `rows` are oldest first."""
    return {(row.topic, row.task): row for row in rows}


def failed(rows: Iterable[A]) -> list[A]:
    """Return the last attempt of each topic and task whose last attempt failed."""
    return [row for row in newest(rows).values() if not row.succeeded]


def low_watermarks(runs: Iterable[Run]) -> dict[int, int]:
    """Return the newest reported low watermark of each partition. `runs` are oldest first."""
    return {
        partition: numbers["low_watermark"]
        for run in runs
        for partition, numbers in run.partitions.items()
        if numbers.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
    }


def count_removals(runs: Iterable[Run]) -> Counter[RemovalReason]:
    """Sum the removed records by reason, from the jobs' results."""
    counts: Counter[RemovalReason] = Counter()
    for run in runs:
        for removal in REMOVALS:
            if removal.job == run.job:
                numbers = (result.get(removal.number, 0) for result in run.partitions.values())
                counts[removal] += sum(numbers)
    return +counts
