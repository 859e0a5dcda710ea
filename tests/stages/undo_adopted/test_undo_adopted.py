"""Runs on a table that others write go back: rows and state, with what came since."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import UNDO, PartitionState
from jobs import clean_log, delete_records, expire_segments, undo_run
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, live, spark_table
from tests.tables.fixtures import Meanwhile
from tests.tables.nights import at
from tests.tables.planned import Jobs

SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0",
    "kafka.segment.ms": "1",
    "kafka.delete.retention.ms": "1000",
    "ebbtide.max.delete.ratio": "1",
}


class Bench:
    """A table of two partitions, and jobs on its topic."""

    def __init__(
        self, spark: SparkSession, jobs: Jobs, name: str, version: int = 3, mode: str = ""
    ) -> None:
        self.spark, self.jobs, self.name = spark, jobs, TopicName.parse(name)
        spark_table(spark, name, version, "PARTITIONED BY (bucket(2, key))")
        if mode:
            of_mode = f"SET TBLPROPERTIES ('write.delete.mode'='{mode}')"
            spark.sql(f"ALTER TABLE {self.name.records_table} {of_mode}")
        self.append((0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, None))
        adopt(spark, name, SETTINGS)

    def append(self, *rows: tuple[int, str | None], partition: int | None = None) -> None:
        """Append records to both partitions, or to one."""
        partitions = (0, 1) if partition is None else (partition,)
        append(
            self.spark, str(self.name), [Record(n, k, "v", p) for p in partitions for n, k in rows]
        )

    def run(self, job: Any, now_ms: int, *more: str) -> str:
        """Run a job of the night, which succeeds; its run id."""
        now = ("--now", at(now_ms).isoformat())
        assert self.jobs.run(job, "--topic", str(self.name), *now, *more) == ExitCode.DONE
        return self.jobs.run_id

    def delete(self, now_ms: int, **starts: int) -> str:
        partitions = [{"partition": int(p[1:]), "offset": of} for p, of in starts.items()]
        request = {"topics": [{"topic": str(self.name), "partitions": partitions}]}
        now = ("--now", at(now_ms).isoformat())
        done = self.jobs.run(delete_records, "--request", json.dumps(request), *now)
        assert done == ExitCode.DONE
        return self.jobs.run_id

    def undo(self, run_id: str, now_ms: int) -> Any:
        self.run(undo_run, now_ms, "--run", run_id)
        return self.jobs.last_run()

    def refused(self, run_id: str) -> str:
        """Ask to undo a run, which is refused; why."""
        now = ("--now", at(90_000).isoformat())
        of_run = ("--topic", str(self.name), "--run", run_id)
        assert self.jobs.run(undo_run, *of_run, *now) == ExitCode.FAILED
        return str(self.jobs.last_run().error)

    def rows(self) -> list[Any]:
        """All rows, whole."""
        return sorted(self.spark.table(self.name.records_table).collect(), key=str)

    def left(self, partition: int) -> list[int]:
        rows = self.spark.table(self.name.records_table).where(f"`partition` = {partition}")
        return sorted(row["offset"] for row in rows.collect())

    def states(self) -> dict[int, PartitionState]:
        return dict(load(self.spark, self.name).partitions)

    def table(self) -> Any:
        return java_table(self.spark, self.name.records_table)


@pytest.mark.long
@pytest.mark.parametrize(("version", "mode"), [(2, ""), (3, "copy-on-write")])
def test_a_run_goes_back_as_if_it_had_never_been(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs, version: int, mode: str
) -> None:
    """Compared with a twin whose settings remove nothing, through the same appends and looks.

    Another tool writes the files of the one anew.
    """
    bench = Bench(sandbox.session, jobs, f"{cluster}.t", version, mode)
    twin = Bench(sandbox.session, jobs, f"{cluster}.twin", version)
    sandbox.session.sql(
        f"ALTER TABLE {twin.name.records_table} SET TBLPROPERTIES ('kafka.cleanup.policy'='delete')"
    )
    first = bench.run(clean_log, 10_000)
    twin.run(expire_segments, 10_000)
    assert bench.left(0) == [1, 2, 3]
    for each in (bench, twin):
        each.append((5, "b"), (6, "d"), (1, "late"))
    sandbox.session.sql(
        f"CALL lake.system.rewrite_data_files(table => '{bench.name}', "
        "options => map('rewrite-all', 'true'))"
    )
    bench.delete(20_000, p0=2)
    twin.run(expire_segments, 20_000)
    bench.run(clean_log, 20_000)
    assert (bench.left(0), bench.left(1)) == ([2, 3, 5, 6], [1, 2, 3, 5, 6])
    for each in (bench, twin):
        each.append((7, "d"), partition=1)
    before = bench.table().currentSnapshot().snapshotId()
    run = bench.undo(first, 30_000)
    assert run.topic_result["undone"][f"clean_log of {first}"] == 2
    assert run.partitions[0]["records_returned"] == 4
    assert run.partitions[1]["records_returned"] == 3
    assert bench.rows() == twin.rows()
    snapshot = bench.table().currentSnapshot()
    assert (snapshot.operation(), snapshot.parentId()) == ("overwrite", before)
    assert list(run.snapshot_ids) == [snapshot.snapshotId()]
    assert list(bench.table().refs().keySet().toArray()) == ["main"]
    twin.run(expire_segments, 30_000)
    bench.run(expire_segments, 30_000)
    assert told(bench.states()) == told(twin.states())
    paused = bench.run(clean_log, 40_000)
    assert f"run {first} was undone" in jobs.last_run().partitions[0]["reason"], paused
    assert bench.rows() == twin.rows()


def told(states: dict[int, PartitionState]) -> dict[int, Any]:
    """What of the states does not depend on when a segment was written to."""
    return {
        p: (
            state.log_start_offset,
            state.log_end_offset,
            state.first_dirty_offset,
            state.horizons,
            [start.base_offset for start in state.segments],
            [of.record_count for of in state.sums],
            state.max_event_time_ms,
            state.cleaned_at_ms,
        )
        for p, state in states.items()
    }


STEPS = (
    Step.UNDO_STARTED,
    Step.UNDO_TAGGED,
    Step.UNDO_RECORDS,
    Step.HOLD_EVENT,
    Step.UNDO_NOTED,
    Step.UNDO_STATE,
)


def test_a_killed_undo_is_finished_by_the_next_job(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs, kill_at: list[Step]
) -> None:
    """Or by itself; then a run that was undone is not undone again."""
    bench = Bench(sandbox.session, jobs, f"{cluster}.t")
    first = bench.run(clean_log, 10_000)
    of_run = ("--topic", str(bench.name), "--run", first, "--now", at(20_000).isoformat())
    for step in STEPS:
        kill_at.append(step)
        assert jobs.run(undo_run, *of_run) != ExitCode.DONE
    assert UNDO in load(bench.spark, bench.name).properties
    bench.run(expire_segments, 20_000)
    assert UNDO not in load(bench.spark, bench.name).properties
    assert bench.left(0) == [0, 1, 2, 3, 4]
    assert list(bench.table().refs().keySet().toArray()) == ["main"]
    assert bench.undo(first, 30_000).topic_result["note"] == "the run is undone already"
    assert live(bench.spark, str(bench.name)) == sorted([*range(5), *range(5)])


@pytest.mark.long
def test_what_was_undone_before_returns_once(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs
) -> None:
    bench = Bench(sandbox.session, jobs, f"{cluster}.t")
    first = bench.delete(10_000, p0=1, p1=1)
    second = bench.delete(20_000, p0=3)
    assert bench.undo(second, 30_000).partitions[0]["records_returned"] == 2
    assert bench.left(0) == [1, 2, 3, 4]
    run = bench.undo(first, 40_000)
    assert [run.partitions[p]["records_returned"] for p in (0, 1)] == [1, 1]
    assert (bench.left(0), bench.left(1)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert [state.log_start_offset for state in bench.states().values()] == [0, 0]


@pytest.mark.long
def test_what_cannot_be_known_is_not_undone(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs, meanwhile: Meanwhile
) -> None:
    """Rows of others' deletions, gone snapshots, other columns: each is refused by name."""
    spark = sandbox.session
    bench = Bench(spark, jobs, f"{cluster}.t")
    first = bench.run(clean_log, 10_000)
    plan = jobs.plan(undo_run, 90_000, "--topic", str(bench.name), "--run", first)
    assert {p: list(of) for p, of in (plan.removes or {}).items()} == {0: [0, 4], 1: [0, 4]}
    delete = f"DELETE FROM {bench.name.records_table} WHERE offset = 3 AND `partition` = 0"
    meanwhile(Step.UNDO_RECORDS, lambda: spark.sql(delete))
    assert "somebody else has removed rows since, and perhaps these too" in bench.refused(first)
    second = bench.delete(20_000, p0=2)
    spark.sql(f"ALTER TABLE {bench.name.records_table} ADD COLUMN more int")
    assert "somebody has changed the table's columns since" in bench.refused(second)
    third = bench.delete(30_000, p1=2)
    bench.table().expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert "another tool has expired it" in bench.refused(third)
    assert bench.left(1) == [2, 3]
