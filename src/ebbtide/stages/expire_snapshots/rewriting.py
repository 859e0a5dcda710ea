"""Rewrite files with too many deleted rows: until then a deleted row stays in its file.

Iceberg's procedure rewrite_data_files does the same with a Spark job for each segment.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.data_files import count_rows, live_groups, write_groups
from ebbtide.iceberg.files.file_commits import (
    PlannedRewrite,
    Replacement,
    planned_rewrites,
    prepare_rewrite,
)
from ebbtide.iceberg.files.manifests import ListedFile, current_files
from ebbtide.iceberg.files.segment_planning import plan_with_lineage
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.tasks import map_segments

log = logging.getLogger(__name__)

FILES_A_RUN = 1000


class Deletions(NamedTuple):
    """Rows that are deleted and lie in files of a table's current snapshot still."""

    rows_below_share: int
    rows_in_active_segments: int
    rows_due: int
    due: list[ListedFile]  # files that have so many that they are to be rewritten, the worst first
    dangling: list[str]  # files that are gone themselves, while a deletion vector names them

    @property
    def are_due(self) -> bool:
        """Whether there is anything to write or to put away."""
        return bool(self.due or self.dangling)

    @property
    def rows(self) -> int:
        """All of them."""
        return self.rows_below_share + self.rows_in_active_segments + self.rows_due


def find_deletions(topic: Topic) -> Deletions:
    """Find the deleted rows of the records table and which files are due, from manifests alone."""
    return _deletions(topic, topic.name.records_table)


def rewrite_batches(topic: Topic) -> int:
    """Rewrite the files of the batches table that have deleted rows, where none may stay.

    Else they are written anew by the rounds that change them. Return how many.
    """
    if not _keeps_no_vector(topic):
        return 0
    table = topic.name.batches_table
    return rewrite_files(topic, _deletions(topic, table), table)


def _deletions(topic: Topic, table: str) -> Deletions:
    files = current_files(open_table(topic.spark, table))
    data = {file.path: file for file in files if file.is_data}
    vectors = {file.referenced: file.rows for file in files if file.referenced is not None}
    dangling = [path for path in vectors if path not in data]
    deleted = {path: rows for path, rows in vectors.items() if path in data}
    takes_active, share = _keeps_no_vector(topic), _rewritten_share(topic)
    closed = [path for path in deleted if takes_active or _is_closed(topic, data[path])]
    due = [path for path in closed if deleted[path] >= share * data[path].rows]
    due.sort(key=lambda path: -deleted[path])
    rows, rows_closed, rows_due = (
        sum(deleted[path] for path in paths) for paths in (deleted, closed, due)
    )
    worst_first = [data[path] for path in due]
    return Deletions(rows_closed - rows_due, rows - rows_closed, rows_due, worst_first, dangling)


def _keeps_no_vector(topic: Topic) -> bool:
    """Return whether no deletion vector may stay, for engines that cannot read one."""
    return topic.config.rewrite_deleted_share == 0


def _rewritten_share(topic: Topic) -> float:
    """Return the share of deleted rows that makes a file due; a setting of 0 means any row."""
    return max(topic.config.rewrite_deleted_share, 1e-9)


def _is_closed(topic: Topic, file: ListedFile) -> bool:
    partition, segment = _place(file)
    state = topic.partitions.get(partition)
    return state is not None and segment < state.active_segment


def _place(file: ListedFile) -> tuple[int, int]:
    return file.partition["partition"], file.partition["segment"]


def rewrite_files(topic: Topic, deletions: Deletions, table: str | None = None) -> int:
    """Rewrite the files that are due without their deleted rows; return how many.

    The table is that of the records if none is named.
    """
    if not deletions.are_due:
        return 0
    spark, table = topic.spark, table or topic.name.records_table
    most = len(deletions.due) if _keeps_no_vector(topic) else FILES_A_RUN
    due = {file.path: _place(file) for file in deletions.due[:most]}
    segments = set(due.values())
    log.info("rewrites files of %s of which %g or more is deleted", table, _rewritten_share(topic))
    units = [
        unit._replace(files=(file,))
        for unit in plan_with_lineage(spark, table, segments)
        for file in unit.files
        if file.path in due
    ]
    work = planned_rewrites(spark, table, units)
    written = map_segments(spark, _write_anew, work, count_rows(units), "rewrites files of")
    rewrite = prepare_rewrite(spark, table, segments, written, {}, dangling=deletions.dangling)
    commit(Step.REWRITE_FILES, rewrite)
    return len(written)


def _write_anew(planned: PlannedRewrite) -> Replacement:
    """Write the live rows of the unit's one file to another, in a task."""
    unit, path = planned
    (file,) = unit.files
    is_written = write_groups(unit.store, path, live_groups(unit, file))
    return Replacement(unit, path if is_written else None)
