"""Tell the rows of an adopted table that have arrived since a snapshot from those before it.

An append tells them by its snapshot. A commit that also removes rows tells them by its files, as
long as nobody has moved their rows to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.files.manifests import changed_files
from ebbtide.iceberg.history import history_since
from ebbtide.iceberg.metadata import Snapshot

_APPEND, _REPLACE = "append", "replace"


class CountedRows(NamedTuple):
    """Live rows to sum up; `is_new` tells those that have arrived.

    `are_all` tells that all live rows of the table are among them, and `are_all_new` that nobody
    can tell which of these have arrived.
    """

    rows: DataFrame
    are_all: bool
    are_all_new: bool = False


def counted_rows(
    rows: AdoptedRows, table: Table, snapshot: int, seen: int | None
) -> CountedRows | None:
    """Return the rows to count in a snapshot, which was looked at before in `seen`.

    Only new ones where others have deleted nothing meanwhile; None where nothing has changed.
    """
    since = None if seen is None else _Since.of(table, seen, snapshot)
    if since is not None and not (since.adding or since.removing):
        return None
    if since is not None and since.are_appends:
        assert seen is not None
        return CountedRows(rows.appended(seen, snapshot).withColumn("is_new", F.lit(True)), False)
    live = rows.at(snapshot)
    marked = None if since is None else _marked(rows, live, table, since)
    if marked is not None:
        return CountedRows(marked, are_all=True)
    return CountedRows(live.withColumn("is_new", F.lit(True)), are_all=True, are_all_new=True)


class _Since(NamedTuple):
    """The commits since a snapshot: by which others brought or deleted rows, and which moved some.

    What ebbtide itself wrote or deleted, the state knows.
    """

    seen: int
    until: int
    adding: Sequence[Snapshot]
    removing: Sequence[Snapshot]
    moving: Sequence[Snapshot]

    @classmethod
    def of(cls, table: Table, seen: int, until: int) -> _Since | None:
        """Read the table's history up to a snapshot; None where `seen` is not in it."""
        history = history_since(table, seen)
        if not history.is_reached:
            return None
        commits = history.until(until)
        others = [of for of in commits if not of.is_own]
        return cls(
            seen,
            until,
            adding=[of for of in others if of.adds_rows],
            removing=[of for of in others if of.may_remove_rows],
            moving=[of for of in commits if _moves_rows(of)],
        )

    @property
    def add_by_appends(self) -> bool:
        """Whether each commit that brought rows did nothing else."""
        return all(of.operation == _APPEND for of in self.adding)

    @property
    def are_appends(self) -> bool:
        """Whether nobody else has done anything but append."""
        return self.add_by_appends and not self.removing


def _moves_rows(commit: Snapshot) -> bool:
    """Return whether a commit may have moved rows to other files."""
    return commit.operation == _REPLACE or (commit.is_own and commit.adds_rows)


def _marked(rows: AdoptedRows, live: DataFrame, table: Table, since: _Since) -> DataFrame | None:
    """Return the live rows with `is_new`; None where nobody can tell."""
    added = files_changed(table, since.adding, sign=1)
    if not added & files_changed(table, since.moving, sign=-1):
        files = pa.table({"new_file": pa.array(sorted(added), pa.string())})
        new = F.broadcast(rows.spark.createDataFrame(files))
        marked = live.join(new, F.col("file") == F.col("new_file"), "left")
        return marked.withColumn("is_new", F.col("new_file").isNotNull()).drop("new_file")
    if not since.add_by_appends:
        return None
    # Rows that moved since keep their offsets.
    appended = rows.appended(since.seen, since.until)
    new = appended.select(
        F.col("partition").alias("new_partition"), F.col("offset").alias("new_offset")
    ).distinct()
    is_same = (F.col("partition") == F.col("new_partition")) & (
        F.col("offset") == F.col("new_offset")
    )
    marked = live.join(new, is_same, "left")
    return marked.withColumn("is_new", F.col("new_offset").isNotNull()).drop(*new.columns)


def files_changed(table: Table, commits: Iterable[Snapshot], *, sign: int) -> set[str]:
    """Return the data files that commits added, or with -1 those that they removed."""
    return {
        file.path
        for of in commits
        for changed, file in changed_files(table, of)
        if changed == sign and file.is_data
    }
