"""Topics of both kinds, runs that remove from them, and undoes of these."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import UNDO, PartitionState
from jobs import clean_log, delete_records, undo_run
from tests.jobs.undo_run.twins import of_request
from tests.tables.adopted import Record, adopt, append, spark_table
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.segment.ms": "1",
    "kafka.delete.retention.ms": "1000",
    "ebbtide.max.delete.ratio": "1",
}


class Bench:
    """Runs removing jobs on a topic of two partitions of five records, and undoes them."""

    steps: tuple[Step, ...] = (
        *(Step.UNDO_STARTED, Step.UNDO_TAGGED, Step.UNDO_RECORDS, Step.UNDO_BATCHES),
        *(Step.HOLD_EVENT, Step.UNDO_NOTED, Step.UNDO_STATE),
    )
    night_ms = FIRST_MS + 10 * DAY_MS

    def __init__(self, spark: SparkSession, jobs: Jobs, name: TopicName) -> None:
        self.spark, self.jobs, self.name = spark, jobs, name
        self.of_topic = ("--topic", str(name))
        self.tables = [name.records_table, name.batches_table]

    def now(self, now_ms: int | None = None) -> tuple[str, str]:
        return "--now", at(self.night_ms if now_ms is None else now_ms).isoformat()

    def run(self, job: ModuleType, now_ms: int | None = None, *more: str) -> str:
        """Run a job of the night, which succeeds; its run id."""
        assert self.jobs.run(job, *self.of_topic, *self.now(now_ms), *more) == ExitCode.DONE
        return self.jobs.run_id

    def clean(self) -> str:
        """Remove offset 0 of each partition, by compaction; the run's id."""
        return self.run(clean_log)

    def delete(self, now_ms: int | None = None, **starts: int) -> str:
        """Move log starts, given as p0=2; the run's id."""
        asked = [{"partition": int(p[1:]), "offset": offset} for p, offset in starts.items()]
        request = of_request(self.name, asked)
        assert self.jobs.run(delete_records, *request, *self.now(now_ms)) == ExitCode.DONE
        return self.jobs.run_id

    def undo(self, run_id: str, now_ms: int | None = None) -> Any:
        """Undo a run, which succeeds; the undo's row."""
        self.run(undo_run, now_ms, "--run", run_id)
        return self.jobs.last_run()

    def refused(self, run_id: str, now_ms: int | None = None) -> str:
        """Ask to undo a run, which is refused; why."""
        asked = (*self.of_topic, "--run", run_id, *self.now(now_ms))
        assert self.jobs.run(undo_run, *asked) == ExitCode.FAILED
        return str(self.jobs.last_run().error)

    def left(self, partition: int) -> list[int]:
        return offsets(view_of_table(self.spark, self.name, partition))

    def states(self) -> dict[int, PartitionState]:
        return dict(load(self.spark, self.name).partitions)

    def starts(self) -> list[int]:
        return [state.log_start_offset for state in self.states().values()]

    def table(self) -> Any:
        return java_table(self.spark, self.name.records_table)

    def assert_nothing_in_flight(self) -> None:
        assert UNDO not in load(self.spark, self.name).properties
        for table in self.tables:
            assert java_table(self.spark, table).refs().size() == 1


class AdoptedBench(Bench):
    """The same of a table that others write."""

    steps = tuple(step for step in Bench.steps if step is not Step.UNDO_BATCHES)
    night_ms = 20_000

    def __init__(
        self, spark: SparkSession, jobs: Jobs, name: TopicName, version: int = 3, mode: str = ""
    ) -> None:
        super().__init__(spark, jobs, name)
        self.tables = [name.records_table]
        spark_table(spark, str(name), version, "PARTITIONED BY (bucket(2, key))")
        if mode:
            of_mode = f"SET TBLPROPERTIES ('write.delete.mode'='{mode}')"
            spark.sql(f"ALTER TABLE {name.records_table} {of_mode}")
        self.append((0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, None))
        adopt(spark, str(name), SETTINGS)

    def append(self, *rows: tuple[int, str | None], partition: int | None = None) -> None:
        """Append records to both partitions, or to one."""
        partitions = (0, 1) if partition is None else (partition,)
        records = [Record(n, k, "v", p) for p in partitions for n, k in rows]
        append(self.spark, str(self.name), records)

    def rows(self) -> list[Any]:
        """All rows, whole."""
        return sorted(self.spark.table(self.name.records_table).collect(), key=str)

    def left(self, partition: int) -> list[int]:
        rows = self.spark.table(self.name.records_table).where(f"`partition` = {partition}")
        return sorted(row["offset"] for row in rows.collect())
