"""`lake.ebbtide.runs`: a row for each attempt of a job on a topic."""

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
            partitions={str(partition): numbers for partition, numbers in self.partitions.items()},
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


# Count the records that left a topic, each in one row in `runs`: that of the removing run.
#
# Counts come from snapshots. So an attempt that lost a race or failed counts too, and so does
# work of a killed job that another one finishes. A killed job writes no row: the next run of that
# job counts what it removed.


# How far back a killed run of the job is looked for.
LOOKS_BACK = timedelta(days=7)
# A row is found by when its run began, which is before its commits.
LONGEST_RUN = timedelta(days=1)


class RemovingCommit(NamedTuple):
    """A snapshot of the records table, and the live rows and whole files that left by it."""

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
    """Set the outcome's records, files and snapshots to what no earlier row counts.

    A note tells what the job's own numbers do not hold.
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
    """Why the job's own numbers do not hold a removal."""
    made = removal.commit
    if made.id not in commits.snapshots:
        why = f"by a run of {made.job} that was killed before it could say so"
    elif not outcome.partitions:
        why = "before the run failed"
    elif ROUND in made.summary:
        why = "by a cleaner round that a killed job had left and that this run finished first"
    else:
        why = "in an attempt before this run's last"
    return f"{number(removal.rows)} records left at {minute(made.at_ms)} UTC {why}"


def _of_topic(spark: SparkSession, name: TopicName, snapshots: Collection[int]) -> list[int]:
    """Return the snapshots that belong to the topic's data tables, in order."""
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
    """Return removals that no row counts yet: the given snapshots', and the job's since then."""
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
    # No row can name what this run itself has just committed.
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
    """Return how many live rows left by a commit; in an adopted table the commit itself says so."""
    if LAYOUT in table.metadata.properties:
        return int(made.summary.get(ROWS, 0))
    return -sum(rows_changed(table, [made.id]).values())


def _files_removed(made: Snapshot) -> int:
    """Return how many data files left by a commit and have no other in their place."""
    removed, added = made.summary.get("deleted-data-files"), made.summary.get("added-data-files")
    return max(int(removed or 0) - int(added or 0), 0)


def _counted(spark: SparkSession, name: TopicName, since: datetime) -> Collection[int]:
    """The snapshots that rows in `runs` name, of runs that began since then."""
    asked = RowsAsked("topic", frozenset({str(name)}), ("started", since))
    counted = set[int]()
    for file in matching_files(
        spark, RUNS.in_catalog(), asked, ("topic", "started", "snapshot_ids")
    ):
        counted |= set(pc.list_flatten(file.rows["snapshot_ids"]).to_pylist())
    return counted


_FILE_BYTES = "total-files-size"  # of a snapshot's summary, by Iceberg's table spec


def summary_of(spark: SparkSession, name: TopicName, outcome: JobOutcome) -> TopicSummary | None:
    """Return the topic's summary; None where it has no tables or they cannot be read."""
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
    except EbbtideError:  # why the topic cannot be read is what the job has failed with
        return None
    except Exception as error:  # the row is worth more than its summary
        log.warning("no summary of the topic: %s", error)
        return None


def _rows_of_sums(topic: Topic) -> RowsBySegment:
    """Return the rows of each segment of an adopted topic, as its state has them."""
    return {
        (partition, segment.base_offset): sums.record_count
        for partition, state in topic.partitions.items()
        for segment, sums in zip(state.segments, state.sums, strict=True)
    }


def _adopted_bytes(topic: Topic) -> int:
    """Return the bytes of an adopted topic's files; of its share where the table holds several."""
    if topic.name.in_table is None:
        return _file_bytes(topic.spark, topic.name.records_table)
    return sum(sums.size_bytes for state in topic.partitions.values() for sums in state.sums)


def _file_bytes(spark: SparkSession, table: str) -> int:
    """Return the bytes of the files that the table's current snapshot needs."""
    current = open_table(spark, table).current
    return 0 if current is None else int(current.summary.get(_FILE_BYTES) or 0)


def _oldest_event_ms(spark: SparkSession, name: TopicName, committed: Iterable[int]) -> int | None:
    """Return the time that no record of the table is older than, by its files' statistics.

    None where the job has not committed to the records table: an earlier one has said it.
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
