"""All that a job reports of a topic, compared with its tables before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.nights.expected_numbers import Totals, totals
from tests.tables.truth import Change, Truth

# What a run says in words, names that it makes up, and what tests of its own compare.
WORDS = {"reason", "note", "skipped", "segments_held_back"}
TIMED_KEY_BYTES = len("key-5")
EVENT_TIME = f"sql:CASE WHEN length(key) = {TIMED_KEY_BYTES} THEN timestamp END"


@dataclass(slots=True)
class Nights:
    """A topic that jobs work on, with what its tables hold before the next job."""

    spark: SparkSession
    name: TopicName
    before: Truth = field(default_factory=Truth.nothing)
    reported: set[str] = field(default_factory=set)  # numbers that were not 0 in some night

    def run(self, job: str, work: Callable[[], JobOutcome]) -> tuple[JobOutcome, Change]:
        """The outcome of a job, and what it changed."""
        outcome = work()
        change = Change(self.before, self.before.read_again(self.spark, self.name))
        self.before = change.after
        assert outcome.error is None
        for numbers in outcome.partitions.values():
            flat = numbers | numbers.get("by", {})
            self.reported |= {f"{job} {name}" for name, value in flat.items() if value}
        return outcome, change


def check(
    outcome: JobOutcome,
    change: Change,
    partitions: Mapping[int, dict[str, Any]],
    bytes_removed: int,
) -> None:
    """Compare all numbers of a job."""
    assert outcome.partitions.keys() == partitions.keys()
    wrong = {
        (p, n): {"said": reported.get(n), "true": partitions[p].get(n)}
        for p, reported in outcome.partitions.items()
        for n in (reported.keys() - WORDS) | partitions[p].keys()
        if n not in reported or n not in partitions[p] or reported[n] != partitions[p][n]
    }
    assert wrong == {}
    assert totals(change, bytes_removed) == Totals(
        outcome.rows_removed,
        outcome.files_removed,
        outcome.bytes_removed,
        sorted(outcome.snapshot_ids),
    )


def is_missing(record: Mapping[str, Any]) -> bool:
    """Whether EVENT_TIME says nothing of the record."""
    return len(record["key"] or b"") != TIMED_KEY_BYTES or record["timestamp"] is None
