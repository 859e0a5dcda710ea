"""Nights on adopted tables while their writers go on, and what must be in the tables afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType

from pyspark.sql import SparkSession

from ebbtide.lake.reader import open_lake
from jobs import adopt_table, clean_log, expire_segments, mark_tombstones
from tests.tables.nights import HOUR_MS
from tests.tables.planned import Jobs
from tests.writers.fold import Night, fold
from tests.writers.producing import Produced, ends
from tests.writers.shapes import WrittenTable

WAIT_SECONDS = 240.0
DELETE_RETENTION_MS = 12 * HOUR_MS
SETTINGS = {
    "kafka.cleanup.policy": "compact",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.segment.ms": "1",  # each night closes the active segment
    "kafka.delete.retention.ms": str(DELETE_RETENTION_MS),
}


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not so after {seconds} s"
        time.sleep(0.5)


class Nights:
    """The nights of some tables by their jobs, a day apart; the first is tomorrow."""

    def __init__(self, spark: SparkSession, jobs: Jobs, tables: Sequence[WrittenTable]) -> None:
        self.tables = tables
        self.removed = dict.fromkeys((of.name for of in tables), 0)
        self._spark = spark
        self._jobs = jobs
        self._now = datetime.now(UTC)
        self._nights: dict[str, list[Night]] = {of.name: [] for of in tables}

    def adopt(self) -> None:
        """Adopt each table, by a mapping where its writer leaves that open."""
        settings = [word for of in SETTINGS.items() for word in ("--set", "=".join(of))]
        for of in self.tables:
            self._run(adopt_table, "--topic", of.name, *of.shape.arguments, *settings)

    def run(self) -> None:
        """The jobs of the next night, which know such tables or leave them alone."""
        self._now += timedelta(days=1)
        topics = [word for of in self.tables for word in ("--topic", of.name)]
        self._run(mark_tombstones, *topics)
        self._run(clean_log, *topics)
        with open_lake() as lake:
            rows = lake.runs(run_id=self._jobs.run_id)
        for row in rows:
            bounds = {p: of["log_end_offset"] for p, of in row.partitions.items()}
            now_ms = int(self._now.timestamp() * 1000)
            self._nights[row.topic].append(Night(now_ms, bounds))
            self.removed[row.topic] += row.rows_removed
        self._run(expire_segments, *topics)

    def wait_for_commits(self, count: int) -> None:
        """Until each table's writer has committed that many times more."""
        seen: dict[str, set[int]] = {of.name: {self._newest_append(of)} for of in self.tables}

        def has_gone_on() -> bool:
            for of in self.tables:
                seen[of.name].add(self._newest_append(of))
            return all(len(snapshots) > count for snapshots in seen.values())

        wait_until(has_gone_on, f"{count} more commits of each writer")

    def wait_for_rows(self, records: Sequence[Produced]) -> None:
        """Until each table has the last of the records that its writer writes."""
        expected = {of.name: dict(ends(of.arriving(records))) for of in self.tables}

        def are_there() -> bool:
            return all(of.ends(self._spark) == expected[of.name] for of in self.tables)

        wait_until(are_there, "all records in all tables")

    def check(self, records: Sequence[Produced]) -> list[str]:
        """Compare each table with the fold of the records; a line about each."""
        lines = []
        for of in self.tables:
            arrived, live = of.arriving(records), of.live(self._spark)
            expected = fold(arrived, self._nights[of.name], DELETE_RETENTION_MS)
            assert live == expected, of.name
            removed = self.removed[of.name]
            assert len(arrived) == len(live) + removed, of.name
            lines.append(
                f"{of.name}: {len(arrived)} rows written, {removed} removed in "
                f"{len(self._nights[of.name])} nights, {len(live)} live: 0 lost, 0 doubled"
            )
        return lines

    def _newest_append(self, of: WrittenTable) -> int:
        (row,) = self._spark.sql(
            "SELECT max_by(snapshot_id, committed_at) AS newest "
            f"FROM {of.table}.snapshots WHERE operation = 'append'"
        ).collect()
        return int(row["newest"] or 0)

    def _run(self, job: ModuleType, *arguments: str) -> None:
        code = self._jobs.run(job, *arguments, "--now", self._now.isoformat())
        assert code == 0, f"{job.__name__} ended with {code}"
