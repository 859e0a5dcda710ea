"""Count the records that left a topic, each in one row in `runs`: that of the removing run.

Counts come from snapshots. So an attempt that lost a race or failed counts too, and so does work of
a killed job that another one finishes. A killed job writes no row: the next run of that job counts
what it removed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table, find_table
from ebbtide.iceberg.commits import ROWS, Commits
from ebbtide.iceberg.files.matching_rows import Asked, matching_files
from ebbtide.iceberg.history import rows_changed
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.log.adopted.layout import LAYOUT
from ebbtide.log.attempts import RUNS
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import ROUND
from ebbtide.moments import minute, to_datetime
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.text import number

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
    tables = [table for table in (find_table(spark, of) for of in names) if table is not None]
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
    asked = Asked("topic", frozenset({str(name)}), ("started", since))
    counted = set[int]()
    for of in matching_files(spark, RUNS.in_catalog(), asked, ("topic", "started", "snapshot_ids")):
        counted |= set(pc.list_flatten(of.rows["snapshot_ids"]).to_pylist())
    return counted
