"""Copy a primary's rows to a replica's two tables, and remove what a killed try has left there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from ebbtide.iceberg.catalog import open_table
from ebbtide.iceberg.commits import OWN, Step, commit
from ebbtide.iceberg.files.segment_planning import planned_tasks
from ebbtide.iceberg.foreign_changes import announce_removal
from ebbtide.iceberg.schema import BATCH_NAMES, RECORD_NAMES
from ebbtide.iceberg.topics import Topic, current_snapshot, find_snapshot, own_spec_id
from ebbtide.log.replica_lag import Replication
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import REPLICATION, PartitionState
from ebbtide.spark.conditions import IcebergExpressions
from ebbtide.spark.job_log import watched

log = logging.getLogger(__name__)

# By partition: the states of the replica and of its primary.
Lacking = Mapping[int, tuple[PartitionState, PartitionState]]


class Source(NamedTuple):
    """The primary at one moment, and who replicates it."""

    topic: Topic
    records_snapshot: int | None
    batches_snapshot: int | None
    id: str


class Table(NamedTuple):
    """One of the replica's two tables, before anything is appended to it."""

    what: str
    name: str
    step: Step
    snapshot: int | None
    source: str
    pinned: int | None
    columns: list[str]
    last_offset: str  # the columns that say where a row ends and begins
    first_offset: str


def tables_of(source: Source, name: TopicName) -> tuple[Table, Table]:
    """Return the replica's tables in the order in which they are appended to."""
    spark, primary = source.topic.spark, source.topic.name
    return (
        Table(
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
        Table(
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
    """Drop the files that a killed try has left, and all that an emptied partition held."""
    name, emptied = replica.name, replication.emptied
    starts = {p: 0 if p in emptied else of.log_end_offset for p, of in replica.partitions.items()}
    for table, last in ((name.records_table, "offset"), (name.batches_table, "last_offset")):
        matches = IcebergExpressions.of(replica.spark).rows_from(last, starts)
        opened = open_table(replica.spark, table)
        if opened.current and planned_tasks(opened, opened.current.id, matches):
            announce_removal(replica)
            delete = opened.java.newDelete().deleteFromRowFilter(matches).set(OWN, "true")
            commit(Step.REPLICATE_LEFTOVERS, delete.commit)


class Appended(NamedTuple):
    """A snapshot of a replica's table, and the rows that came with it."""

    snapshot: int
    rows: int


def append_rows(replica: Topic, source: Source, table: Table, lacking: Lacking) -> Appended | None:
    """Append the primary's new rows; CommitConflictError where files were added meanwhile."""
    if table.pinned is None:
        return None
    new = " OR ".join(
        f"(`partition` = {p} AND {table.last_offset} >= {replica_state.log_end_offset} "
        f"AND {table.first_offset} < {leader.log_end_offset})"
        for p, (replica_state, leader) in lacking.items()
    )
    spark = replica.spark
    rows = spark.sql(f"SELECT * FROM {table.source} VERSION AS OF {table.pinned} WHERE {new}")
    # Columns that somebody added to the primary's tables are no part of the log.
    rows = rows.withColumn("segment", replica_segment(lacking)).select(table.columns)
    writer = rows.writeTo(table.name).option(f"snapshot-property.{REPLICATION}", source.id)
    writer = writer.option(f"snapshot-property.{OWN}", "true")
    writer = writer.option("output-spec-id", str(own_spec_id(open_table(spark, table.name))))
    writer = writer.option("isolation-level", "serializable")
    if table.snapshot is not None:
        writer = writer.option("validate-from-snapshot-id", str(table.snapshot))

    def append() -> int | None:
        # Overwriting no rows is an append that also checks that nobody else appended.
        writer.overwrite(F.lit(False))
        return find_snapshot(spark, table.name, REPLICATION, source.id)

    with watched(spark, log, f"copies new rows of {table.what}"):
        snapshot = commit(table.step, append)
    if snapshot is None:
        return None
    # Read at once: other tools may expire the snapshot before the state is committed.
    summary = open_table(spark, table.name).metadata.snapshot(snapshot).summary
    return Appended(snapshot, int(summary.get("added-records") or 0))


def replica_segment(lacking: Lacking) -> Column:
    """The physical segment of a row: the primary's own, or the one that the replica has begun."""
    # As text, and one CASE: a CASE in a CASE is as deep as there are partitions.
    begun = " ".join(
        f"WHEN `partition` = {partition} AND segment < {state.log_end_offset} "
        f"THEN {state.active_segment}L"
        for partition, (state, _) in lacking.items()
    )
    return F.expr(f"CASE {begun} ELSE segment END")
