"""A run that removed goes back: rows, state and low watermark, with all later ones."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.runner.holds import standing_holds
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import UNDO
from jobs import clean_log, erase_keys, expire_segments, repair_state, undo_run
from tests.jobs.erase_keys.erased import note_erased
from tests.jobs.undo_run.bench import AdoptedBench, Bench
from tests.lake_sandbox import LakeSandbox
from tests.tables.clocks import turn_back
from tests.tables.fixtures import Meanwhile
from tests.tables.kafka_view import view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = Bench.night_ms
CONFIG = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": str(4 * DAY_MS),
}
SEGMENTS = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", 5 * DAY_MS), Message("c", None, 5 * DAY_MS)],
    [Message("d", "1", 6 * DAY_MS)],
]
ALL = [0, 1, 2, 3, 4]


@pytest.fixture
def bench(sandbox: LakeSandbox, jobs: Jobs, cluster: str, tmp_path: Path) -> Bench:
    name = TopicName(cluster, "t")
    for partition in (0, 1):
        write_log(tmp_path / "log", "t", SEGMENTS, CONFIG, partition=partition)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    return Bench(sandbox.session, jobs, name)


@pytest.fixture
def adopted(sandbox: LakeSandbox, jobs: Jobs, cluster: str) -> AdoptedBench:
    return AdoptedBench(sandbox.session, jobs, TopicName(cluster, "t"))


@pytest.fixture(params=["own", "adopted"])
def of_each(request: pytest.FixtureRequest) -> Bench:
    """A topic of each kind."""
    bench: Bench = request.getfixturevalue({"own": "bench"}.get(request.param, request.param))
    return bench


def test_a_run_before_stays_as_it_is_also_if_a_clock_went_back_since(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.clean()
    cleaned = view_of_table(bench.spark, bench.name, 0)
    turn_back(monkeypatch, timedelta(hours=1))
    bench.undo(bench.delete(p0=4))
    assert view_of_table(bench.spark, bench.name, 0) == cleaned


def test_segments_that_are_merged_before_the_undo_begins_have_each_batch_once(
    bench: Bench, meanwhile: Meanwhile
) -> None:
    """The plan knows the header that a round rewrote by the segment where it lay then."""
    before = batches(bench)
    cleaned = bench.clean()
    merge = partial(merge_segments, load(bench.spark, bench.name), at_least=2)
    merged: list[int] = []
    meanwhile(Step.UNDO_STARTED, lambda: merged.append(merge()))
    bench.undo(cleaned)
    assert merged == [2]
    assert (bench.left(0), bench.left(1)) == (ALL, ALL)
    assert batches(bench) == before


def batches(bench: Bench) -> list[tuple[int, ...]]:
    """What a cleaner round changes of the batch rows."""
    columns = ("partition", "base_offset", "attributes", "record_count", "size_bytes")
    return sorted(
        map(tuple, bench.spark.table(bench.name.batches_table).select(*columns).collect())
    )


@pytest.mark.long
def test_later_runs_go_back_too_but_only_where_the_run_has_removed(bench: Bench) -> None:
    bench.clean()
    deleted = bench.delete(p0=2)
    bench.delete(p0=4, p1=3)
    assert (bench.left(0), bench.left(1), bench.starts()) == ([4], [3, 4], [4, 3])

    plan = bench.jobs.plan(undo_run, NIGHT_MS, *bench.of_topic, "--run", deleted)
    assert {p: list(offsets) for p, offsets in (plan.removes or {}).items()} == {0: [1, 2, 3]}
    (going,) = plan.summary["partitions"].values()
    assert going["rules"]["removed_by delete_records"]["records"] == 3
    assert going["oldest_event_ms"] == FIRST_MS
    assert bench.jobs.run(undo_run, "--plan", plan.plan_id) == 0

    assert (bench.left(0), bench.left(1), bench.starts()) == ([1, 2, 3, 4], [3, 4], [0, 3])
    numbers = bench.jobs.last_run().partitions[0]
    assert numbers["log_start_offset_before"] == 4
    assert (numbers["low_watermark"], numbers["records_returned"]) == (0, 3)
    assert numbers["runs_undone"] == 2
    assert bench.jobs.last_run().rows_removed == 0


@pytest.mark.long
def test_what_returned_is_left_alone_for_a_week(bench: Bench) -> None:
    undone = bench.undo(bench.clean())
    assert bench.left(0) == ALL
    until = at(undone.topic_result["paused_until_ms"])
    (pause,) = standing_holds(bench.spark, bench.name, at(NIGHT_MS))
    assert (pause.ends_at, pause.partition) == (until, None)
    for job in (clean_log, expire_segments):
        bench.run(job)
        assert (bench.left(0), bench.left(1)) == (ALL, ALL)
    bench.run(clean_log, undone.topic_result["paused_until_ms"] + 1000)
    assert bench.left(0) == ALL[1:]


@pytest.mark.long(but="own")
def test_a_run_is_undone_once_and_an_unknown_one_names_those_that_can_be(of_each: Bench) -> None:
    cleaned = of_each.clean()
    why = of_each.refused("nobody")
    assert why.endswith(f"found nobody. Runs that can: {cleaned}")
    of_each.undo(cleaned)
    snapshots = [
        java_table(of_each.spark, t).currentSnapshot().snapshotId() for t in of_each.tables
    ]
    assert of_each.undo(cleaned).topic_result["note"] == "the run is undone already"
    assert snapshots == [
        java_table(of_each.spark, t).currentSnapshot().snapshotId() for t in of_each.tables
    ]


@pytest.mark.long
def test_readers_of_a_stream_get_no_old_record_as_a_new_one(bench: Bench) -> None:
    """They skip overwrites, and would deliver an append; also where whole segments come back."""
    expired = bench.run(expire_segments)
    assert (bench.left(0), bench.starts()) == ([4], [4, 4])
    bench.undo(expired)
    assert (bench.left(0), bench.starts()) == (ALL, [0, 0])
    for table in bench.tables:
        assert java_table(bench.spark, table).currentSnapshot().operation() == "overwrite"


@pytest.mark.long
def test_a_run_that_is_too_long_ago_or_whose_snapshot_another_tool_expired_stays(
    bench: Bench,
) -> None:
    cleaned = bench.clean()
    set_properties(bench.spark, str(bench.name), {"ebbtide.undo.retention.ms": "1"})
    assert "longer ago than ebbtide.undo.retention.ms allows" in bench.refused(cleaned)
    set_properties(bench.spark, str(bench.name), {"ebbtide.undo.retention.ms": None})
    expire_all_others(bench)
    why = bench.refused(cleaned)
    assert re.search(
        rf"another tool has expired snapshot \d+ of .*, from before run {cleaned}", why
    )


@pytest.mark.long
def test_an_erasure_is_never_undone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its own run, nor a night that removed an erased key's record."""
    set_properties(bench.spark, str(bench.name), {"ebbtide.source": ""})
    cleaned = bench.clean()
    monkeypatch.setenv("EBBTIDE_ERASE_KEYS", "a")
    asked = ("--requested-by", "me", "--reason", "asked", "--append")
    erased = bench.run(erase_keys, None, *asked)
    for run_id in (cleaned, erased):
        assert f"keys were erased by run {erased}" in bench.refused(run_id)
    bench.spark.sql(f"DELETE FROM {UNDO_POINTS.in_catalog()} WHERE run_id = '{erased}'")
    assert "1 records of erased keys would be restored" in bench.refused(cleaned)


@pytest.mark.parametrize("erased_ms", [FIRST_MS, FIRST_MS + DAY_MS])
def test_a_key_that_was_erased_once_its_records_were_removed(bench: Bench, erased_ms: int) -> None:
    """The erasure finds no record of it, so it writes no tombstone."""
    deleted = bench.delete(p0=2, p1=2)
    note_erased(bench.spark, bench.name, "a", erased_ms, partition=None)
    if erased_ms == FIRST_MS:  # the records are not older
        bench.undo(deleted)
    else:
        assert "1 records of erased keys would be restored" in bench.refused(deleted)


@pytest.mark.long
def test_what_others_did_and_a_repair_kept_is_not_undone_either(bench: Bench) -> None:
    cleaned = bench.clean()
    bench.spark.sql(f"DELETE FROM {bench.name.records_table} WHERE offset = 4")
    repaired = bench.run(repair_state, None, "--keep-changes")
    assert f"a foreign change was accepted by run {repaired}" in bench.refused(cleaned)


def test_more_that_was_removed_since_the_plan_needs_a_new_one(bench: Bench) -> None:
    cleaned = bench.clean()
    plan = bench.jobs.plan(undo_run, NIGHT_MS, *bench.of_topic, "--run", cleaned)
    bench.delete(p0=4)
    assert bench.jobs.run(undo_run, "--plan", plan.plan_id) == ExitCode.FAILED
    assert bench.jobs.last_run().error_class == "PlanExceededError"
    assert bench.left(0) == [4]


@pytest.mark.long
def test_a_round_that_a_killed_run_began_goes_back_with_the_run_that_finished_it(
    bench: Bench, kill_at: list[Step]
) -> None:
    before = view_of_table(bench.spark, bench.name, 0)
    kill_at.append(Step.ROUND_BATCHES)
    assert bench.jobs.run(clean_log, *bench.of_topic, *bench.now()) != 0
    bench.undo(bench.clean())
    assert view_of_table(bench.spark, bench.name, 0) == before


def expire_all_others(bench: Bench) -> None:
    """Expire the snapshots that are neither current nor tagged, as another tool may."""
    for table in (str(bench.name), f"{bench.name.cluster}_batches.t"):
        bench.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table}', older_than => "
            "TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "left"),
    [
        pytest.param(Step.UNDO_TAGGED, ALL[1:], id="an undo that read nothing yet is given up"),
        pytest.param(Step.UNDO_BATCHES, ALL, id="later its snapshots are held"),
    ],
)
def test_another_tool_expires_snapshots_of_a_killed_undo(
    bench: Bench, kill_at: list[Step], step: Step, left: list[int]
) -> None:
    cleaned = bench.clean()
    kill_at.append(step)
    assert bench.jobs.run(undo_run, *bench.of_topic, "--run", cleaned, *bench.now()) != 0
    expire_all_others(bench)
    bench.run(expire_segments, FIRST_MS)
    assert bench.left(0) == left
    bench.assert_nothing_in_flight()


@pytest.mark.parametrize(
    ("of_each", "ends_by"),
    [("own", "its plan"), ("adopted", "the next job")],
    indirect=["of_each"],
)
def test_an_undo_that_is_killed_at_one_commit_after_the_other_is_finished(
    of_each: Bench, kill_at: list[Step], ends_by: str
) -> None:
    cleaned = of_each.clean()
    of_each.delete(p1=3)
    asked = (*of_each.of_topic, "--run", cleaned)
    if ends_by == "its plan":
        plan = of_each.jobs.plan(undo_run, of_each.night_ms, *asked)
        tried: tuple[str, ...] = ("--plan", plan.plan_id)
    else:
        tried = (*asked, *of_each.now())
    kill_at += of_each.steps
    for number in range(len(of_each.steps)):
        assert of_each.jobs.run(undo_run, *tried) != 0
        assert kill_at == list(of_each.steps[number + 1 :])
    assert UNDO in load(of_each.spark, of_each.name).properties
    if ends_by == "its plan":
        assert of_each.jobs.run(undo_run, *tried) == 0
    else:
        of_each.run(expire_segments, FIRST_MS if of_each.steps is Bench.steps else None)
    assert (of_each.left(0), of_each.left(1), of_each.starts()) == (ALL, ALL, [0, 0])
    of_each.assert_nothing_in_flight()
    if ends_by == "its plan":
        assert len(standing_holds(of_each.spark, of_each.name, at(of_each.night_ms))) == 1
