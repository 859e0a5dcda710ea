"""What a rule removes and a hold covers is copied first; the log goes on as without holds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from pyroaring import BitMap64

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.runner.holds import at_offsets, drop_unheld, keep_removed
from ebbtide.settings.names import TopicName
from jobs import clean_log, expire_segments
from tests.jobs.hold_records.builders import MADE, NIGHT_MS, HeldTopic, hashed
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, clean, expire, ingest, mark, set_properties
from tests.tables.planned import Jobs

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
def topic(sandbox: LakeSandbox, cluster: str, jobs: Jobs, tmp_path: Path) -> HeldTopic:
    config = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
    write_log(tmp_path / "log", "t", MESSAGES, config)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    set_properties(sandbox.session, f"{cluster}.t", {"ebbtide.max.delete.ratio": "1"})
    return HeldTopic(sandbox, jobs, TopicName(cluster, "t"))


@pytest.mark.parametrize(
    ("job", "step"),
    [
        pytest.param(clean_log, Step.ROUND_RECORDS, id="round"),
        pytest.param(expire_segments, Step.TRUNCATE_RECORD_SEGMENTS, id="retention"),
    ],
)
def test_a_hold_that_is_made_while_records_leave_keeps_them(
    topic: HeldTopic, meanwhile: Meanwhile, job: ModuleType, step: Step
) -> None:
    topic.set({"kafka.retention.ms": str(7 * DAY_MS)})
    meanwhile(step, lambda: topic.hold("late"))
    row = topic.run(job)
    gone = [offset for offset in ALL if offset not in topic.left()]
    assert gone
    assert topic.kept() == {"late": gone}
    held = topic.spark.table(topic.name.held_table).select("job", "run_id").distinct().collect()
    assert [tuple(of_run) for of_run in held] == [(row.job, row.run_id)]
    assert row.topic_result["copied_for_holds"] == {"hold late (case 7)": len(gone)}


@pytest.mark.long
def test_each_hold_keeps_what_it_covers_and_the_log_is_as_without(topic: HeldTopic) -> None:
    topic.hold("by-offset", first_offset=1, end_offset=3)
    topic.hold("by-key", key_hashes=hashed("b", "x"), case_id=None)
    first, second = (at(FIRST_MS + days * DAY_MS) for days in (1, 2))
    topic.hold("by-time", event_time_from=first, event_time_until=second)
    both = {"key_hashes": hashed("a"), "end_offset": 2}
    topic.hold("by-both", **both)
    topic.hold("elsewhere", partition=1)
    row = topic.run(clean_log)
    assert topic.left() == LEFT
    assert topic.kept() == {
        "by-offset": [1, 2],
        "by-key": [1, 3, 5],
        "by-time": [2, 3],
        "by-both": [0],
    }
    told = {"hold by-offset (case 7)": 2, "hold by-key": 3}
    told |= {"hold by-time (case 7)": 2, "hold by-both (case 7)": 1}
    assert row.topic_result["copied_for_holds"] == told
    copied = topic.spark.table(topic.name.held_table).where("hold_id = 'by-both'").first()
    assert copied is not None
    assert (bytes(copied["key"]), bytes(copied["value"])) == (b"a", b"1")
    assert (copied["job"], copied["run_id"]) == ("clean_log", topic.jobs.run_id)


def test_a_plan_says_how_many_records_each_hold_keeps(topic: HeldTopic) -> None:
    topic.hold(key_hashes=hashed("b"))
    planned = topic.jobs.plan(clean_log, NIGHT_MS, "--topic", str(topic.name))
    assert planned.summary["copied_for_holds"] == {"hold h-1 (case 7)": 3}
    assert "copied for holds: hold h-1 (case 7) 3" in planned.text
    assert topic.kept() == {}


def test_a_killed_job_is_run_again_and_nothing_is_kept_twice_or_lost(
    topic: HeldTopic, kill_at: list[Step]
) -> None:
    topic.hold()
    for step in (Step.HELD_TABLE, Step.HELD_ROWS, Step.ROUND_RECORDS):
        kill_at.append(step)
        with pytest.raises(KilledError):
            clean(topic.spark, str(topic.name), NIGHT_MS)
        assert topic.left() == ALL
    clean(topic.spark, str(topic.name), NIGHT_MS)
    assert topic.left() == LEFT
    assert topic.kept() == {"h-1": [0, 1, 2, 3, 5]}


@pytest.mark.long
def test_a_hold_that_is_made_while_a_round_is_in_flight_keeps_what_another_job_removes(
    topic: HeldTopic, kill_at: list[Step]
) -> None:
    kill_at.append(Step.ROUND_RECORDS)
    with pytest.raises(KilledError):
        clean(topic.spark, str(topic.name), NIGHT_MS)
    topic.hold(first_offset=2)
    expire(topic.spark, str(topic.name), NIGHT_MS)
    assert topic.left() == LEFT
    assert topic.kept() == {"h-1": [2, 3, 5]}


@pytest.mark.long
def test_what_lies_below_a_new_log_start_is_kept(topic: HeldTopic, kill_at: list[Step]) -> None:
    topic.hold(first_offset=1)
    kill_at.append(Step.TRUNCATE_RECORDS)
    assert topic.delete(p0=3) == ExitCode.FAILED
    # The killed run has dropped a whole segment. A hold that is made only now keeps the rest.
    assert topic.left() == ALL[2:]
    topic.hold("h-2", end_offset=4)
    assert topic.delete(p0=3) == ExitCode.DONE
    assert topic.jobs.last_run().topic_result["copied_for_holds"] == {"hold h-2 (case 7)": 1}
    assert topic.left() == ALL[3:]
    assert topic.kept() == {"h-1": [1, 2], "h-2": [2]}


@pytest.mark.long
def test_retention_keeps_segments_and_single_records(topic: HeldTopic) -> None:
    topic.hold(key_hashes=hashed("b", "d"))
    by_time = {"kafka.retention.ms": str(int(8.5 * DAY_MS))}
    topic.set(by_time)
    row = topic.run(expire_segments)
    assert topic.left() == ALL[4:]
    assert row.topic_result["copied_for_holds"] == {"hold h-1 (case 7)": 2}
    single = {"kafka.retention.ms": None, "kafka.retention.max.eventtime.ms": str(DAY_MS // 2)}
    topic.set(single | {"ebbtide.retention.granularity": "record"})
    topic.run(expire_segments)
    assert topic.left() == [8]
    assert topic.kept() == {"h-1": [1, 3, 5, 7]}


@pytest.mark.long
def test_what_had_left_before_a_hold_was_made_comes_from_snapshots(topic: HeldTopic) -> None:
    clean(topic.spark, str(topic.name), NIGHT_MS)
    topic.hold(end_offset=6)
    assert keep_removed(topic.topic()) == {"hold h-1 (case 7)": 5}
    assert keep_removed(topic.topic()) == {}
    assert topic.kept() == {"h-1": [0, 1, 2, 3, 5]}
    # What others remove is kept too, before its snapshot expires.
    topic.spark.sql(f"DELETE FROM {topic.name.records_table} WHERE offset = 4")
    assert keep_removed(topic.topic()) == {"hold h-1 (case 7)": 1}
    assert topic.kept() == {"h-1": [0, 1, 2, 3, 4, 5]}


@pytest.mark.long
def test_rows_leave_with_their_hold_and_no_sooner(topic: HeldTopic) -> None:
    topic.hold()
    topic.hold("h-2", end_offset=4)
    clean(topic.spark, str(topic.name), NIGHT_MS)
    assert drop_unheld(topic.topic()) == 0
    later = MADE + timedelta(hours=1)
    topic.hold("h-2", event="changed", at=later, first_offset=1, end_offset=3)
    assert drop_unheld(topic.topic()) == 2
    assert topic.kept() == {"h-1": [0, 1, 2, 3, 5], "h-2": [1, 2]}
    topic.hold(event="ended", at=later)
    assert drop_unheld(topic.topic()) == 5
    assert topic.kept() == {"h-2": [1, 2]}
    assert drop_unheld(topic.topic()) == 0


def test_a_killed_end_is_ended_later(topic: HeldTopic, kill_at: list[Step]) -> None:
    topic.hold()
    clean(topic.spark, str(topic.name), NIGHT_MS)
    topic.hold(event="ended", at=MADE + timedelta(hours=1))
    kill_at.append(Step.HELD_ENDED)
    with pytest.raises(KilledError):
        drop_unheld(topic.topic())
    assert drop_unheld(topic.topic()) == 5
    assert topic.kept() == {}


def test_holds_that_cannot_be_read_stop_removal(topic: HeldTopic) -> None:
    plan = plan_clean(topic.topic(), NIGHT_MS)
    topic.hold(key_hashes=("not a hash",))
    with pytest.raises(HoldError, match="key_hashes that are no SHA-256"):
        execute_clean(plan)
    for job in (clean_log, expire_segments):
        assert topic.fail(job).error_class == "HoldError"
    assert topic.left() == ALL


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
