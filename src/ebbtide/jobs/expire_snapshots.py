"""expire_snapshots: expire snapshots, and delete the files that no retained snapshot needs.

A deleted row stays in its file until the file is rewritten, and on the disk until the last snapshot
with that file expires. A snapshot's time is the machine clock of its commit, so its age is measured
by the machine clock, not by `--now`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, EbbtideError, NotCoveredError, is_transient
from ebbtide.iceberg.catalog import find_table, open_table, table_exists
from ebbtide.iceberg.commits import Step, commit
from ebbtide.iceberg.data_files import count_rows, live_groups, write_groups
from ebbtide.iceberg.file_commits import (
    PlannedRewrite,
    Replacement,
    planned_rewrites,
    prepare_rewrite,
)
from ebbtide.iceberg.manifests import (
    ListedFile,
    all_sizes,
    current_files,
    manifests_kept,
    snapshots_with_old_files,
)
from ebbtide.iceberg.metadata import TableMetadata
from ebbtide.iceberg.object_versions import noncurrent_versions
from ebbtide.iceberg.segment_planning import plan_with_lineage
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.left_files import LeftFiles, delete_left_files
from ebbtide.jobs.unfinished import settle
from ebbtide.ledger.own_tables import RUNS, OwnTable
from ebbtide.ledger.plans import PLANS
from ebbtide.ledger.topic_summary import LeftOnDisk, TableSnapshots, is_tidy, tidied
from ebbtide.ledger.undo_points import UNDO_POINTS, can_be_undone, standing_points
from ebbtide.moments import earlier, later, machine_clock, to_datetime, to_ms
from ebbtide.numbers import MAX_LONG
from ebbtide.runner.holds import drop_unheld, keep_removed
from ebbtide.runner.job import Job, Parameters, PlanRequest, Proposal
from ebbtide.runner.outages import explained
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.names import CATALOG, TopicName, quoted
from ebbtide.spark.tasks import map_segments
from ebbtide.state.deadline import state_deletes
from ebbtide.state.deletes import UNSEEN, AllDeletes, Files, after_tidying
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE, max_snapshot_age_ms, to_changes
from ebbtide.text import number, size


def needed_until_ms(
    topic: Topic, what: str, table: TableMetadata, snapshots: Collection[int]
) -> dict[int, int]:
    """Return the snapshots that an undo may need, each with the time (ms) until when it may.

    An undo needs the snapshots of points younger than `ebbtide.undo.retention.ms`; `what` is
    records or batches. A point's snapshot was current at its time. If none of `snapshots` was
    current since then, as in most nightly runs, no point is read.
    """
    undo_ms = topic.config.undo_retention_ms
    if not snapshots or not undo_ms:
        return {}
    since_ms = earlier(to_ms(machine_clock()), undo_ms)
    if table.current_since(since_ms).isdisjoint(snapshots):
        return {}
    since = to_datetime(since_ms)
    standing = standing_points(read_points(topic.spark, topic.name, since)).values()
    points = [
        p
        for partition_points in standing
        for n, p in enumerate(partition_points)
        if can_be_undone(partition_points[n:])
    ]
    until_ms: dict[int, int] = {}
    for point in sorted(points, key=lambda point: point.at):
        snapshot = {"records": point.records_snapshot, "batches": point.batches_snapshot}.get(what)
        if snapshot is not None and snapshot in snapshots:
            until_ms[snapshot] = later(to_ms(point.at), undo_ms)
    return until_ms


# Rewrite files with too many deleted rows, to free the deleted rows.
#
# Iceberg's procedure rewrite_data_files would run one Spark job per segment.


log = logging.getLogger(__name__)

FILES_A_RUN = 1000


class Deletions(NamedTuple):
    """Deleted rows that are still in files of a table's current snapshot."""

    rows_below_share: int  # in files with too few of them to rewrite
    rows_in_active_segments: int
    rows_due: int  # in the files `due`
    due: list[ListedFile]  # files to rewrite: forced ones, then most deleted rows first
    dangling: list[str]  # data files that are gone, but still have a deletion vector
    forced: int = 0  # files among `due` that must be rewritten now for the deadline of erasure

    @property
    def are_due(self) -> bool:
        """True if a file has to be rewritten or a dangling vector removed."""
        return bool(self.due or self.dangling)

    @property
    def rows(self) -> int:
        """The number of all deleted rows."""
        return self.rows_below_share + self.rows_in_active_segments + self.rows_due


def find_deletions(topic: Topic, now_ms: int | None = None) -> Deletions:
    """Find the deleted rows of the records table and the files to rewrite, from manifests alone.

    At `now_ms`, by default of the machine clock, the topic's deadline may force a rewrite.
    """
    forced = _forced_by_deadline(topic, _clock_ms() if now_ms is None else now_ms)
    return _deletions(topic, topic.name.records_table, forced)


def _forced_by_deadline(topic: Topic, now_ms: int) -> dict[int, int]:
    """Return the commit up to which a partition's files with deleted rows must be rewritten."""
    deadline = topic.deadline
    if deadline is None:
        return {}
    commits = {p: deadline.forced_files(s, now_ms) for p, s in topic.partitions.items()}
    return {
        p: MAX_LONG if number == UNSEEN else number
        for p, number in commits.items()
        if number is not None
    }


def rewrite_batches(topic: Topic) -> int:
    """Rewrite the files of the batches table that have deleted rows, and return their number.

    Do nothing unless the topic forbids deletion vectors: cleaner rounds rewrite these files.
    """
    if not _keeps_no_vector(topic):
        return 0
    table = topic.name.batches_table
    return rewrite_files(topic, _deletions(topic, table), table)


def _deletions(
    topic: Topic, table: str, forced_up_to: Mapping[int, int] = MappingProxyType({})
) -> Deletions:
    files = current_files(open_table(topic.spark, table))
    data = {file.path: file for file in files if file.is_data}
    vectors = {file.referenced: file.rows for file in files if file.referenced is not None}
    dangling = [path for path in vectors if path not in data]
    deleted = {path: rows for path, rows in vectors.items() if path in data}
    takes_active, share = _keeps_no_vector(topic), _rewritten_share(topic)
    closed = [path for path in deleted if takes_active or _is_closed(topic, data[path])]
    forced = {path for path in closed if _is_forced(data[path], forced_up_to)}
    due = [p for p in closed if p in forced or deleted[p] >= share * data[p].rows]
    due.sort(key=lambda path: (path not in forced, -deleted[path]))
    rows, rows_closed, rows_due = (
        sum(deleted[path] for path in paths) for paths in (deleted, closed, due)
    )
    worst_first = [data[path] for path in due]
    below = rows_closed - rows_due
    return Deletions(below, rows - rows_closed, rows_due, worst_first, dangling, forced=len(forced))


def _is_forced(file: ListedFile, forced_up_to: Mapping[int, int]) -> bool:
    partition, _ = _place(file)
    return file.sequence_number <= forced_up_to.get(partition, -1)


def _keeps_no_vector(topic: Topic) -> bool:
    """Return whether the topic forbids deletion vectors, for engines that cannot read them."""
    return topic.config.rewrite_deleted_ratio == 0


def _rewritten_share(topic: Topic) -> float:
    """Return the share of deleted rows at which a file is rewritten; 0 means any deleted row."""
    return max(topic.config.rewrite_deleted_ratio, 1e-9)


def _is_closed(topic: Topic, file: ListedFile) -> bool:
    partition, segment = _place(file)
    state = topic.partitions.get(partition)
    return state is not None and segment < state.active_segment


def _place(file: ListedFile) -> tuple[int, int]:
    return file.partition["partition"], file.partition["segment"]


def rewrite_files(topic: Topic, deletions: Deletions, table: str | None = None) -> int:
    """Rewrite the due files without their deleted rows, and return their number.

    `table` is the records table by default.
    """
    if not deletions.are_due:
        return 0
    spark, table = topic.spark, table or topic.name.records_table
    most = max(FILES_A_RUN, deletions.forced)
    if _keeps_no_vector(topic):
        most = len(deletions.due)
    due = {file.path: _place(file) for file in deletions.due[:most]}
    segments = set(due.values())
    log.info(
        "rewriting %d files of %s with a share of deleted rows of %g or more",
        len(due),
        table,
        _rewritten_share(topic),
    )
    units = [
        unit._replace(files=(file,))
        for unit in plan_with_lineage(spark, table, segments)
        for file in unit.files
        if file.path in due
    ]
    work = planned_rewrites(spark, table, units)
    written = map_segments(spark, _write_anew, work, count_rows(units), "rewriting files of")
    rewrite = prepare_rewrite(spark, table, segments, written, {}, dangling=deletions.dangling)
    commit(Step.REWRITE_FILES, rewrite)
    return len(written)


def _write_anew(planned: PlannedRewrite) -> Replacement:
    """Write the live rows of the unit's only file to a new one, in a Spark task."""
    unit, path = planned
    (file,) = unit.files
    is_written = write_groups(unit.store, path, live_groups(unit, file))
    return Replacement(unit, path if is_written else None)


def find_left_on_disk(
    topic: Topic, outside: Mapping[str, int] | None = None, now_ms: int | None = None
) -> LeftOnDisk:
    """Find the snapshots and files that keep deleted rows of the records table on the disk.

    `outside` is what no snapshot needs; None: nothing was looked for outside the snapshots.
    """
    deletions = find_deletions(topic, now_ms)
    table = open_table(topic.spark, topic.name.records_table)
    metadata, holding = table.metadata, snapshots_with_old_files(table)
    until_ms = needed_until_ms(topic, "records", metadata, holding)
    return LeftOnDisk(
        rows_below_share=deletions.rows_below_share,
        rows_in_active_segments=deletions.rows_in_active_segments,
        rows_due=deletions.rows_due,
        oldest_snapshot_ms=min(metadata.unnamed.values(), default=None),
        old_files_ms=max(
            (metadata.snapshots[snapshot_id].at_ms for snapshot_id in holding), default=None
        ),
        old_files_refs={
            name: ref["type"]
            for name, ref in sorted(metadata.refs.items())
            if ref["snapshot-id"] in holding
        },
        undo_until_ms=max(until_ms.values(), default=None),
        still_in={**(outside or {}), **_copies(topic)},
    )


class Disk(NamedTuple):
    """The data and delete files that the snapshots of a topic's two tables need."""

    files: int
    bytes: int


class Due(NamedTuple):
    """Ids of expired snapshots, by table, and paths of files to rewrite."""

    snapshots: Mapping[str, Collection[int]]
    files: Collection[str]

    @classmethod
    def of(cls, topic: Topic, now_ms: int | None = None) -> Due:
        """Return the snapshots and files that are due, snapshots by the machine clock."""
        snapshots = {what: sorted(due) for what, due in _due_of(topic).items()}
        return cls(snapshots, [file.path for file in find_deletions(topic, now_ms).due])

    @classmethod
    def of_parameters(cls, parameters: Mapping[str, Any]) -> Due:
        """Parse the parameters of a stored plan."""
        return cls(*(parameters[name] for name in cls._fields))

    def among(self, expiring: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Return the snapshots of `expiring` that are in the plan, by table."""
        return {
            what: [snapshot for snapshot in snapshots if snapshot in self.snapshots.get(what, ())]
            for what, snapshots in expiring.items()
        }

    def to_parameters(self) -> dict[str, Any]:
        """Return the parameters of a stored plan."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class SnapshotsPlan(Proposal):
    """The snapshots and files of a topic that are due; it removes no record."""

    topic: Topic
    due: Due | None  # None: decided at execution
    now_ms: int | None = None  # of the run; None: the machine clock

    def outcome(self) -> JobOutcome:
        """Return the numbers of due snapshots and files, and of all files of the tables."""
        assert self.due is not None
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


def execute_expire_snapshots(
    topic: Topic, due: Due | None = None, now_ms: int | None = None
) -> JobOutcome:
    """Rewrite files with too many deleted rows, expire old snapshots, merge small segments.

    Snapshots expire even if rewriting or merging fails. With the `due` of a stored plan, only its
    snapshots expire, only its files are rewritten, and nothing is merged.
    """
    with manifests_kept():
        return _execute(topic, due, _clock_ms() if now_ms is None else now_ms)


def _execute(topic: Topic, due: Due | None, now_ms: int) -> JobOutcome:
    outcome, max_age_ms = _outcome(topic), max_snapshot_age_ms(topic.properties)
    outcome.topic |= {"bytes_freed": 0, "snapshots_expired": 0, "max_snapshot_age_ms": max_age_ms}
    outside: dict[str, int] = {}
    if deleted := drop_unheld(topic):
        outcome.topic["held_rows_deleted"] = deleted
    deadline, seen_at = topic.deadline, _sequence_number(topic)
    is_waited_for = deadline is not None and deadline.has_tidying(topic.partitions.values(), now_ms)
    snapshots = _snapshots(topic)
    if is_waited_for or not is_tidy(topic.properties, topic.config, snapshots, _clock_ms()):
        outside = _free(topic, due, now_ms, outcome)
    left = find_left_on_disk(topic, outside, now_ms)
    if deadline is not None:
        _follow_deletes(topic, seen_at, left)
    outcome.topic |= left.result()
    return outcome


def _sequence_number(topic: Topic) -> int:
    return open_table(topic.spark, topic.name.records_table).metadata.last_sequence_number


def _follow_deletes(topic: Topic, seen_at: int, left: LeftOnDisk) -> None:
    """Record the steps that tombstones have passed since the topic was read.

    `seen_at` is the newest commit before this run.
    """
    after = _deletes_after(topic, seen_at, left)

    def change(current: Topic) -> PropertyChanges:
        changes: dict[str, str | None] = {}
        for partition, deletes in after.items():
            state = current.partitions[partition]
            if state.deletes == topic.partitions[partition].deletes:
                changes |= to_changes(partition, state.moved(deletes=deletes))
        return changes

    compare_and_set(topic, Step.DELETES_FOLLOWED, change)


def _deletes_after(topic: Topic, seen_at: int, left: LeftOnDisk) -> dict[int, AllDeletes]:
    """Return the tombstones that are not off the disk, by partition."""
    table = open_table(topic.spark, topic.name.records_table)
    if table.current is None:
        return {}
    listed = current_files(table)
    deleted = {file.referenced for file in listed if file.referenced is not None}
    oldest: dict[int, int] = {}
    for file in listed:
        if file.path in deleted and _is_closed(topic, file):
            partition, _ = _place(file)
            oldest[partition] = min(file.sequence_number, oldest.get(partition, MAX_LONG))
    first = min(snapshot.sequence_number for snapshot in table.metadata.snapshots.values())
    if "branch" in left.old_files_refs.values():  # its snapshots may be newer than their files
        first = -1
    return {
        partition: after_tidying(
            state_deletes(state),
            seen_at,
            Files(oldest.get(partition), table.current.sequence_number, first),
        )
        for partition, state in topic.partitions.items()
    }


def _free(topic: Topic, due: Due | None, now_ms: int, outcome: JobOutcome) -> dict[str, int]:
    """Rewrite, expire and merge; add the bytes written and freed to the outcome.

    Return what is left outside the snapshots.
    """
    before = _disk(topic)
    deletions = _deletions_of_topic(topic, due, now_ms, before)
    merged, merge_error = 0, None
    # A merge rewrites files too: what is forced is rewritten once, not twice.
    merges_first = due is None and deletions.forced > 0
    if merges_first:
        merged, merge_error = _tried(lambda: merge_segments(topic))
        deletions = _deletions_of_topic(topic, due, now_ms, before)
    rewritten, rewrite_error = _tried(
        lambda: rewrite_files(topic, deletions) + rewrite_batches(topic)
    )
    # Bytes are freed only when snapshots expire, so all changes before that are bytes written.
    full = _disk(topic) if rewritten or merged else before
    expired = _expire_due(topic, due, outcome)
    left = after = _disk(topic) if expired else full
    if due is None and not merges_first:
        merged, merge_error = _tried(lambda: merge_segments(topic))
        after = _disk(topic) if merged else left
    outcome.error = rewrite_error or merge_error
    outcome.topic |= {
        "bytes_written": max(0, full.bytes - before.bytes) + max(0, after.bytes - left.bytes),
        **_freed(full, left, after),
        "segments_merged": merged,
        "files_rewritten": rewritten,
        "snapshots_expired": expired,
    }
    left_files = delete_left_files(topic, _tables(topic).values())
    outcome.topic["left_files_deleted"] = left_files.deleted
    outside = find_outside(topic, left_files)
    if not (rewritten or merged or outside or outcome.error or due is not None):
        # Nothing is left to rewrite, to merge or to delete.
        change = tidied(_snapshots(topic), topic.config)
        compare_and_set(topic, Step.TIDIED, lambda _: change)
    return outside


def find_outside(topic: Topic, left: LeftFiles) -> dict[str, int]:
    """Return the numbers of files and object versions that no snapshot needs, without zeros."""
    tables = _tables(topic).values()
    versions = [noncurrent_versions(open_table(topic.spark, name)) for name in tables]
    for unknown in {one.unknown for one in versions} - {""}:
        log.warning("the store did not list noncurrent versions of objects: %s", unknown)
    numbers = {
        "waiting_files": left.waiting,
        "other_files": left.others,
        "object_versions": sum(one.number for one in versions),
        "unknown_versions": sum(bool(one.unknown) for one in versions),
    }
    return {name: count for name, count in numbers.items() if count}


def _copies(topic: Topic) -> dict[str, int]:
    """Return the numbers of hold copies and quarantined records, without zeros.

    `old_copies` are files of these tables that only older snapshots need.
    """
    tables = {"held_copies": topic.name.held_table, "quarantined": topic.name.quarantine_table}
    numbers = Counter[str]()
    for name, table_name in tables.items():
        if (table := find_table(topic.spark, table_name)) is not None:
            files = current_files(table)
            numbers[name] = sum(file.rows for file in files if file.is_data)
            numbers["old_copies"] += len(all_sizes(table).keys() - {file.path for file in files})
    return {name: count for name, count in numbers.items() if count}


def _deletions_of_topic(topic: Topic, due: Due | None, now_ms: int, before: Disk) -> Deletions:
    """Find the files to rewrite; with a stored plan's `due`, only those of the plan."""
    deletions = find_deletions(topic, now_ms)
    if due is not None:
        named = set(due.files)
        deletions = deletions._replace(due=[file for file in deletions.due if file.path in named])
    line = "%d files of %s have %s deleted rows"
    log.info(line, before.files, size(before.bytes), number(deletions.rows))
    return deletions


def _expire_due(topic: Topic, due: Due | None, outcome: JobOutcome) -> int:
    """Expire old snapshots, and return their number; with a stored plan's `due`, only the plan's.

    Held records that only these snapshots have are copied first.
    """
    expiring = _due_of(topic)
    if due is not None:
        expiring = due.among(expiring)
    if kept := keep_removed(topic, expiring["records"]) if expiring["records"] else {}:
        outcome.topic["copied_for_holds"] = kept
    tables = _tables(topic)
    return sum(
        _expire(topic.spark, tables[what], snapshots) for what, snapshots in expiring.items()
    )


def _freed(full: Disk, left: Disk, after: Disk) -> dict[str, int]:
    """Return and log the bytes and files freed by the expired snapshots, and those on the disk."""
    files, freed_bytes = max(0, full.files - left.files), max(0, full.bytes - left.bytes)
    line = "freed %d files of %s; %d files of %s are on the disk"
    log.info(line, files, size(freed_bytes), after.files, size(after.bytes))
    return {"bytes_freed": freed_bytes, "bytes_kept": after.bytes, "files_freed": files}


def _tables(topic: Topic) -> dict[str, str]:
    """Return the topic's tables whose snapshots expire, by kind."""
    name = topic.name
    tables = {"records": name.records_table, "batches": name.batches_table}
    if table_exists(topic.spark, name.quarantine_table):
        tables["quarantine"] = name.quarantine_table
    if table_exists(topic.spark, name.held_table):
        tables["held"] = name.held_table
    return tables


def _snapshots(topic: Topic) -> dict[str, TableSnapshots]:
    return {what: _snapshots_of(topic.spark, table) for what, table in _tables(topic).items()}


def _snapshots_of(spark: SparkSession, name: str) -> TableSnapshots:
    table = open_table(spark, name)
    return TableSnapshots(
        None if table.current is None else table.current.id,
        min(table.metadata.unnamed.values(), default=None),
    )


def _clock_ms() -> int:
    return to_ms(machine_clock())


def _tried(work: Callable[[], int]) -> tuple[int, Exception | None]:
    """Run the work, and return its count and its error.

    A CommitConflictError is raised instead, because the runner tries the job again.
    """
    try:
        return work(), None
    except CommitConflictError:
        raise
    except (EbbtideError, Py4JJavaError, OSError, ValueError) as error:
        return 0, error


def expire_own_snapshots(spark: SparkSession, table: str) -> None:
    """Expire old snapshots of one of ebbtide's tables; its current rows stay."""
    text = open_table(spark, table).metadata.properties.get(MAX_SNAPSHOT_AGE)
    age_ms = max_snapshot_age_ms({MAX_SNAPSHOT_AGE: text} if text else {})
    _expire(spark, table, _due_snapshots(spark, table, age_ms))


def _disk(topic: Topic) -> Disk:
    sizes: dict[str, int] = {}
    for table in (topic.name.records_table, topic.name.batches_table):
        sizes |= all_sizes(open_table(topic.spark, table))
    return Disk(len(sizes), sum(sizes.values()))


def _due_of(topic: Topic) -> dict[str, list[int]]:
    """Return the snapshots of each table that are too old and that no undo needs."""
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
    """Expire the snapshots, delete their files, and return the number of snapshots."""
    if not due:
        return 0
    log.info("expiring %d snapshots of %s", len(due), table)
    # Snapshots expire by id, not by age. Given ids, Iceberg deletes the files that no snapshot
    # reaches. Otherwise it would delete a Puffin file as soon as one of its vectors is replaced,
    # even if another vector in the file is live.
    expiry = open_table(spark, table).java.expireSnapshots().expireOlderThan(0).retainLast(1)
    for snapshot in due:
        expiry = expiry.expireSnapshotId(snapshot)
    commit(Step.EXPIRE_SNAPSHOTS, expiry.commit)
    return len(due)


NOTE = "the owner of an adopted table expires its snapshots"


def free_held(topic: Topic) -> JobOutcome:
    """Delete copies that no hold covers, and expire old snapshots of the table of copies."""
    outcome = JobOutcome({p: topic.offsets_of(p) for p in topic.partitions}, topic={"note": NOTE})
    if deleted := drop_unheld(topic):
        outcome.topic["held_rows_deleted"] = deleted
    if table_exists(topic.spark, topic.name.held_table):
        expire_own_snapshots(topic.spark, topic.name.held_table)
    return outcome


# Older days have one file already, unless no nightly run succeeded for as long.
DAYS_BACK = 40


# The newest days whose small files are not merged. Undo points are read by topic, so each point
# keeps its file for as long as runs can be undone by default.
YOUNG_DAYS = {UNDO_POINTS.name: 4}


def tidy_runs(spark: SparkSession, now: datetime) -> None:
    """Merge files of `runs` and `undo_points`, and expire their snapshots and those of `plans`.

    After a transient error, leave the work to the next nightly run.
    """
    try:
        for table in (RUNS, UNDO_POINTS, PLANS):
            if table is not RUNS and not table_exists(spark, table.in_catalog()):
                continue
            if table is not PLANS:
                compact_days(spark, table, now)
            # Of plans too: one that was deleted may have keys as text (ebbtide.plan.show.keys).
            expire_own_snapshots(spark, table.in_catalog())
    except Exception as failure:
        error = explained(failure)
        if not is_transient(error):
            raise
        log.warning("files of ebbtide's tables not merged, the next run tries again: %s", error)


def compact_days(spark: SparkSession, table: OwnTable[Any], now: datetime) -> int:
    """Rewrite each past day's files as one file, and return the number of rewritten files.

    Readers open only the days of a run, so they are fast with one file per day. If another
    application rewrites the same files at this moment, do nothing.
    """
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    young, name, column = YOUNG_DAYS.get(table.name, 0), table.in_catalog(), quoted(table.day)
    end, first = today - timedelta(days=young), today - timedelta(days=DAYS_BACK)
    if not _is_any_in_pieces(spark, name, first.date(), end.date()):
        return 0
    where = f"{column} >= TIMESTAMP '{_text(first)}' and {column} < TIMESTAMP '{_text(end)}'"
    escaped = where.replace("'", "\\'")
    call = (
        f"CALL {quoted(CATALOG)}.system.rewrite_data_files(table => '{name}', "
        f"where => '{escaped}', options => map('min-input-files', '2', "
        "'max-concurrent-file-group-rewrites', '1'))"
    )
    try:
        row = commit(Step.REWRITE_FILES, lambda: spark.sql(call).first())
    except CommitConflictError as error:
        log.warning("files of %s not merged, another application merges them: %s", name, error)
        return 0
    return 0 if row is None else int(row["rewritten_data_files_count"])


def _is_any_in_pieces(spark: SparkSession, table: str, first: date, end: date) -> bool:
    """Return whether a day in [first, end) has several files."""
    files = current_files(open_table(spark, table))
    count = Counter(day for file in files for day in file.partition.values())
    return any(file_count > 1 and first <= day < end for day, file_count in count.items())


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"  # without a zone, Spark assumes the session's zone


def _resolve(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    """Return the due snapshots and files if the plan is stored.

    Raise NotCoveredError if the topic is adopted.
    """
    if not request.is_plan_only:
        return {}
    topic = load(spark, name)
    if topic.is_adopted:
        raise NotCoveredError(
            f"expected an own topic to plan for, found {name}, an adopted one: {NOTE}"
        )
    return Due.of(topic, request.now_ms).to_parameters()


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> SnapshotsPlan:
    topic = load(spark, name)
    if not topic.is_adopted:
        topic = settle(topic, "expire_snapshots", is_plan_only=request.is_plan_only)
    asked = request.parameters
    return SnapshotsPlan(topic, Due.of_parameters(asked) if asked else None, request.now_ms)


def _execute_plan(plan: SnapshotsPlan) -> JobOutcome:
    if plan.topic.is_adopted:
        return free_held(plan.topic)
    return execute_expire_snapshots(plan.topic, plan.due, plan.now_ms)


EXPIRE_SNAPSHOTS = Job(
    "expire_snapshots",
    _plan,
    _execute_plan,
    resolve=_resolve,
    at_end=lambda spark: tidy_runs(spark, machine_clock()),
)
