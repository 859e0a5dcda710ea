"""The table `lake.ebbtide.runs`, with one row per attempt of a job on a topic."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, is_transient
from ebbtide.iceberg.catalog import Table, find_table, open_table
from ebbtide.iceberg.commits import ROWS, Commits, Step
from ebbtide.iceberg.history import rows_changed
from ebbtide.iceberg.manifests import current_files
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.own_tables import append_own
from ebbtide.iceberg.segment_planning import RowsAsked, matching_files
from ebbtide.iceberg.topics import Topic, exists, load
from ebbtide.layouts.layout import LAYOUT
from ebbtide.ledger.own_tables import RUNS, Run
from ebbtide.ledger.results import VERSION, Result
from ebbtide.ledger.topic_summary import TopicSummary, summarize
from ebbtide.moments import minute, to_datetime
from ebbtide.runner.outages import clock_of, in_words
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import ROUND, RowsBySegment, told_rows
from ebbtide.text import number

log = logging.getLogger(__name__)


@dataclass(slots=True)
class JobOutcome:
    """The outcome of a job on a topic: numbers by partition, numbers for the topic, and totals."""

    partitions: dict[int, dict[str, Any]] = field(default_factory=dict)
    topic: dict[str, Any] = field(default_factory=dict)
    rows_removed: int = 0  # records removed from the records table
    files_removed: int = 0  # data files of the table that were removed entirely
    bytes_removed: int = 0  # decrease of the log's size in batches
    snapshot_ids: list[int] = field(default_factory=list)  # all commits to the topic's tables
    error: BaseException | None = None  # why a part of the work was refused
    summary: TopicSummary | None = None  # of the topic after the job

    def add_notes(self, notes: Iterable[str]) -> None:
        """Append to the topic's note."""
        if together := [*filter(None, [self.topic.get("note")]), *notes]:
            self.topic["note"] = "; ".join(together)

    def result(self) -> Result:
        """Return the row's `result`."""
        return Result(
            version=VERSION,
            partitions={str(partition): numbers for partition, numbers in self.partitions.items()},
            topic=self.topic,
        )


@dataclass(slots=True)
class EndedAttempt:
    """An attempt's row and error."""

    run: Run
    error: BaseException | None = None  # None: the attempt succeeded


def ended_attempt(
    outcome: JobOutcome, error: BaseException | None = None, **attempt: Any
) -> EndedAttempt:
    """Return an attempt with its row. `attempt` has the row's run, job, topic and times."""
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
    """Write a row per attempt by one commit, even if the machine clock went back."""
    append = partial(append_own, spark, RUNS, [attempt.run for attempt in ended], Step.RUN_ROW)
    try:
        append()
    except Exception as error:
        if (clock := clock_of(error)) is None:
            raise
        log.warning("machine clock is behind the newest commit to runs: %s", clock)
        append(not_before_last=True)


# Count each record removed from a topic once: in the row of the run that removed it.
#
# Counts come from snapshots. They include commits of attempts that failed later, and work of a
# killed job that another one finished. A killed job writes no row: the next run of that job counts
# its removals.


# How far back removals of killed runs are searched for.
LOOKS_BACK = timedelta(days=7)
# Rows are found by their run's start, which is at most this long before a commit.
LONGEST_RUN = timedelta(days=1)


class RemovingCommit(NamedTuple):
    """A snapshot of the records table that removed live rows, with counts of rows and files."""

    commit: Snapshot
    rows: int
    files: int


def count_removed(
    spark: SparkSession,
    name: TopicName,
    outcome: JobOutcome,
    commits: Commits,
    started: datetime,
) -> None:
    """Set the outcome's records, files and snapshots to those that no earlier row counts.

    Add a note for each removal that the job's own numbers do not include.
    """
    numbered = set(outcome.snapshot_ids)
    others = [snapshot for snapshot in commits.snapshots if snapshot not in numbered]
    outcome.snapshot_ids += _of_topic(spark, name, others)
    since = started - LOOKS_BACK
    removals = _uncounted(spark, name, outcome.snapshot_ids, commits, since)
    outcome.rows_removed = sum(removal.rows for removal in removals)
    outcome.files_removed = sum(removal.files for removal in removals)
    beside = [removal for removal in removals if removal.commit.id not in numbered]
    named = set(outcome.snapshot_ids)
    outcome.snapshot_ids += [r.commit.id for r in beside if r.commit.id not in named]
    outcome.add_notes([_note(removal, commits, outcome) for removal in beside])


def _note(removal: RemovingCommit, commits: Commits, outcome: JobOutcome) -> str:
    """Return a note with the reason why the job's own numbers do not include a removal."""
    made = removal.commit
    if made.id not in commits.snapshots:
        why = f"by a run of {made.job} that was killed before it wrote its row"
    elif not outcome.partitions:
        why = "before the run failed"
    elif ROUND in made.summary:
        why = "by a cleaner round of a killed job, which this run finished first"
    else:
        why = "in an earlier attempt of this run"
    return f"{number(removal.rows)} records were removed at {minute(made.at_ms)} UTC {why}"


def _of_topic(spark: SparkSession, name: TopicName, snapshots: Collection[int]) -> list[int]:
    """Return the snapshots that the topic's data tables still have, in the given order."""
    names = (name.records_table, name.batches_table) if snapshots else ()
    tables = [
        table
        for table in (find_table(spark, table_name) for table_name in names)
        if table is not None
    ]
    return [s for s in snapshots if any(s in table.metadata.snapshots for table in tables)]


def _uncounted(
    spark: SparkSession,
    name: TopicName,
    snapshots: Collection[int],
    commits: Commits,
    since: datetime,
) -> list[RemovingCommit]:
    """Return the removals that no row counts yet, in order of commit.

    Candidates since `since` are the given snapshots and all commits of the job.
    """
    table = find_table(spark, name.records_table)
    if table is None:
        return []
    since_ms = since.timestamp() * 1000
    candidates = [
        made
        for made in table.metadata.snapshots.values()
        if made.at_ms >= since_ms and made.operation != "append"
        if made.is_own and made.may_remove_rows and made.is_of(str(name))
        if made.id in snapshots or made.job == commits.job
    ]
    # No row has the commits of this run yet.
    earlier = [made.at_ms for made in candidates if made.id not in commits.snapshots]
    counted: Collection[int] = ()
    if earlier:
        counted = _counted(spark, name, to_datetime(min(earlier)) - LONGEST_RUN)
    return [
        RemovingCommit(made, rows, _files_removed(made))
        for made in sorted(candidates, key=lambda made: made.sequence_number)
        if made.id not in counted and (rows := _rows_removed(table, made)) > 0
    ]


def _rows_removed(table: Table, made: Snapshot) -> int:
    """Return the number of live rows that a commit removed.

    A commit to an adopted table has it in its summary.
    """
    if LAYOUT in table.metadata.properties:
        return int(made.summary.get(ROWS, 0))
    return -sum(rows_changed(table, [made.id]).values())


def _files_removed(made: Snapshot) -> int:
    """Return by how much a commit reduced the number of data files; at least 0."""
    removed, added = made.summary.get("deleted-data-files"), made.summary.get("added-data-files")
    return max(int(removed or 0) - int(added or 0), 0)


def _counted(spark: SparkSession, name: TopicName, since: datetime) -> Collection[int]:
    """Return the snapshots in the topic's rows of `runs` that started at `since` or later."""
    asked = RowsAsked("topic", frozenset({str(name)}), ("started", since))
    counted = set[int]()
    for file in matching_files(
        spark, RUNS.in_catalog(), asked, ("topic", "started", "snapshot_ids")
    ):
        counted |= set(pc.list_flatten(file.rows["snapshot_ids"]).to_pylist())
    return counted


_FILE_BYTES = "total-files-size"  # in a snapshot's summary (Iceberg table spec)


def summary_of(spark: SparkSession, name: TopicName, outcome: JobOutcome) -> TopicSummary | None:
    """Return the topic's summary, or None if it has no tables or they cannot be read."""
    try:
        if not exists(spark, name):
            return None
        topic = load(spark, name)
        if topic.is_adopted:
            rows, file_bytes, oldest_ms = _rows_of_sums(topic), _adopted_bytes(topic), None
        else:
            rows = told_rows(topic.properties, "records")
            tables = (name.records_table, name.batches_table)
            file_bytes = sum(_file_bytes(spark, table) for table in tables)
            oldest_ms = _oldest_event_ms(spark, name, outcome.snapshot_ids)
        return summarize(
            topic.config,
            topic.partitions,
            rows,
            file_bytes,
            outcome.partitions,
            outcome.topic,
            oldest_ms,
        )
    except EbbtideError:  # the job failed with this error too
        return None
    except Exception as error:  # a row without a summary is better than none
        log.warning("no summary of the topic: %s", error)
        return None


def _rows_of_sums(topic: Topic) -> RowsBySegment:
    """Return the rows of each segment of an adopted topic, from its state."""
    return {
        (partition, segment.base_offset): sums.record_count
        for partition, state in topic.partitions.items()
        for segment, sums in zip(state.segments, state.sums, strict=True)
    }


def _adopted_bytes(topic: Topic) -> int:
    """Return the bytes of an adopted topic's files.

    If the table has several topics, estimate the topic's share from its segments.
    """
    if topic.name.in_table is None:
        return _file_bytes(topic.spark, topic.name.records_table)
    return sum(sums.size_bytes for state in topic.partitions.values() for sums in state.sums)


def _file_bytes(spark: SparkSession, table: str) -> int:
    """Return the bytes of the current snapshot's files, or 0 without a snapshot."""
    current = open_table(spark, table).current
    return 0 if current is None else int(current.summary.get(_FILE_BYTES) or 0)


def _oldest_event_ms(spark: SparkSession, name: TopicName, committed: Iterable[int]) -> int | None:
    """Return a lower bound of the records' event times, from the files' column statistics.

    Return None if the job did not commit to the records table: an earlier row has the bound.
    """
    table = open_table(spark, name.records_table)
    if table.metadata.snapshots.keys().isdisjoint(committed):
        return None
    files = current_files(table, has_bounds=True)
    deleted = {file.referenced: file.rows for file in files if not file.is_data}
    (event_time,) = (
        column.field_id for column in table.metadata.columns if column.name == "event_time"
    )
    times = [
        file.bounds.lower[event_time] // 1000
        for file in files
        if file.is_data
        and file.rows > deleted.get(file.path, 0)
        and file.bounds is not None
        and event_time in file.bounds.lower
    ]
    return min(times, default=None)
