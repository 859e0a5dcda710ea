"""What a rule removes and a hold covers is copied first; the log goes on as without holds."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyroaring import BitMap64

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.runs.held.keeping import drop_unheld, keep_removed
from ebbtide.runs.held.rows import at_offsets
from ebbtide.stages.clean_log.stage import execute_clean, plan_clean
from jobs import clean_log, delete_records, expire_segments
from tests.lake_sandbox import LakeSandbox
from tests.stages.hold_records.builders import MADE, hashed, kept, make_hold
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, expire, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Segments of a day each; a round leaves 4, 6, 7 and the active 8.
MESSAGES = [
    [Message("a", "1"), Message("b", "1")],
    [Message("a", "2", DAY_MS), Message("b", "2", DAY_MS)],
    [Message("c", "1", 2 * DAY_MS), Message("b", "3", 2 * DAY_MS)],
    [Message("a", "3", 3 * DAY_MS), Message("b", "4", 3 * DAY_MS)],
    [Message("d", "1", 4 * DAY_MS)],
]
LEFT = [4, 6, 7, 8]
ALL = list(range(9))


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    config = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    set_properties(sandbox.session, f"{cluster}.t", {"ebbtide.max.delete.ratio": "1"})
    return TopicName(cluster, "t")


def left(sandbox: LakeSandbox, name: TopicName) -> list[int]:
    return offsets(view_of_table(sandbox.session, name, 0))


def run(jobs: Jobs, job: ModuleType, name: TopicName) -> Any:
    """Run a job of a night; its row."""
    now = at(NIGHT_MS).isoformat()
    assert jobs.run(job, "--topic", str(name), "--now", now) == ExitCode.DONE
    return jobs.last_run()


@pytest.mark.parametrize(
    ("job", "step"),
    [
        pytest.param(clean_log, Step.ROUND_RECORDS, id="round"),
        pytest.param(expire_segments, Step.TRUNCATE_RECORD_SEGMENTS, id="retention"),
    ],
)
def test_a_hold_that_is_made_while_records_leave_keeps_them(
    sandbox: LakeSandbox,
    jobs: Jobs,
    name: TopicName,
    meanwhile: Meanwhile,
    job: ModuleType,
    step: Step,
) -> None:
    spark = sandbox.session
    set_properties(spark, str(name), {"kafka.retention.ms": str(7 * DAY_MS)})
    meanwhile(step, lambda: make_hold(spark, name, "late"))
    row = run(jobs, job, name)
    gone = [offset for offset in ALL if offset not in left(sandbox, name)]
    assert gone
    assert kept(spark, name) == {"late": gone}
    held = spark.table(name.held_table).select("job", "run_id").distinct().collect()
    assert [tuple(of_run) for of_run in held] == [(row.job, row.run_id)]
    assert row.topic_result["kept_by_holds"] == {"hold late (case 7)": len(gone)}


@pytest.mark.long
def test_each_hold_keeps_what_it_covers_and_the_log_is_as_without(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark = sandbox.session
    make_hold(spark, name, "by-offset", first_offset=1, end_offset=3)
    make_hold(spark, name, "by-key", key_hashes=hashed("b", "x"), case_id=None)
    first, second = (at(FIRST_MS + days * DAY_MS) for days in (1, 2))
    make_hold(spark, name, "by-time", event_time_from=first, event_time_until=second)
    both = {"key_hashes": hashed("a"), "end_offset": 2}
    make_hold(spark, name, "by-both", **both)
    make_hold(spark, name, "elsewhere", partition=1)
    row = run(jobs, clean_log, name)
    assert left(sandbox, name) == LEFT
    assert kept(spark, name) == {
        "by-offset": [1, 2],
        "by-key": [1, 3, 5],
        "by-time": [2, 3],
        "by-both": [0],
    }
    told = {"hold by-offset (case 7)": 2, "hold by-key": 3}
    told |= {"hold by-time (case 7)": 2, "hold by-both (case 7)": 1}
    assert row.topic_result["kept_by_holds"] == told
    copied = spark.table(name.held_table).where("hold_id = 'by-both'").first()
    assert copied is not None
    assert (bytes(copied["key"]), bytes(copied["value"])) == (b"a", b"1")
    assert (copied["job"], copied["run_id"]) == ("clean_log", jobs.run_id)


def test_a_plan_says_how_many_records_each_hold_keeps(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    make_hold(sandbox.session, name, key_hashes=hashed("b"))
    planned = jobs.plan(clean_log, NIGHT_MS, "--topic", str(name))
    assert planned.summary["kept_by_holds"] == {"hold h-1 (case 7)": 3}
    assert "kept by holds: hold h-1 (case 7) 3" in planned.text
    assert kept(sandbox.session, name) == {}


def test_a_killed_job_is_run_again_and_nothing_is_kept_twice_or_lost(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    spark = sandbox.session
    make_hold(spark, name)
    for step in (Step.HELD_TABLE, Step.HELD_ROWS, Step.ROUND_RECORDS):
        kill_at.append(step)
        with pytest.raises(KilledError):
            clean(spark, str(name), NIGHT_MS)
        assert left(sandbox, name) == ALL
    clean(spark, str(name), NIGHT_MS)
    assert left(sandbox, name) == LEFT
    assert kept(spark, name) == {"h-1": [0, 1, 2, 3, 5]}


@pytest.mark.long
def test_a_hold_that_is_made_while_a_round_is_in_flight_keeps_what_another_job_removes(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    spark = sandbox.session
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(spark, str(name), NIGHT_MS)
    make_hold(spark, name, first_offset=2)
    expire(spark, str(name), NIGHT_MS)
    assert left(sandbox, name) == LEFT
    assert kept(spark, name) == {"h-1": [2, 3, 5]}


@pytest.mark.long
def test_what_lies_below_a_new_log_start_is_kept(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName, kill_at: list[Step]
) -> None:
    spark = sandbox.session
    make_hold(spark, name, first_offset=1)
    request = {"topics": [{"topic": str(name), "partitions": [{"partition": 0, "offset": 3}]}]}
    now = at(NIGHT_MS).isoformat()
    asked = ("--request", json.dumps(request), "--now", now)
    kill_at.append(Step.TRUNCATE_RECORDS)
    assert jobs.run(delete_records, *asked) == ExitCode.FAILED
    # The killed run has dropped a whole segment. A hold that is made only now keeps the rest.
    assert left(sandbox, name) == ALL[2:]
    make_hold(spark, name, "h-2", end_offset=4)
    assert jobs.run(delete_records, *asked) == ExitCode.DONE
    assert jobs.last_run().topic_result["kept_by_holds"] == {"hold h-2 (case 7)": 1}
    assert left(sandbox, name) == ALL[3:]
    assert kept(spark, name) == {"h-1": [1, 2], "h-2": [2]}


@pytest.mark.long
def test_retention_keeps_segments_and_single_records(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark = sandbox.session
    make_hold(spark, name, key_hashes=hashed("b", "d"))
    by_time = {"kafka.retention.ms": str(int(8.5 * DAY_MS))}
    set_properties(spark, str(name), by_time)
    row = run(jobs, expire_segments, name)
    assert left(sandbox, name) == ALL[4:]
    assert row.topic_result["kept_by_holds"] == {"hold h-1 (case 7)": 2}
    single = {"kafka.retention.ms": None, "kafka.retention.max.eventtime.ms": str(DAY_MS // 2)}
    set_properties(spark, str(name), single | {"ebbtide.retention.granularity": "record"})
    run(jobs, expire_segments, name)
    assert left(sandbox, name) == [8]
    assert kept(spark, name) == {"h-1": [1, 3, 5, 7]}


@pytest.mark.long
def test_what_had_left_before_a_hold_was_made_comes_from_snapshots(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    clean(spark, str(name), NIGHT_MS)
    make_hold(spark, name, end_offset=6)
    topic = load(spark, name)
    assert keep_removed(topic) == {"hold h-1 (case 7)": 5}
    assert keep_removed(topic) == {}
    assert kept(spark, name) == {"h-1": [0, 1, 2, 3, 5]}
    # What others remove is kept too, before its snapshot expires.
    spark.sql(f"DELETE FROM {name.records_table} WHERE offset = 4")
    assert keep_removed(load(spark, name)) == {"hold h-1 (case 7)": 1}
    assert kept(spark, name) == {"h-1": [0, 1, 2, 3, 4, 5]}


@pytest.mark.long
def test_rows_leave_with_their_hold_and_no_sooner(sandbox: LakeSandbox, name: TopicName) -> None:
    spark = sandbox.session
    make_hold(spark, name)
    make_hold(spark, name, "h-2", end_offset=4)
    clean(spark, str(name), NIGHT_MS)
    topic = load(spark, name)
    assert drop_unheld(topic) == 0
    later = MADE + timedelta(hours=1)
    make_hold(spark, name, "h-2", event="changed", at=later, first_offset=1, end_offset=3)
    assert drop_unheld(topic) == 2
    assert kept(spark, name) == {"h-1": [0, 1, 2, 3, 5], "h-2": [1, 2]}
    make_hold(spark, name, event="ended", at=later)
    assert drop_unheld(topic) == 5
    assert kept(spark, name) == {"h-2": [1, 2]}
    assert drop_unheld(topic) == 0


def test_a_killed_end_is_ended_later(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    spark = sandbox.session
    make_hold(spark, name)
    clean(spark, str(name), NIGHT_MS)
    make_hold(spark, name, event="ended", at=MADE + timedelta(hours=1))
    kill_at.append(Step.HELD_ENDED)
    with pytest.raises(KilledError):
        drop_unheld(load(spark, name))
    assert drop_unheld(load(spark, name)) == 5
    assert kept(spark, name) == {}


def test_holds_that_cannot_be_read_stop_removal(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    spark = sandbox.session
    plan = plan_clean(load(spark, name), NIGHT_MS)
    make_hold(spark, name, key_hashes=("not a hash",))
    with pytest.raises(HoldError, match="key_hashes that are no SHA-256"):
        execute_clean(plan)
    for job in (clean_log, expire_segments):
        arguments = ("--topic", str(name), "--now", at(NIGHT_MS).isoformat())
        assert jobs.run(job, *arguments) == ExitCode.FAILED
        assert jobs.last_run().error_class == "HoldError"
    assert left(sandbox, name) == ALL


@pytest.mark.parametrize(
    ("leaving", "below"),
    [([], 0), ([], 4), ([3, 4, 5], 0), ([3, 4, 5], 4), ([1, 3, 4, 8], 0), ([1, 3, 8], 4), ([2], 9)],
)
def test_rows_are_found_by_single_offsets_and_ranges_once_each(
    sandbox: LakeSandbox, leaving: list[int], below: int
) -> None:
    spark = sandbox.session
    both = (
        "SELECT cast(p AS INT) AS `partition`, o AS offset FROM range(2) AS a(p), range(9) AS b(o)"
    )
    rows = spark.sql(both)
    found = at_offsets(spark, rows, {1: BitMap64(leaving)}, {1: below} if below else {})
    expected = sorted({(1, offset) for offset in [*leaving, *range(below)]})
    assert sorted((row["partition"], row["offset"]) for row in found.collect()) == expected
