"""Read a data table's commits since a snapshot: who made each, and the rows it changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import dropwhile
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.manifests import changed_files
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.state.topic_state import RowsBySegment


class Since(NamedTuple):
    """The commits on the main branch since a snapshot, newest first."""

    commits: list[Snapshot]
    is_reached: bool  # the history leads back to the snapshot
    is_cut: bool  # an older snapshot of the history is expired

    def until(self, snapshot: int) -> list[Snapshot]:
        """Return the commits up to a snapshot, newest first; none if it is not among them."""
        return list(dropwhile(lambda made: made.id != snapshot, self.commits))


def history_since(table: Table, snapshot: int | None) -> Since:
    """Return the table's history from now back to `snapshot`, or to its first snapshot for None."""
    commits: list[Snapshot] = []
    at = table.current
    while at is not None:
        if at.id == snapshot:
            return Since(commits, True, False)
        commits.append(at)
        if at.parent is None:
            break
        at = table.metadata.snapshots.get(at.parent)
        if at is None:
            return Since(commits, False, True)
    return Since(commits, snapshot is None, False)


def newest_untouched(table: Table, told: int) -> int | str:
    """Return the newest snapshot before a foreign change, or the reason why there is none.

    It is `told` or follows it. There is none if ebbtide itself has committed to the table since
    that change.
    """
    by_id = table.metadata.snapshots
    if told not in by_id:
        return f"snapshot {told}, the last before the change, is expired"
    newest_first = sorted(by_id.values(), key=lambda commit: -commit.sequence_number)
    target = next(c for c in newest_first if _leads_to(c, told, by_id))
    later = [c for c in by_id.values() if c.is_own and c.sequence_number > target.sequence_number]
    if later:
        return f"a job of ebbtide has committed snapshot {later[-1].id} since"
    return target.id


def _leads_to(commit: Snapshot | None, told: int, by_id: Mapping[int, Snapshot]) -> bool:
    """Return whether only ebbtide's commits and file rewrites are between `told` and a commit."""
    while commit is not None and commit.id != told:
        if commit.is_foreign or commit.parent is None:
            return False
        commit = by_id.get(commit.parent)
    return commit is not None


def rows_changed(table: Table, snapshots: Iterable[int]) -> RowsBySegment:
    """Count the live rows that these snapshots added, by place; removed rows count negative."""
    changed: Counter[tuple[int, int]] = Counter()
    for snapshot in snapshots:
        for sign, file in changed_files(table, table.metadata.snapshot(snapshot)):
            assert file.place is not None, file.path
            changed[file.place] += file.rows * (sign if file.is_data else -sign)
    return dict(changed)


def live_rows(spark: SparkSession, name: str, snapshot: int, more: str = "") -> DataFrame:
    """Return `partition, segment, rows` of each physical segment as of a snapshot.

    Only manifests are read. `more` has further aggregates over the columns of `data_files`.
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
