"""Count the records that left a topic, each in one row in `runs`: that of the removing run.

Counts come from snapshots. So an attempt that lost a race or failed counts too, and so does work of
a killed job that another one finishes. A killed job writes no row: the next run of that job counts
what it removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import java_table, table_exists
from ebbtide.iceberg.commits import Commits
from ebbtide.iceberg.history import Committed, rows_changed
from ebbtide.iceberg.schema import RUNS_TABLE
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.jvm import items
from ebbtide.text import moment, number

# How far back a killed run of the job is looked for.
LOOKS_BACK = timedelta(days=7)
# A row is found by when its run began, which is before its commits.
LONGEST_RUN = timedelta(days=1)


class RemovingCommit(NamedTuple):
    """A snapshot of the records table, and the live rows and whole files that left by it."""

    commit: Committed
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
    of_run = [s for s in commits.snapshots if s not in numbered]
    outcome.snapshot_ids += _of_topic(spark, name, of_run)
    since = started - LOOKS_BACK
    removals = _uncounted(spark, name, outcome.snapshot_ids, commits.job, since)
    outcome.rows_removed = sum(removal.rows for removal in removals)
    outcome.files_removed = sum(removal.files for removal in removals)
    ids = {*outcome.snapshot_ids}
    outcome.snapshot_ids += [r.commit.id for r in removals if r.commit.id not in ids]
    notes = [*_notes(removals, numbered, set(of_run), commits.job)]
    if notes:
        outcome.topic["note"] = "; ".join([*filter(None, [outcome.topic.get("note")]), *notes])


def _notes(
    removals: Collection[RemovingCommit], numbered: set[int], of_run: set[int], job: str
) -> Iterator[str]:
    """Yield notes on records that left besides the job's own numbers, and when."""
    for removal in removals:
        made = removal.commit
        if made.id in numbered:
            continue
        at = f"{number(removal.rows)} records left at {moment(made.at_ms)} UTC"
        if made.id in of_run:
            yield f"{at} before the work that the other numbers tell of"
        else:
            yield f"{at} by a run of {job} that was killed before it could say so"


def _of_topic(spark: SparkSession, name: TopicName, snapshots: Collection[int]) -> list[int]:
    """Return the snapshots that belong to the topic's data tables, in order."""
    tables = [
        java_table(spark, table)
        for table in (name.records_table, name.batches_table)
        if snapshots and table_exists(spark, table)
    ]
    return [s for s in snapshots if any(table.snapshot(s) is not None for table in tables)]


def _uncounted(
    spark: SparkSession, name: TopicName, snapshots: Collection[int], job: str, since: datetime
) -> list[RemovingCommit]:
    """Return removals that no row counts yet: the given snapshots', and the job's since then."""
    if not table_exists(spark, name.records_table):
        return []
    table = java_table(spark, name.records_table)
    candidates = [
        made
        for made in _that_may_remove(spark, table, since)
        if made.id in snapshots or made.job == job
    ]
    if not candidates:
        return []
    oldest = datetime.fromtimestamp(min(made.at_ms for made in candidates) / 1000, UTC)
    counted = _counted(spark, name, oldest - LONGEST_RUN)
    return [
        RemovingCommit(made, rows, int(made.summary.get("deleted-data-files", 0)))
        for made in sorted(candidates, key=lambda made: made.sequence_number)
        if made.id not in counted
        and (rows := -sum(rows_changed(spark, table, [made.id]).values())) > 0
    ]


def _that_may_remove(spark: SparkSession, table: Any, since: datetime) -> Iterator[Committed]:
    """Yield ebbtide's snapshots since then that may have removed rows."""
    since_ms = since.timestamp() * 1000
    for snapshot in items(table.snapshots()):
        if snapshot.timestampMillis() >= since_ms and snapshot.operation() != "append":
            made = Committed.of(spark, snapshot)
            if made.is_own and made.may_remove_rows:
                yield made


def _counted(spark: SparkSession, name: TopicName, since: datetime) -> Collection[int]:
    """Return the snapshots named by rows in `runs` that began since then."""
    is_of_topic = (F.col("topic") == str(name)) & (F.col("started") >= F.lit(since))
    rows = spark.table(RUNS_TABLE).where(is_of_topic).select(F.explode("snapshot_ids").alias("id"))
    return {row["id"] for row in rows.collect()}
