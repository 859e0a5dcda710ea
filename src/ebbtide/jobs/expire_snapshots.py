"""expire_snapshots: delete files that no kept snapshot needs from the disk.

A row that was deleted stays in its file until the file is rewritten, and on the disk until the last
snapshot with that file expires. Snapshots are stamped by the machine that commits them, so their
age is taken on its clock, not on `--now`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, EbbtideError, NotCoveredError, is_transient
from ebbtide.iceberg.catalog import open_table, table_exists
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
from ebbtide.iceberg.segment_planning import plan_with_lineage
from ebbtide.iceberg.topics import Topic, compare_and_set, load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.unfinished import settle
from ebbtide.ledger.own_tables import RUNS, OwnTable
from ebbtide.ledger.topic_summary import LeftOnDisk, TableSnapshots, is_tidy, tidied
from ebbtide.ledger.undo_points import UNDO_POINTS, can_be_undone, standing_points
from ebbtide.moments import earlier, later, machine_clock, to_datetime, to_ms
from ebbtide.runner.holds import drop_unheld, keep_removed
from ebbtide.runner.job import Job, Parameters, PlanRequest, Proposal
from ebbtide.runner.outages import explained
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import read_points
from ebbtide.settings.names import CATALOG, TopicName, quoted
from ebbtide.spark.tasks import map_segments
from ebbtide.state.topic_state import MAX_SNAPSHOT_AGE, max_snapshot_age_ms
from ebbtide.text import number, size


def needed_until_ms(
    topic: Topic, what: str, table: TableMetadata, snapshots: Collection[int]
) -> dict[int, int]:
    """Return those of the snapshots that a point younger than `ebbtide.undo.retention.ms` needs.

    `what` is records or batches. A point is of a snapshot that was current then, so on most nights
    no point is read.
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


# Rewrite files with too many deleted rows: until then a deleted row stays in its file.
#
# Iceberg's procedure rewrite_data_files does the same with a Spark job for each segment.


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
    return topic.config.rewrite_deleted_ratio == 0


def _rewritten_share(topic: Topic) -> float:
    """Return the share of deleted rows that makes a file due; a setting of 0 means any row."""
    return max(topic.config.rewrite_deleted_ratio, 1e-9)


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


def find_left_on_disk(topic: Topic) -> LeftOnDisk:
    """Find what still keeps files with deleted rows of the records table on the disk."""
    deletions, table = find_deletions(topic), open_table(topic.spark, topic.name.records_table)
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
    )


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
            what: [snapshot for snapshot in snapshots if snapshot in self.snapshots.get(what, ())]
            for what, snapshots in expiring.items()
        }

    def to_parameters(self) -> dict[str, Any]:
        """Return it as a kept plan names it."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class SnapshotsPlan(Proposal):
    """The snapshots and files of a topic that are due; no record of the log leaves by it."""

    topic: Topic
    due: Due | None  # None: all that is due once it is executed

    def outcome(self) -> JobOutcome:
        """Return the numbers of what is due, and the files that the tables hold now."""
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
    deletions = _deletions_of_topic(topic, due, before)
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


def _deletions_of_topic(topic: Topic, due: Due | None, before: Disk) -> Deletions:
    """Find the files too full of deletions, of a kept plan's only those that it names."""
    deletions = find_deletions(topic)
    if due is not None:
        named = set(due.files)
        deletions = deletions._replace(due=[file for file in deletions.due if file.path in named])
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
        outcome.topic["copied_for_holds"] = kept
    tables = _tables(topic)
    return sum(
        _expire(topic.spark, tables[what], snapshots) for what, snapshots in expiring.items()
    )


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


NOTE = "the snapshots of a table that others write are theirs to expire"


def free_held(topic: Topic) -> JobOutcome:
    """Delete kept records that their hold covers no more, and old snapshots of their table."""
    outcome = JobOutcome({p: topic.offsets_of(p) for p in topic.partitions}, topic={"note": NOTE})
    if deleted := drop_unheld(topic):
        outcome.topic["held_rows_deleted"] = deleted
    if table_exists(topic.spark, topic.name.held_table):
        expire_own_snapshots(topic.spark, topic.name.held_table)
    return outcome


# Days before these are one file already, unless no night has run for so long.
DAYS_BACK = 40


# How many days keep their small files: points are read by topic, so each keeps its own file for as
# long as runs can be undone by default.
YOUNG_DAYS = {UNDO_POINTS.name: 4}


def tidy_runs(spark: SparkSession, now: datetime) -> None:
    """Merge files and expire snapshots; where the catalog is away, another night does it."""
    try:
        has_points = table_exists(spark, UNDO_POINTS.in_catalog())
        for table in (RUNS, UNDO_POINTS) if has_points else (RUNS,):
            compact_days(spark, table, now)
            expire_own_snapshots(spark, table.in_catalog())
    except Exception as failure:
        error = explained(failure)
        if not is_transient(error):
            raise
        log.warning("the table of runs is tidied another night: %s", error)


def compact_days(spark: SparkSession, table: OwnTable[Any], now: datetime) -> int:
    """Rewrite each past day's files as one file; return how many files were rewritten.

    Readers open only the days of a run, so one file a day keeps them fast. Where another
    application does the same at this moment, it is left to finish.
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
        log.warning("the files of %s are merged by another: %s", name, error)
        return 0
    return 0 if row is None else int(row["rewritten_data_files_count"])


def _is_any_in_pieces(spark: SparkSession, table: str, first: date, end: date) -> bool:
    """Return whether a day from the first on and before the end has several files."""
    files = current_files(open_table(spark, table))
    count = Counter(day for file in files for day in file.partition.values())
    return any(file_count > 1 and first <= day < end for day, file_count in count.items())


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"  # else it is one in the zone of the environment


def _resolve(spark: SparkSession, name: TopicName, request: PlanRequest) -> Parameters:
    """Return what is due, for a plan that is stored; NotCoveredError for an adopted topic."""
    if not request.is_plan_only:
        return {}
    topic = load(spark, name)
    if topic.is_adopted:
        raise NotCoveredError(
            f"expected a topic whose tables ebbtide writes to plan on, found {name}, which was "
            f"adopted: {NOTE}"
        )
    return Due.of(topic).to_parameters()


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> SnapshotsPlan:
    topic = load(spark, name)
    if not topic.is_adopted:
        topic = settle(topic, "expire_snapshots", is_plan_only=request.is_plan_only)
    asked = request.parameters
    return SnapshotsPlan(topic, Due.of_parameters(asked) if asked else None)


def _execute_plan(plan: SnapshotsPlan) -> JobOutcome:
    if plan.topic.is_adopted:
        return free_held(plan.topic)
    return execute_expire_snapshots(plan.topic, plan.due)


EXPIRE_SNAPSHOTS = Job(
    "expire_snapshots",
    _plan,
    _execute_plan,
    resolve=_resolve,
    at_end=lambda spark: tidy_runs(spark, machine_clock()),
)
