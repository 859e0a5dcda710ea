"""replicate_log: copy missing records and batches to each replica.

Order: write the plan, settings and log start offsets to the state; remove the rows below the log
start offsets; remove rows that a killed run left; append records, then batches; move the state.
Each replica continues from its own log end offset.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import CommitConflictError, EbbtideError, ForeignLogError, standing_for
from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import OWN, Step, commit
from ebbtide.iceberg.erasures import without_erased
from ebbtide.iceberg.foreign_changes import announce_removal, count_own, set_counted
from ebbtide.iceberg.in_flight import check_no_undo
from ebbtide.iceberg.schema import BATCH_NAMES, RECORD_NAMES, create_topic, create_views
from ebbtide.iceberg.segment_planning import planned_tasks
from ebbtide.iceberg.topics import (
    PropertyChanges,
    Topic,
    compare_and_set,
    current_snapshot,
    find_replica,
    find_snapshot,
    load,
    own_spec_id,
    read_again,
    replica_names,
)
from ebbtide.jobs.removed_rows import truncate_below_start
from ebbtide.jobs.undo_run.execution import finish_undo
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.low_watermarks import (
    Replication,
    States,
    is_behind,
    is_outrun,
    settings_to_follow,
    state_after,
    state_before,
)
from ebbtide.numbers import MAX_OFFSET
from ebbtide.runner.holds import hand_on_holds, holds_at, keep_leaving
from ebbtide.runner.job import Job, PlanRequest, Touched
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.runner.undo_points import note_before
from ebbtide.settings.names import TopicName
from ebbtide.spark.expressions import IcebergExpressions
from ebbtide.spark.job_log import watched
from ebbtide.state.topic_state import (
    PRIMARY,
    REPLICA_OF,
    REPLICATION,
    PartitionState,
    to_properties,
)

log = logging.getLogger(__name__)

# By partition: the states of the replica and of its primary.
Lacking = Mapping[int, tuple[PartitionState, PartitionState]]


class ReplicaSource(NamedTuple):
    """The primary at one moment."""

    topic: Topic
    records_snapshot: int | None
    batches_snapshot: int | None
    id: str  # of this replication


class ReplicaTable(NamedTuple):
    """One of the replica's two tables, before rows are appended to it."""

    what: str
    name: str
    step: Step
    snapshot: int | None  # of this table
    source: str  # the primary's table
    pinned: int | None  # snapshot of the primary's table
    columns: list[str]
    last_offset: str  # columns with a row's last and first offset
    first_offset: str


def tables_of(source: ReplicaSource, name: TopicName) -> tuple[ReplicaTable, ReplicaTable]:
    """Return the replica's tables in the order of appends."""
    spark, primary = source.topic.spark, source.topic.name
    return (
        ReplicaTable(
            "records",
            name.records_table,
            Step.REPLICATE_RECORDS,
            current_snapshot(spark, name.records_table),
            primary.records_table,
            source.records_snapshot,
            RECORD_NAMES,
            "offset",
            "offset",
        ),
        ReplicaTable(
            "batches",
            name.batches_table,
            Step.REPLICATE_BATCHES,
            current_snapshot(spark, name.batches_table),
            primary.batches_table,
            source.batches_snapshot,
            BATCH_NAMES,
            "last_offset",
            "base_offset",
        ),
    )


def remove_leftovers(replica: Topic, replication: Replication) -> None:
    """Delete the rows that a killed run left, and all rows of emptied partitions."""
    name, emptied = replica.name, replication.emptied
    starts = {
        p: 0 if p in emptied else state.log_end_offset for p, state in replica.partitions.items()
    }
    for table, last in ((name.records_table, "offset"), (name.batches_table, "last_offset")):
        matches = IcebergExpressions.of(replica.spark).rows_from(last, starts)
        opened = open_table(replica.spark, table)
        if opened.current and planned_tasks(opened, opened.current.id, matches):
            announce_removal(replica)
            delete = opened.java.newDelete().deleteFromRowFilter(matches).set(OWN, "true")
            commit(Step.REPLICATE_LEFTOVERS, delete.commit)


class AppendedRows(NamedTuple):
    """A snapshot of a replica's table, and the number of rows that it appended."""

    snapshot: int
    rows: int


def append_rows(
    replica: Topic, source: ReplicaSource, table: ReplicaTable, lacking: Lacking
) -> AppendedRows | None:
    """Append the primary's new rows, or return None if it has none.

    Raise CommitConflictError if another writer has appended since.
    """
    if table.pinned is None:
        return None
    new = " OR ".join(
        f"(`partition` = {p} AND {table.last_offset} >= {replica_state.log_end_offset} "
        f"AND {table.first_offset} < {leader.log_end_offset})"
        for p, (replica_state, leader) in lacking.items()
    )
    spark = replica.spark
    rows = spark.sql(f"SELECT * FROM {table.source} VERSION AS OF {table.pinned} WHERE {new}")
    # Columns that another tool added to the primary's tables are not copied.
    rows = rows.withColumn("segment", replica_segment(lacking)).select(table.columns)
    if table.what == "records":
        rows = without_erased(source.topic, rows)
    writer = rows.writeTo(table.name).option(f"snapshot-property.{REPLICATION}", source.id)
    writer = writer.option(f"snapshot-property.{OWN}", "true")
    writer = writer.option("output-spec-id", str(own_spec_id(open_table(spark, table.name))))
    writer = writer.option("isolation-level", "serializable")
    if table.snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(table.snapshot))

    def append() -> int | None:
        # Overwriting no rows is an append that fails if another writer has appended.
        writer.overwrite(F.lit(False))
        return find_snapshot(spark, table.name, REPLICATION, source.id)

    with watched(spark, log, f"copying new rows of {table.what}"):
        snapshot = commit(table.step, append)
    if snapshot is None:
        return None
    # Read immediately: other tools may expire the snapshot before the state is committed.
    summary = open_table(spark, table.name).metadata.snapshot(snapshot).summary
    return AppendedRows(snapshot, int(summary.get("added-records") or 0))


def replica_segment(lacking: Lacking) -> Column:
    """Return the physical segment of a row: the primary's, or the replica's active segment."""
    # As text, with one CASE: nested CASE expressions would be as deep as there are partitions.
    begun = " ".join(
        f"WHEN `partition` = {partition} AND segment < {state.log_end_offset} "
        f"THEN {state.active_segment}L"
        for partition, (state, _) in lacking.items()
    )
    return F.expr(f"CASE {begun} ELSE segment END")


PIN_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class ReplicatePlan:
    """The replicas of a topic."""

    primary: Topic
    replicas: Mapping[TopicName, Topic | None]  # None: it has no tables yet
    errors: list[EbbtideError] = field(default_factory=list)  # of the replicas that are left out
    now_ms: int = 0  # the run's

    @property
    def behind(self) -> list[TopicName]:
        """The replicas that are not up to date with the primary."""
        properties = self.primary.properties
        return [
            name
            for name, replica in self.replicas.items()
            if (is_behind(properties, replica.properties) if replica else self.primary.partitions)
        ]

    def outcome(self) -> JobOutcome:
        """Return the plan's numbers; the low watermark is -1 if a replica's start is unknown."""
        outcome = JobOutcome(topic={"replicas": {}})
        for partition, state in self.primary.partitions.items():
            known = {
                name: replica.partitions.get(partition) if replica is not None else None
                for name, replica in self.replicas.items()
            }
            starts = [s.log_start_offset for s in known.values() if s is not None]
            is_known = not self.errors and len(starts) == len(self.primary.config.replicas)
            outcome.partitions[partition] = {
                "log_start_offset": state.log_start_offset,
                "low_watermark": min([state.log_start_offset, *starts]) if is_known else -1,
                "log_end_offset": state.log_end_offset,
                "replica_end_offsets": {
                    str(name): s.log_end_offset if s is not None else -1
                    for name, s in known.items()
                },
            }
        outcome.error = standing_for(self.errors)
        return outcome


def plan_replicate(topic: Topic) -> ReplicatePlan:
    """Find the replicas of the topic, and the errors of those that cannot be replicated to."""
    replicas: dict[TopicName, Topic | None] = {}
    errors: list[EbbtideError] = []
    for name in replica_names(topic):
        try:
            replicas[name] = find_replica(topic.spark, name)
            _check_follows(topic, name, replicas[name])
        except EbbtideError as error:
            replicas.pop(name, None)
            errors.append(error)
    return ReplicatePlan(topic, replicas, errors)


def execute_replicate(plan: ReplicatePlan, now_ms: int) -> JobOutcome:
    """Copy missing records and batches to each replica, even if another replica failed."""
    if not plan.behind:
        return plan.outcome()
    source = _pinned(plan.primary)
    plan = replace(plan, primary=source.topic)
    after, numbers, snapshot_ids = dict(plan.replicas), {}, list[int]()
    for name in plan.behind:
        try:
            replica, of_replica, committed = _replicate(source, name, plan.replicas[name], now_ms)
        except CommitConflictError:
            raise
        except EbbtideError as error:
            plan.errors.append(error)
        else:
            after[name], numbers[str(name)] = replica, of_replica
            snapshot_ids += committed
    outcome = replace(plan, replicas=after).outcome()
    outcome.topic["replicas"], outcome.snapshot_ids = numbers, snapshot_ids
    return outcome


def _check_follows(primary: Topic, name: TopicName, replica: Topic | None) -> None:
    """Raise ForeignLogError if the replica has another log, or offsets beyond its primary's."""
    if replica is None or not replica.partitions:
        return
    primary_id, expected = replica.properties.get(REPLICA_OF), _table_id(primary)
    if primary_id != expected:
        raise ForeignLogError(
            f"expected {name} to be a replica of {primary.name}, table {expected}, found "
            f"{REPLICA_OF}={primary_id}. Name another namespace in ebbtide.replicas, or drop the "
            "tables of the replica to start over"
        )
    for partition, state in replica.partitions.items():
        leader = primary.partitions.get(partition)
        end = -1 if leader is None else leader.log_end_offset
        if state.log_end_offset > end:
            raise ForeignLogError(
                f"expected a log end offset of {name} partition {partition} up to {end}, that of "
                f"its primary, found {state.log_end_offset}: the primary has lost records that the "
                "replica has. Restore the primary, or drop the replica's tables to start over"
            )


def _table_id(topic: Topic) -> str:
    return open_table(topic.spark, topic.name.records_table).metadata.uuid


def _pinned(topic: Topic) -> ReplicaSource:
    """Finish work in flight, and return the topic with the snapshots of both tables."""
    spark, name = topic.spark, topic.name
    for _ in range(PIN_ATTEMPTS):
        settled = settle(read_again(topic), "replicate_log")
        records = current_snapshot(spark, name.records_table)
        batches = current_snapshot(spark, name.batches_table)
        if read_again(topic).properties == settled.properties:
            return ReplicaSource(settled, records, batches, uuid.uuid4().hex)
    raise CommitConflictError(
        f"expected no change of {name} while its snapshots are read, found one by another job in "
        f"each of {PIN_ATTEMPTS} attempts. Run the job again after the other job has ended"
    )


def _replicate(
    source: ReplicaSource, name: TopicName, copy: Topic | None, now_ms: int
) -> tuple[Topic, dict[str, Any], list[int]]:
    """Bring a replica up to date; return it, with the job's numbers and snapshots."""
    spark = source.topic.spark
    if copy is None or not copy.partitions:
        commit(Step.CREATE_TOPIC, lambda: create_topic(spark, name, {}))
        copy = load(spark, name)
    else:
        create_views(spark, name)
        copy = finish_undo(count_own(copy))
    hand_on_holds(spark, source.topic.name, name)
    _note_before(source, copy)
    replica = compare_and_set(copy, Step.REPLICATE_STARTED, partial(_started, source, copy))
    replication = _own_replication(source, replica)
    states = replica.partitions
    numbers: dict[str, Any] = {"emptied": replication.emptied, "records_removed": 0}
    before = copy.partitions.items()
    has_moved = any(state.log_start_offset < states[p].log_start_offset for p, state in before)
    if replication.taken_over or has_moved:
        holds = holds_at(source.topic, now_ms)
        truncation = truncate_below_start(replica, now_ms, holds)
        numbers["records_removed"] = truncation.rows.total()
    tables = tables_of(source, name)
    if replication.taken_over or replication.emptied:
        emptied = dict.fromkeys(replication.emptied, MAX_OFFSET)
        keep_leaving(replica, {}, holds_at(source.topic, now_ms), emptied)
        remove_leftovers(replica, replication)
    lacking = {
        partition: (states[partition], leader)
        for partition, leader in source.topic.partitions.items()
        if states[partition].log_end_offset < leader.log_end_offset
    }
    log.info("%s: %d of %d partitions lack offsets", name, len(lacking), len(states))
    snapshot_ids = []
    for table in tables if lacking else ():
        appended = append_rows(replica, source, table, lacking)
        if appended is not None:
            numbers[table.what] = appended.rows
            snapshot_ids.append(appended.snapshot)
    replica = set_counted(replica, Step.REPLICATE_STATE, partial(_finished, source, states))
    return replica, numbers, snapshot_ids


def _note_before(source: ReplicaSource, copy: Topic) -> None:
    """Store an undo point of partitions whose log start advances, for undos on the primary.

    Raise CommitConflictError if an undo on the primary has begun.
    """
    leaders = source.topic.partitions
    moving = [
        partition
        for partition, state in copy.partitions.items()
        if (leader := leaders.get(partition)) is not None
        and state.log_start_offset < leader.log_start_offset
        and not is_outrun(state, leader)
    ]
    note_before(copy, Touched(moving))
    check_no_undo(read_again(source.topic), since=source.topic)


def _started(source: ReplicaSource, copy: Topic, current: Topic) -> PropertyChanges:
    """Return the first state changes: settings, higher log start offsets, this replication."""
    check_no_undo(current, since=copy)
    _check_follows(source.topic, current.name, current)
    changes = settings_to_follow(source.topic.properties, current.properties)
    unfinished = Replication.of(current.properties)
    emptied = set(unfinished.emptied if unfinished is not None else ())
    for partition, leader in source.topic.partitions.items():
        state = current.partitions.get(partition)
        if state is not None and is_outrun(state, leader):
            emptied.add(partition)
        changes |= to_properties(partition, state_before(state, leader))
    replication = Replication(source.id, sorted(emptied), unfinished is not None)
    of_primary = {REPLICA_OF: _table_id(source.topic), PRIMARY: source.topic.erased_under}
    return changes | of_primary | {REPLICATION: replication.to_json()}


def _finished(source: ReplicaSource, states: States, current: Topic) -> PropertyChanges:
    """Return the state changes after the appends."""
    _own_replication(source, current)
    changes: dict[str, str | None] = {REPLICATION: None}
    for partition, leader in source.topic.partitions.items():
        planned, state = states[partition], current.partitions[partition]
        if (state.log_end_offset, state.active_segment) != (
            planned.log_end_offset,
            planned.active_segment,
        ):
            raise CommitConflictError(
                f"expected log end offset {planned.log_end_offset} and active segment "
                f"{planned.active_segment} of {current.name} partition {partition}, found "
                f"{state.log_end_offset} and {state.active_segment}: another writer moved them. "
                "Run the job again"
            )
        changes |= to_properties(partition, state_after(state, leader))
    return changes


def _own_replication(source: ReplicaSource, replica: Topic) -> Replication:
    """Return this replication from the state.

    Raise CommitConflictError if another run has begun since.
    """
    replication = Replication.of(replica.properties)
    if replication is None or replication.id != source.id:
        raise CommitConflictError(
            f"expected no other replication into {replica.name}, found one that began meanwhile. "
            "Run the job again after it ends"
        )
    return replication


def _plan(spark: SparkSession, name: TopicName, request: PlanRequest) -> ReplicatePlan:
    topic = settle(load(spark, name), "replicate_log", is_plan_only=request.is_plan_only)
    return replace(plan_replicate(topic), now_ms=request.now_ms)


REPLICATE_LOG = Job("replicate_log", _plan, lambda plan: execute_replicate(plan, plan.now_ms))
