"""expire_snapshots: delete files that no kept snapshot needs from the disk.

A row that was deleted stays in its file until the file is rewritten, and on the disk until the last
snapshot with that file expires. Snapshots are stamped by the machine that commits them, so their
age is taken on its clock, not on `--now`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, EbbtideError
from ebbtide.iceberg.catalog import open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.files.manifests import all_sizes, manifests_kept
from ebbtide.iceberg.topics import Topic, compare_and_set
from ebbtide.log.state.properties import MAX_SNAPSHOT_AGE, max_snapshot_age_ms
from ebbtide.log.state.snapshot_expiry import TableSnapshots, is_tidy, tidied
from ebbtide.moments import earlier
from ebbtide.runs.held.keeping import drop_unheld, keep_removed
from ebbtide.runs.proposals import Proposal
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.clean_log.segment_merge import merge_segments
from ebbtide.stages.expire_snapshots.left_on_disk import find_left_on_disk
from ebbtide.stages.expire_snapshots.needed_for_undo import needed_until_ms
from ebbtide.stages.expire_snapshots.rewriting import (
    Deletions,
    find_deletions,
    rewrite_batches,
    rewrite_files,
)
from ebbtide.text import number, size

log = logging.getLogger(__name__)


class Disk(NamedTuple):
    """The data and delete files that the snapshots of a topic's two tables need."""

    files: int
    bytes: int


class Due(NamedTuple):
    """Ids of snapshots that are past their age, by table, and files that are to be rewritten."""

    snapshots: Mapping[str, Collection[int]]
    files: Collection[str]

    @classmethod
    def of(cls, topic: Topic) -> Due:
        """Return what is due by the machine's clock."""
        snapshots = {what: sorted(due) for what, due in _due_of(topic).items()}
        return cls(snapshots, [file.path for file in find_deletions(topic).due])

    @classmethod
    def of_parameters(cls, parameters: Mapping[str, Any]) -> Due:
        """Return what a kept plan names."""
        return cls(*(parameters[name] for name in cls._fields))

    def among(self, expiring: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Return those of the tables' snapshots that the plan names."""
        return {
            what: [snapshot for snapshot in of if snapshot in self.snapshots.get(what, ())]
            for what, of in expiring.items()
        }

    def to_parameters(self) -> dict[str, Any]:
        """Return it as a kept plan names it."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class SnapshotsPlan(Proposal):
    """The snapshots and files of a topic that are due; no record of the log leaves by it."""

    topic: Topic
    due: Due

    def outcome(self) -> JobOutcome:
        """Return the numbers of what is due, and the files that the tables hold now."""
        outcome, disk = _outcome(self.topic), _disk(self.topic)
        outcome.topic |= {
            "files": disk.files,
            "bytes": disk.bytes,
            "snapshots_expired": sum(map(len, self.due.snapshots.values())),
            "files_rewritten": len(self.due.files),
        }
        return outcome


def _outcome(topic: Topic) -> JobOutcome:
    return JobOutcome({partition: topic.offsets_of(partition) for partition in topic.partitions})


def execute_expire_snapshots(topic: Topic, due: Due | None = None) -> JobOutcome:
    """Rewrite files too full of deletions, expire the snapshots past age, merge small segments.

    What hinders the files' rewriting or merging does not keep snapshots from expiring. `due` is a
    kept plan's: nothing else is then expired or rewritten, and nothing merged.
    """
    with manifests_kept():
        return _execute(topic, due)


def _execute(topic: Topic, due: Due | None) -> JobOutcome:
    outcome, max_age_ms = _outcome(topic), max_snapshot_age_ms(topic.properties)
    outcome.topic |= {"bytes_freed": 0, "snapshots_expired": 0, "max_snapshot_age_ms": max_age_ms}
    if deleted := drop_unheld(topic):
        outcome.topic["held_rows_deleted"] = deleted
    if not is_tidy(topic.properties, topic.config, _snapshots(topic), _clock_ms()):
        _free(topic, due, outcome)
    outcome.topic |= find_left_on_disk(topic).result()
    return outcome


def _free(topic: Topic, due: Due | None, outcome: JobOutcome) -> None:
    """Rewrite, expire and merge; the outcome tells what that wrote and freed."""
    before = _disk(topic)
    deletions = _deletions(topic, due, before)
    rewritten, rewrite_error = _tried(
        lambda: rewrite_files(topic, deletions) + rewrite_batches(topic)
    )
    # Nothing is freed before snapshots expire, so any bytes added until then were written.
    full = _disk(topic) if rewritten else before
    expired = _expire_due(topic, due, outcome)
    left = _disk(topic) if expired else full
    merged, merge_error = _tried(lambda: 0 if due is not None else merge_segments(topic))
    after = _disk(topic) if merged else left
    outcome.error = rewrite_error or merge_error
    outcome.topic |= {
        "bytes_written": max(0, full.bytes - before.bytes) + max(0, after.bytes - left.bytes),
        **_freed(full, left, after),
        "segments_merged": merged,
        "files_rewritten": rewritten,
        "snapshots_expired": expired,
    }
    if not (rewritten or merged or outcome.error or due is not None):
        # The current tables have nothing left to rewrite or merge.
        change = tidied(_snapshots(topic), topic.config)
        compare_and_set(topic, Step.TIDIED, lambda _: change)


def _deletions(topic: Topic, due: Due | None, before: Disk) -> Deletions:
    """Find the files too full of deletions, of a kept plan's only those that it names."""
    deletions = find_deletions(topic)
    if due is not None:
        named = set(due.files)
        deletions = deletions._replace(due=[of for of in deletions.due if of.path in named])
    line = "%d files of %s, with %s deleted rows still in them"
    log.info(line, before.files, size(before.bytes), number(deletions.rows))
    return deletions


def _expire_due(topic: Topic, due: Due | None, outcome: JobOutcome) -> int:
    """Expire the snapshots past their age, of a kept plan's only those that it names; how many.

    Held records that only they have are copied first.
    """
    expiring = _due_of(topic)
    if due is not None:
        expiring = due.among(expiring)
    if kept := keep_removed(topic, expiring["records"]) if expiring["records"] else {}:
        outcome.topic["kept_by_holds"] = kept
    tables = _tables(topic)
    return sum(_expire(topic.spark, tables[what], of) for what, of in expiring.items())


def _freed(full: Disk, left: Disk, after: Disk) -> dict[str, int]:
    """Tell what left the disk when the snapshots expired, and what stays on it."""
    files, freed_bytes = max(0, full.files - left.files), max(0, full.bytes - left.bytes)
    line = "%d files of %s left the disk, %d of %s stay"
    log.info(line, files, size(freed_bytes), after.files, size(after.bytes))
    return {"bytes_freed": freed_bytes, "bytes_kept": after.bytes, "files_freed": files}


def _tables(topic: Topic) -> dict[str, str]:
    """Return all tables whose snapshots expire, by what they hold."""
    name = topic.name
    tables = {"records": name.records_table, "batches": name.batches_table}
    if table_exists(topic.spark, name.quarantine_table):
        tables["quarantine"] = name.quarantine_table
    if table_exists(topic.spark, name.held_table):
        tables["held"] = name.held_table
    return tables


def _snapshots(topic: Topic) -> dict[str, TableSnapshots]:
    return {what: _snapshots_of(topic.spark, of) for what, of in _tables(topic).items()}


def _snapshots_of(spark: SparkSession, name: str) -> TableSnapshots:
    table = open_table(spark, name)
    return TableSnapshots(
        None if table.current is None else table.current.id,
        min(table.metadata.unnamed.values(), default=None),
    )


def _clock_ms() -> int:
    return int(time.time() * 1000)


def _tried(work: Callable[[], int]) -> tuple[int, Exception | None]:
    """Run the work; return its count and, if it failed, the error.

    A CommitConflictError is raised, so that a lost race is tried again.
    """
    try:
        return work(), None
    except CommitConflictError:
        raise
    except (EbbtideError, Py4JJavaError, OSError, ValueError) as error:
        return 0, error


def expire_own_snapshots(spark: SparkSession, table: str) -> None:
    """Expire old snapshots of one of ebbtide's own tables; its rows stay."""
    text = open_table(spark, table).metadata.properties.get(MAX_SNAPSHOT_AGE)
    age_ms = max_snapshot_age_ms({MAX_SNAPSHOT_AGE: text} if text else {})
    _expire(spark, table, _due_snapshots(spark, table, age_ms))


def _disk(topic: Topic) -> Disk:
    sizes: dict[str, int] = {}
    for table in (topic.name.records_table, topic.name.batches_table):
        sizes |= all_sizes(open_table(topic.spark, table))
    return Disk(len(sizes), sum(sizes.values()))


def _due_of(topic: Topic) -> dict[str, list[int]]:
    """Return the snapshots of each table that are past their age and that no undo needs."""
    spark, age_ms = topic.spark, max_snapshot_age_ms(topic.properties)
    due: dict[str, list[int]] = {}
    for what, table in _tables(topic).items():
        past = _due_snapshots(spark, table, age_ms)
        needed = needed_until_ms(topic, what, open_table(spark, table).metadata, past)
        due[what] = [snapshot for snapshot in past if snapshot not in needed]
    return due


def _due_snapshots(spark: SparkSession, table: str, max_age_ms: int) -> list[int]:
    older_than_ms = earlier(_clock_ms(), max_age_ms)
    unnamed = open_table(spark, table).metadata.unnamed
    return [snapshot for snapshot, ms in unnamed.items() if ms < older_than_ms]


def _expire(spark: SparkSession, table: str, due: Collection[int]) -> int:
    """Expire the snapshots and delete their files; how many snapshots."""
    if not due:
        return 0
    log.info("%d snapshots of %s are past their age", len(due), table)
    # Nothing expires by age alone. Where ids are named, Iceberg deletes what no snapshot reaches
    # any more. Else it would delete a Puffin file as soon as one of its vectors is replaced,
    # though others of it are live.
    expiry = open_table(spark, table).java.expireSnapshots().expireOlderThan(0).retainLast(1)
    for snapshot in due:
        expiry = expiry.expireSnapshotId(snapshot)
    commit(Step.EXPIRE_SNAPSHOTS, expiry.commit)
    return len(due)
