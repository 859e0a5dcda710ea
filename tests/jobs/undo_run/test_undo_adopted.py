"""Runs on a table that others write go back: rows and state, with what came since."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.unfinished import settle_adopted
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import PartitionState
from jobs import clean_log, expire_segments, undo_run
from tests.jobs.undo_run.bench import AdoptedBench
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, append
from tests.tables.fixtures import Meanwhile
from tests.tables.planned import Jobs


@pytest.fixture
def adopted(sandbox: LakeSandbox, jobs: Jobs, cluster: str) -> AdoptedBench:
    return AdoptedBench(sandbox.session, jobs, TopicName(cluster, "t"))


@pytest.mark.long
@pytest.mark.parametrize(("version", "mode"), [(2, ""), (3, "copy-on-write")])
def test_a_run_goes_back_as_if_it_had_never_been(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs, version: int, mode: str
) -> None:
    """Compared with a twin whose settings remove nothing, through the same appends and looks.

    Another tool writes the files of the one anew.
    """
    names = [TopicName(cluster, topic) for topic in ("t", "twin")]
    bench = AdoptedBench(sandbox.session, jobs, names[0], version, mode)
    twin = AdoptedBench(sandbox.session, jobs, names[1], version)
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
            [each.record_count for each in state.sums],
            state.max_event_time_ms,
            state.cleaned_at_ms,
        )
        for p, state in states.items()
    }


@pytest.mark.long
def test_what_was_undone_before_returns_once(adopted: AdoptedBench) -> None:
    bench = adopted
    first = bench.delete(10_000, p0=1, p1=1)
    second = bench.delete(20_000, p0=3)
    assert bench.undo(second, 30_000).partitions[0]["records_returned"] == 2
    assert bench.left(0) == [1, 2, 3, 4]
    run = bench.undo(first, 40_000)
    assert [run.partitions[p]["records_returned"] for p in (0, 1)] == [1, 1]
    assert (bench.left(0), bench.left(1)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert bench.starts() == [0, 0]


def test_an_undo_that_another_job_ends_meanwhile_gives_no_row_back_twice(
    adopted: AdoptedBench, meanwhile: Meanwhile
) -> None:
    first = adopted.delete(10_000, p0=2)
    topic = partial(load, adopted.spark, adopted.name)
    meanwhile(Step.UNDO_RECORDS, lambda: settle_adopted(topic(), 30_000))
    adopted.undo(first, 20_000)
    rows = adopted.spark.table(adopted.name.records_table).where("`partition` = 0")
    assert sorted(row["offset"] for row in rows.collect()) == [0, 1, 2, 3, 4]
    adopted.assert_nothing_in_flight()


@pytest.mark.long
def test_a_killed_undo_restores_nothing_to_a_log_that_began_again(
    adopted: AdoptedBench, kill_at: list[Step]
) -> None:
    """Neither by the next job, which would end it, nor by the undo itself."""
    first = adopted.delete(10_000, p0=3)
    adopted.delete(20_000, p1=3)
    kill_at.append(Step.UNDO_RECORDS)
    asked = (*adopted.of_topic, "--run", first, *adopted.now(30_000))
    assert adopted.jobs.run(undo_run, *asked) != ExitCode.DONE
    records = [Record(n, "x", "v", p, 25_000) for p in (0, 1) for n in (0, 1)]
    append(adopted.spark, str(adopted.name), records)
    for job, more in ((expire_segments, ()), (undo_run, ("--run", first))):
        words = (*adopted.of_topic, *more, *adopted.now(40_000))
        assert adopted.jobs.run(job, *words) == ExitCode.FAILED
        row = adopted.jobs.last_run()
        assert row.error_class == "ForeignLogError"
        assert "newer than 1970-01-01 00:00 UTC" in row.error
        assert (adopted.left(0), adopted.left(1)) == ([0, 1, 3, 4], [0, 1, 3, 4])


def test_an_undo_removes_no_row_of_a_log_that_began_again(adopted: AdoptedBench) -> None:
    first = adopted.delete(10_000, p0=3)
    adopted.delete(20_000, p1=3)
    records = [Record(n, "x", "v", p, 25_000) for p in (0, 1) for n in (0, 1)]
    append(adopted.spark, str(adopted.name), records)
    for more in ((), ("--plan-only",)):
        asked = (*adopted.of_topic, "--run", first, *adopted.now(30_000), *more)
        assert adopted.jobs.run(undo_run, *asked) == ExitCode.FAILED
    assert adopted.jobs.plans(run_id=adopted.jobs.run_id) == []
    assert "at the log's beginning that are newer" in adopted.refused(first, 30_000)
    assert (adopted.left(0), adopted.left(1)) == ([0, 1, 3, 4], [0, 1, 3, 4])


@pytest.mark.long
def test_an_undo_removes_late_rows_only_where_it_restores_them(adopted: AdoptedBench) -> None:
    """No plan of an undo lists such rows, and no guard sees them: only the next night's do."""
    adopted.delete(10_000, p0=3)
    second = adopted.delete(20_000, p1=3)
    adopted.append((1, "late"))
    adopted.spark.sql(f"DELETE FROM {adopted.name.records_table} WHERE offset = 4")
    assert "after the run, another tool has removed rows" in adopted.refused(second, 30_000)
    assert (adopted.left(0), adopted.left(1)) == ([1, 3], [1, 3])
    third = adopted.delete(40_000, p0=4)
    assert (adopted.left(0), adopted.left(1)) == ([], [1, 3])
    adopted.append((2, "late"))
    adopted.undo(third, 50_000)
    assert (adopted.left(0), adopted.left(1)) == ([1, 2, 3], [1, 2, 3])
    assert adopted.starts() == [3, 3]


@pytest.mark.long
def test_what_cannot_be_known_is_not_undone(adopted: AdoptedBench, meanwhile: Meanwhile) -> None:
    """Rows of others' deletions, gone snapshots, other columns: each is refused by name."""
    bench, spark = adopted, adopted.spark
    first = bench.run(clean_log, 10_000)
    plan = bench.jobs.plan(undo_run, 90_000, *bench.of_topic, "--run", first)
    assert {p: list(offsets) for p, offsets in (plan.removes or {}).items()} == {
        0: [0, 4],
        1: [0, 4],
    }
    delete = f"DELETE FROM {bench.name.records_table} WHERE offset = 3 AND `partition` = 0"
    meanwhile(Step.UNDO_RECORDS, lambda: spark.sql(delete))
    assert "another tool has removed rows, maybe the same ones" in bench.refused(first, 90_000)
    second = bench.delete(20_000, p0=2)
    spark.sql(f"ALTER TABLE {bench.name.records_table} ADD COLUMN more int")
    assert "the table's columns have changed since" in bench.refused(second, 90_000)
    third = bench.delete(30_000, p1=2)
    bench.table().expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    assert "another tool has expired snapshot " in bench.refused(third, 90_000)
    assert bench.left(1) == [2, 3]
