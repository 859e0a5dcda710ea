"""Read a data table's snapshots since one of them: who made each, and the rows it changed.

Every commit of ebbtide on a data table says so in its summary. A commit that only moves rows to
other files has the operation `replace` (Iceberg table spec, snapshots).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from ebbtide.iceberg.commits import JOB, OWN, TOPIC
from ebbtide.iceberg.files.manifests import changed_files
from ebbtide.log.state.row_counts import RowsBySegment
from ebbtide.spark.jvm import as_dict, items

_ADDED = ("added-records",)
_REMOVED = ("deleted-records", "added-position-deletes", "added-equality-deletes")
_FILES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")


class Committed(NamedTuple):
    """A snapshot, and what its summary says."""

    id: int
    sequence_number: int
    at_ms: int
    parent: int | None
    operation: str
    summary: dict[str, str]

    @classmethod
    def of(cls, spark: SparkSession, snapshot: Any) -> Committed:
        """Read one of Iceberg's snapshots."""
        parent = snapshot.parentId()
        return cls(
            int(snapshot.snapshotId()),
            int(snapshot.sequenceNumber()),
            int(snapshot.timestampMillis()),
            None if parent is None else int(parent),
            str(snapshot.operation()),
            as_dict(spark, snapshot.summary()),
        )

    @property
    def is_own(self) -> bool:
        """Whether a job of ebbtide made it."""
        return OWN in self.summary

    @property
    def job(self) -> str | None:
        """The job that made the commit; None for a foreign commit or one of an older version."""
        return self.summary.get(JOB)

    def is_of(self, topic: str) -> bool:
        """Return whether it is of this topic, or of a table with one topic alone."""
        return self.summary.get(TOPIC, topic) == topic

    @property
    def may_remove_rows(self) -> bool:
        """Whether rows may have left by it: files did, or rows of files."""
        return self.operation != "replace" and any(
            self.summary.get(name, "0") != "0" for name in _REMOVED
        )

    @property
    def adds_rows(self) -> bool:
        """Whether it may have brought new rows: it added some and did not only move them."""
        return self.operation != "replace" and self.summary.get("added-records", "0") != "0"

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else made it and changed rows by it."""
        return not (self.is_own or self.operation == "replace") and any(
            self.summary.get(name, "0") != "0" for name in _FILES
        )

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        engine = self.summary.get("engine-name")
        by = f" by {engine} {self.summary.get('engine-version', '')}".rstrip() if engine else ""
        added, removed = (
            sum(int(self.summary.get(name, 0)) for name in names) for names in (_ADDED, _REMOVED)
        )
        return (
            f"{self.operation}{by} at {at} (snapshot {self.id}): {added} rows added, {removed} "
            "removed"
        )


class Since(NamedTuple):
    """The commits on the main branch since a snapshot, newest first.

    `is_reached` tells whether that snapshot is below them, `is_cut` whether some below them are
    expired.
    """

    commits: list[Committed]
    is_reached: bool
    is_cut: bool


def history_since(spark: SparkSession, table: Any, snapshot: int | None) -> Since:
    """Return the table's history from now back to `snapshot`; back to its first for None."""
    commits: list[Committed] = []
    at = table.currentSnapshot()
    while at is not None:
        if int(at.snapshotId()) == snapshot:
            return Since(commits, True, False)
        commits.append(Committed.of(spark, at))
        parent = commits[-1].parent
        if parent is None:
            break
        at = table.snapshot(parent)
        if at is None:
            return Since(commits, False, True)
    return Since(commits, snapshot is None, False)


def newest_untouched(spark: SparkSession, table: Any, told: int) -> int | str:
    """Return the newest snapshot since `told` without a foreign change before it, or why none is.

    None is either where ebbtide itself has committed to the table since that change.
    """
    made = [Committed.of(spark, snapshot) for snapshot in items(table.snapshots())]
    by_id = {commit.id: commit for commit in made}
    if told not in by_id:
        return f"snapshot {told}, from before the change, has been expired"
    newest_first = sorted(made, key=lambda commit: -commit.sequence_number)
    target = next(c for c in newest_first if _leads_to(c, told, by_id))
    later = [c for c in made if c.is_own and c.sequence_number > target.sequence_number]
    if later:
        return f"a job of ebbtide has worked on it since, in snapshot {later[-1].id}"
    return target.id


def _leads_to(commit: Committed | None, told: int, by_id: Mapping[int, Committed]) -> bool:
    """Return whether nothing but ebbtide's commits and moved files lies between."""
    while commit is not None and commit.id != told:
        if commit.is_foreign or commit.parent is None:
            return False
        commit = by_id.get(commit.parent)
    return commit is not None


def rows_changed(spark: SparkSession, table: Any, snapshots: Iterable[int]) -> RowsBySegment:
    """Count the live rows that these snapshots added, by place; negative for removed rows."""
    changed: Counter[tuple[int, int]] = Counter()
    for snapshot in snapshots:
        for sign, file in changed_files(spark, table, table.snapshot(snapshot)):
            assert file.place is not None, file.path
            changed[file.place] += file.rows * (sign if file.is_data else -sign)
    return dict(changed)


def live_rows(spark: SparkSession, name: str, snapshot: int, more: str = "") -> DataFrame:
    """Return `partition, segment, rows` of each physical segment as of a snapshot.

    Only manifests are read. `more` are further aggregates over the columns of `data_files`.
    """
    return spark.sql(
        f"""
        SELECT partition.`partition` AS `partition`, partition.segment AS segment,
            {more + "," if more else ""} sum(record_count - coalesce(deleted.rows, 0)) AS rows
        FROM {name}.data_files VERSION AS OF {snapshot} AS data
        LEFT JOIN (
            SELECT referenced_data_file, sum(record_count) AS rows
            FROM {name}.delete_files VERSION AS OF {snapshot}
            GROUP BY referenced_data_file
        ) AS deleted ON deleted.referenced_data_file = data.file_path
        GROUP BY 1, 2
        """
    )
