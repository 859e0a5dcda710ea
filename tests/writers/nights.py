"""Nights on adopted tables while their writers go on, and what must be in the tables afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType

from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.lake.reader import Lake, open_lake
from jobs import adopt_table, clean_log, expire_segments, mark_tombstones
from tests.tables.nights import HOUR_MS
from tests.tables.planned import Jobs
from tests.waiting import wait_until
from tests.writers.fold import Night, fold
from tests.writers.producing import Produced, ends
from tests.writers.shapes import WrittenTable

DELETE_RETENTION_MS = 12 * HOUR_MS
SETTINGS = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.segment.ms": "1",  # each night closes the active segment
    "kafka.delete.retention.ms": str(DELETE_RETENTION_MS),
}


class Writers:
    """The tables, as far as their writers have come."""

    def __init__(self, spark: SparkSession, tables: Sequence[WrittenTable]) -> None:
        self._spark = spark
        self._tables = tables

    def wait_for_commits(self, count: int) -> None:
        """Until each writer has committed that many times more."""
        seen = {table.name: {self._newest_append(table)} for table in self._tables}

        def have_gone_on() -> bool:
            for table in self._tables:
                seen[table.name].add(self._newest_append(table))
            return all(len(snapshots) > count for snapshots in seen.values())

        wait_until(have_gone_on, f"{count} more commits of each writer")

    def wait_for_rows(self, records: Sequence[Produced]) -> None:
        """Until each table has the last of the records that its writer writes."""
        expected = {table.name: dict(ends(table.arriving(records))) for table in self._tables}

        def are_there() -> bool:
            return all(table.ends(self._spark) == expected[table.name] for table in self._tables)

        wait_until(are_there, "all records in all tables")

    def _newest_append(self, written: WrittenTable) -> int:
        table = java_table(self._spark, written.table)
        snapshot = table.currentSnapshot()
        while snapshot is not None and snapshot.operation() != "append":
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return 0 if snapshot is None else int(snapshot.snapshotId())


class Nights:
    """The nights of some tables by their jobs, a day apart; the first is tomorrow."""

    def __init__(self, jobs: Jobs, tables: Sequence[WrittenTable]) -> None:
        self.run_ids: list[str] = []  # of clean_log
        self._tables = tables
        self._jobs = jobs
        self._now = datetime.now(UTC)

    def adopt(self) -> None:
        """Adopt each table, by a mapping where its writer leaves that open."""
        settings = [word for setting in SETTINGS.items() for word in ("--set", "=".join(setting))]
        for table in self._tables:
            self._run(adopt_table, "--topic", table.name, *table.shape.arguments, *settings)

    def run(self) -> None:
        """The jobs of the next night, which know such tables or leave them alone."""
        self._now += timedelta(days=1)
        topics = [word for table in self._tables for word in ("--topic", table.name)]
        self._run(mark_tombstones, *topics)
        self._run(clean_log, *topics)
        self.run_ids.append(self._jobs.run_id)
        self._run(expire_segments, *topics)

    def _run(self, job: ModuleType, *arguments: str) -> None:
        code = self._jobs.run(job, *arguments, "--now", self._now.isoformat())
        assert code == 0, f"{job.__name__} ended with {code}"


def compare(
    spark: SparkSession,
    tables: Sequence[WrittenTable],
    records: Sequence[Produced],
    run_ids: Sequence[str],
) -> None:
    """Check that tables hold what plain Python leaves of the records; print the counts.

    `run_ids` are those of clean_log, a night each.
    """
    with open_lake() as lake:
        for table in tables:
            nights, removed, tombstones = _nights(lake, table.name, run_ids)
            arrived, live = table.arriving(records), table.live(spark)
            assert live == fold(arrived, nights, DELETE_RETENTION_MS), table.name
            assert len(arrived) == len(live) + sum(removed), table.name
            assert all(removed[:2]), table.name
            assert bool(tombstones) == table.shape.has_null_values, table.name
            print(
                f"{table.name}: {len(arrived)} rows written, removed by night {removed}, of these "
                f"{tombstones} tombstones past their horizon, {len(live)} live: 0 lost, 0 doubled"
            )


def _nights(lake: Lake, name: str, run_ids: Sequence[str]) -> tuple[list[Night], list[int], int]:
    """A topic's nights, how many rows each removed, and how many tombstones all did by horizon."""
    nights, removed, tombstones = [], [], 0
    for run_id in run_ids:
        (row,) = lake.runs(run_id=run_id, topic=name, job="clean_log")
        bounds = {p: numbers["log_end_offset"] for p, numbers in row.partitions.items()}
        nights.append(Night(int(row.now.timestamp() * 1000), bounds))
        removed.append(row.rows_removed)
        tombstones += sum(counts.get("tombstones_removed", 0) for counts in row.partitions.values())
    return nights, removed, tombstones
