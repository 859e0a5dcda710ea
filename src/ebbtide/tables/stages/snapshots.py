"""expire_snapshots: what no kept snapshot needs leaves the disk.

A row that was deleted stays in its file until the file is rewritten, and on the disk until the
last snapshot with that file expires. Snapshots are stamped by the machine that commits them, so
their age is taken on its clock, not on `--now`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, EbbtideError
from ebbtide.log.names import CATALOG, quoted
from ebbtide.log.properties import MAX_SNAPSHOT_AGE, max_snapshot_age_ms
from ebbtide.log.state import PartitionState
from ebbtide.tables.commits import Step, commit
from ebbtide.tables.runs import Outcome
from ebbtide.tables.schema import RUNS_TABLE
from ebbtide.tables.stages.merge import merge_segments
from ebbtide.tables.topics import Topic, java_table

FILES_A_RUN = 1000


class Disk(NamedTuple):
    """The data and delete files that a table's snapshots need."""

    files: int
    bytes: int


def plan_expire_snapshots(topic: Topic) -> Outcome:
    """What the tables hold now; how much of it is freed shows only when it is done."""
    outcome = _outcome(topic)
    tables = (topic.name.records_table, topic.name.batches_table)
    disks = [_disk(topic.spark, table) for table in tables]
    outcome.topic |= {
        "files": sum(disk.files for disk in disks),
        "bytes": sum(disk.bytes for disk in disks),
    }
    return outcome


def _outcome(topic: Topic) -> Outcome:
    return Outcome({partition: topic.offsets_of(partition) for partition in topic.partitions})


def execute_expire_snapshots(topic: Topic) -> Outcome:
    """Rewrite files too full of deletions, expire the snapshots past age, merge small segments.

    What hinders the files' rewriting or merging does not keep snapshots from expiring.
    """
    outcome = _outcome(topic)
    spark, name = topic.spark, topic.name
    before = [_disk(spark, table) for table in (name.records_table, name.batches_table)]
    rewritten, rewrite_error = _tried(_rewrite, topic)
    # Nothing is freed before snapshots expire, so what came by then was written.
    full = [_disk(spark, table) for table in (name.records_table, name.batches_table)]
    # Settings are a topic's, and stand on its records table.
    max_age_ms = _max_age_ms(spark, name.records_table)
    expired = _expire(spark, name.catalog, name.records_table, max_age_ms)
    expired += _expire(spark, name.catalog, name.batches_table, max_age_ms)
    if spark.catalog.tableExists(name.quarantine_table):
        expired += _expire(spark, name.catalog, name.quarantine_table, max_age_ms)
    left = [_disk(spark, table) for table in (name.records_table, name.batches_table)]
    merged, merge_error = _tried(merge_segments, topic)
    outcome.error = rewrite_error or merge_error
    after = [_disk(spark, table) for table in (name.records_table, name.batches_table)]
    written = _grown(before, full) + _grown(left, after)
    freed = _grown(left, full)
    outcome.files_removed = max(0, sum(d.files for d in full) - sum(d.files for d in left))
    outcome.bytes_removed = freed
    outcome.topic |= {
        "bytes_written": written,
        "bytes_freed": freed,
        "bytes_kept": sum(disk.bytes for disk in after),
        "files_removed": outcome.files_removed,
        "segments_merged": merged,
        "files_rewritten": rewritten,
        "snapshots_expired": expired,
        "deleted_rows_in_files": _deleted_rows(spark, name.records_table),
        "max_snapshot_age_ms": max_age_ms,
    }
    return outcome


def _grown(before: list[Disk], after: list[Disk]) -> int:
    """Bytes that the later one needs more."""
    return max(0, sum(disk.bytes for disk in after) - sum(disk.bytes for disk in before))


def _tried(work: Callable[[Topic], int], topic: Topic) -> tuple[int, Exception | None]:
    """What the work on files counts, and why it failed if it did; a lost race is tried again."""
    try:
        return work(topic), None
    except CommitConflictError:
        raise
    except (EbbtideError, Py4JJavaError, OSError, ValueError) as error:
        return 0, error


def expire_run_snapshots(spark: SparkSession) -> None:
    """The same for `lake.ebbtide.runs`, whose rows stay."""
    _expire(spark, CATALOG, RUNS_TABLE, _max_age_ms(spark, RUNS_TABLE))


def _disk(spark: SparkSession, table: str) -> Disk:
    row = spark.sql(
        f"SELECT count(*) AS files, coalesce(sum(bytes), 0) AS bytes FROM ("
        f"SELECT file_path, max(file_size_in_bytes) AS bytes FROM {table}.all_files "
        f"GROUP BY file_path)"
    ).first()
    assert row is not None
    return Disk(row["files"], row["bytes"])


def _deleted_rows(spark: SparkSession, table: str) -> int:
    """Rows that are out of the table and whose values still lie in its current files."""
    row = spark.sql(f"SELECT coalesce(sum(record_count), 0) AS n FROM {table}.delete_files").first()
    return 0 if row is None else int(row["n"])


def _rewrite(topic: Topic) -> int:
    """Rewrite closed segments' files whose deleted share is too large; how many."""
    closed = " or ".join(
        f"(partition = {partition} and segment < {state.active_segment})"
        for partition, state in topic.partitions.items()
        if _has_closed(state)
    )
    if not closed:
        return 0
    options = {
        # 0 means any deleted row, and Iceberg's own 0 any file.
        "delete-ratio-threshold": max(topic.config.rewrite_deleted_share, 1e-9),
        "delete-file-threshold": 2**31 - 1,
        "min-file-size-bytes": 0,
        "max-file-size-bytes": 2**62,
        "min-input-files": 2**31 - 1,
        "max-files-to-rewrite": FILES_A_RUN,
        "remove-dangling-deletes": "true",
    }
    listed = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    result = commit(
        Step.REWRITE_FILES,
        lambda: _call(
            topic.spark,
            topic.name.catalog,
            f"rewrite_data_files(table => '{_escaped(topic.name.records_table)}', "
            f"where => '{closed}', "
            f"options => map({listed}))",
        ),
    )
    return int(result["rewritten_data_files_count"])


def _has_closed(state: PartitionState) -> bool:
    return len(state.segments) > 1


def _expire(spark: SparkSession, catalog: str, table: str, max_age_ms: int) -> int:
    """Expire the snapshots past their age and delete their files; how many snapshots."""
    older_than = datetime.fromtimestamp((time.time() * 1000 - max_age_ms) / 1000, UTC)
    before = _snapshots(spark, table)
    commit(
        Step.EXPIRE_SNAPSHOTS,
        lambda: _call(
            spark,
            catalog,
            f"expire_snapshots(table => '{_escaped(table)}', "
            f"older_than => TIMESTAMP '{older_than:%Y-%m-%d %H:%M:%S.%f}', retain_last => 1)",
        ),
    )
    return before - _snapshots(spark, table)


def _max_age_ms(spark: SparkSession, table: str) -> int:
    text = java_table(spark, table).properties().get(MAX_SNAPSHOT_AGE)
    return max_snapshot_age_ms({MAX_SNAPSHOT_AGE: text} if text else {})


def _snapshots(spark: SparkSession, table: str) -> int:
    return int(spark.sql(f"SELECT * FROM {table}.snapshots").count())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _call(spark: SparkSession, catalog: str, procedure: str) -> dict[str, Any]:
    row = spark.sql(f"CALL {quoted(catalog)}.system.{procedure}").first()
    return {} if row is None else row.asDict()
