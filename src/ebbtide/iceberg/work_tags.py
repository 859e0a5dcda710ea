"""Tags on a table's snapshots, for as long as work in flight needs them.

Another tool may expire a snapshot at any moment. After a kill, a round or merge must recognise the
snapshots that it committed, and read older ones again. So the commit that makes a snapshot also
tags it. The tag has its own maximum age: otherwise the table's `history.expire.max-ref-age-ms`
would let another tool drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.commits import Step, commit
from ebbtide.numbers import MAX_LONG

_PREFIX = "ebbtide-"
_BEFORE = "-before"


class WorkTag(NamedTuple):
    """The tags of one piece of work: on the snapshot it committed, and on the one it read."""

    kind: str
    id: str

    @property
    def own(self) -> str:
        """The tag of the snapshot that the work has committed."""
        return f"{_PREFIX}{self.kind}-{self.id}"

    @property
    def before(self) -> str:
        """The tag of the snapshot that the work has read."""
        return self.own + _BEFORE


class TaggedSnapshots(NamedTuple):
    """The snapshots of a table that some work has tagged, or None for each that is not tagged."""

    own: int | None
    before: int | None


def tagged_by(spark: SparkSession, table: str, tag: WorkTag) -> TaggedSnapshots:
    """Return the table's snapshots that the work has tagged."""
    metadata = open_table(spark, table).metadata
    return TaggedSnapshots(metadata.tagged(tag.own), metadata.tagged(tag.before))


def is_committed(spark: SparkSession, table: str, tag: WorkTag) -> bool:
    """Return whether a round or merge is committed to the table, by its tag or else the history."""
    metadata = open_table(spark, table).metadata
    is_tagged = metadata.tagged(tag.own) is not None
    return is_tagged or metadata.find_after(f"ebbtide.{tag.kind}", tag.id) is not None


def tagging(table: Table, tag: WorkTag, before: int) -> tuple[Any, Callable[[Any], None]]:
    """Return a transaction to begin an update in, and the function that commits update and tags."""
    transaction = table.java.newTransaction()
    return transaction, partial(_commit_tagged, table.java, transaction, tag, before)


def _commit_tagged(table: Any, transaction: Any, tag: WorkTag, before: int, update: Any) -> None:
    try:
        update.commit()
        tags = transaction.manageSnapshots()
        snapshot_id = transaction.table().currentSnapshot().snapshotId()
        for name, snapshot in ((tag.own, snapshot_id), (tag.before, before)):
            tags = tags.createTag(name, snapshot).setMaxRefAgeMs(name, MAX_LONG)
        tags.commit()
        transaction.commitTransaction()
    except (Py4JJavaError, PySparkException) as error:
        table.refresh()
        if table.refs().get(tag.own) is not None or table.snapshot(before) is None:
            raise CommitConflictError(
                f"expected no other commit of {tag.own}, and snapshot {before} to exist, found "
                "that another job made the commit or another tool expired the snapshot. Run the "
                "job again"
            ) from error
        raise


def tag_before(spark: SparkSession, table: str, tag: WorkTag, snapshots: Collection[int]) -> None:
    """Tag the snapshots that the work is going to read, by one commit, unless they are tagged."""
    opened = open_table(spark, table)
    names = {
        WorkTag(f"{tag.kind}.{number}", tag.id).before: snapshot
        for number, snapshot in enumerate(sorted(snapshots))
    }
    missing = {
        name: snapshot_id for name, snapshot_id in names.items() if name not in opened.metadata.refs
    }
    if not missing:
        return
    tags = opened.java.manageSnapshots()
    for name, snapshot in missing.items():
        tags = tags.createTag(name, snapshot).setMaxRefAgeMs(name, MAX_LONG)
    commit(Step.UNDO_TAGGED, tags.commit)


def release_tags(
    spark: SparkSession, tables: Iterable[str], is_open: Callable[[str], bool]
) -> None:
    """Drop the tags of all work that is no longer open by `is_open`."""
    for table in tables:
        opened = open_table(spark, table)
        names = [name for name in _own_tags(opened) if not is_open(_id_of(name))]
        while names:
            names = _remove_tags(opened, names)
            opened = open_table(spark, table)


def _remove_tags(table: Table, names: Sequence[str]) -> list[str]:
    """Drop the tags; return those that still exist if another job dropped one meanwhile."""
    try:
        tags = table.java.manageSnapshots()
        for name in names:
            tags = tags.removeTag(name)
        commit(Step.TAGS_RELEASED, tags.commit)
    except (Py4JJavaError, PySparkException, CommitConflictError):
        there = _own_tags(open_table(table.spark, table.name))
        left = [name for name in names if name in there]
        if len(left) == len(names):
            raise
        return left
    return []


def _own_tags(table: Table) -> list[str]:
    return [name for name in table.metadata.refs if name.startswith(_PREFIX)]


def _id_of(name: str) -> str:
    return name.removeprefix(_PREFIX).removesuffix(_BEFORE).partition("-")[2]
