"""Commits by which ebbtide removed rows of an adopted table, and the rows to restore."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.key_files import commit_of
from ebbtide.iceberg.adopted.removal import write_new_files
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import java_table, open_table
from ebbtide.iceberg.file_commits import Commit
from ebbtide.iceberg.history import history_since
from ebbtide.iceberg.manifests import changed_files
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.iceberg.topics import Topic
from ebbtide.spark.jvm import iceberg_class

# In the summary of an undo's snapshot, by partition: the undo restored the rows of all removals
# after this snapshot.
UNDONE_SINCE = "ebbtide.undone.since"
# Less than any offset, by the type of the offset column.
_NO_OFFSET = {"int": -(2**31), "long": -(2**62)}


class Removals(NamedTuple):
    """A table's commits since a snapshot, oldest first. The table may have other topics too."""

    topic: str
    commits: Sequence[Snapshot]
    newest: int  # the snapshot at which the history was read
    is_whole: bool  # False if the history does not reach the first snapshot

    @classmethod
    def since(cls, topic: Topic, snapshot: int) -> Removals:
        """Read the history of the topic's table."""
        history = history_since(open_table(topic.spark, topic.name.records_table), snapshot)
        newest = history.commits[0].id if history.commits else snapshot
        oldest_first = list(reversed(history.commits))
        return cls(str(topic.name), oldest_first, newest, history.is_reached)

    def after(self, snapshot: int) -> Sequence[Snapshot]:
        """Return the commits after a snapshot, or all if the snapshot is older than the history."""
        return self.commits[self._place_of(snapshot) :]

    def of_others_after(self, snapshot: int) -> Snapshot | None:
        """Return another tool's first commit after a snapshot that may have removed rows."""
        commits = (made for made in self.after(snapshot) if not made.is_own)
        return next((made for made in commits if made.may_remove_rows), None)

    def standing_after(self, snapshot: int, partition: int) -> list[Snapshot]:
        """Return ebbtide's removals after a snapshot that no undo of the partition has undone."""
        standing: list[Snapshot] = []
        for made in filter(self._is_ours, self.after(snapshot)):
            since = json.loads(made.summary.get(UNDONE_SINCE, "{}")).get(str(partition))
            if since is not None:
                undone = {commit.id for commit in self.after(since)}
                standing = [removal for removal in standing if removal.id not in undone]
            elif made.may_remove_rows:
                standing.append(made)
        return standing

    def _is_ours(self, made: Snapshot) -> bool:
        return made.is_own and made.is_of(self.topic)

    def _place_of(self, snapshot: int) -> int:
        places = (n for n, made in enumerate(self.commits, 1) if made.id == snapshot)
        return next(places, 0)


def rows_removed(rows: AdoptedRows, made: Snapshot, partitions: Collection[int]) -> DataFrame:
    """Return the rows of these partitions that a commit removed, as partition, offset and `row`.

    Its snapshot and the one before must exist. If the commit rewrote files, rows are compared by
    offset: an offset that is still in the table counts as not removed.
    """
    assert made.parent is not None
    losing, added = _changed(rows, made)
    before, after = rows.as_of(made.parent), rows.as_of(made.id)
    if losing is not None:
        before = _in_files(before, losing)
        after = _in_files(after, losing | added)
    place = ["partition", "offset"] if added else ["file", "position"]
    of_partitions = before.where(F.col("partition").isin(list(partitions)))
    gone = of_partitions.join(after.select(place), place, "left_anti")
    return gone.select("partition", "offset", "row")


def _changed(rows: AdoptedRows, made: Snapshot) -> tuple[set[str] | None, set[str]]:
    """Return the data files that lost rows by a commit (or None), and those that it added.

    None means that a delete file does not name its data file.
    """
    table = open_table(rows.spark, rows.table)
    losing: set[str] = set()
    added: set[str] = set()
    is_known = True
    for sign, file in changed_files(table, made):
        if file.is_data:
            (added if sign > 0 else losing).add(file.path)
        elif file.referenced is not None:
            losing.add(file.referenced)
        else:
            is_known = False
    return (losing if is_known else None), added


def _in_files(records: DataFrame, paths: Collection[str]) -> DataFrame:
    known = records.sparkSession.createDataFrame(
        pa.table({"file": pa.array(sorted(paths), pa.string())})
    )
    return records.join(F.broadcast(known), "file", "left_semi")


def can_give_back(rows: AdoptedRows) -> bool:
    """Return whether all files have bounds of the offset, so that an overwrite can restore rows."""
    table = java_table(rows.spark, rows.table)
    tasks = table.newScan().filter(_no_row(rows)).planFiles()
    try:
        return not tasks.iterator().hasNext()
    finally:
        tasks.close()


def prepare_return(
    rows: AdoptedRows, parts: Sequence[DataFrame], snapshot: int, summary: Mapping[str, str]
) -> Commit:
    """Write the rows of the parts again, and return the commit: one overwrite snapshot.

    Streams that skip overwrites then do not read old rows as new ones. The commit is a conflict if
    another writer has removed or moved rows since `snapshot`.
    """
    table = java_table(rows.spark, rows.table)
    returning = reduce(DataFrame.unionByName, parts).select("row.*")
    any_row = iceberg_class(rows.spark, "expressions.Expressions").alwaysTrue()
    update = table.newOverwrite().overwriteByRowFilter(_no_row(rows))
    update = update.conflictDetectionFilter(any_row).validateNoConflictingDeletes()
    update = update.validateFromSnapshot(snapshot)
    for file in write_new_files(rows.spark, table, returning):
        update = update.addFile(file)
    return commit_of(rows.spark, table, update, summary)


def _no_row(rows: AdoptedRows) -> Any:
    """Return a condition that no row meets, which the bounds of a file's offsets prove."""
    offset = rows.layout.offset
    expressions = iceberg_class(rows.spark, "expressions.Expressions")
    return expressions.lessThan(offset.name, _NO_OFFSET[offset.type])
