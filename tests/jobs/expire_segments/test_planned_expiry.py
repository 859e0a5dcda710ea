"""Retention is planned, kept and executed within its offsets; a night stops at its guards."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from ebbtide.errors import ExitCode
from ebbtide.jobs.expire_segments import plan_expire
from ebbtide.ledger.holds import Hold, Kind
from ebbtide.ledger.holds import HoldEvent as HoldEvent
from ebbtide.ledger.plans import Plan, PlanStep, offset_range
from ebbtide.runner.holds import append_hold
from ebbtide.settings.names import TopicName
from ebbtide.specs.delete_request import AtOffset, TopicRequest
from jobs import clean_log, expire_segments
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, at
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Two partitions, each of four segments of two records and of the same bytes, a day apart.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]


def days(count: float) -> str:
    return str(int(count * DAY_MS))


@pytest.fixture
def bench(empty: Bench) -> Bench:
    config = {"cleanup.policy": "delete", "retention.ms": days(7.5)}
    for partition in (0, 1):
        write_log(empty.home / "log", "t", MESSAGES, config, partition=partition)
    empty.ingest(empty.home / "log", NIGHT_MS)
    return empty


def grow(bench: Bench, at_ms: int) -> None:
    """One more record in the active segment of partition 0."""
    active = bench.home / "log" / "t-0" / f"{6:020}.log"
    active.write_bytes(active.read_bytes() + batch_of([Message("c", "1", at_ms)], 8))
    bench.ingest(bench.home / "log", NIGHT_MS)


def plan(jobs: Jobs, name: TopicName, now_ms: int = NIGHT_MS) -> Plan:
    return jobs.plan(expire_segments, now_ms, "--topic", str(name))


def execute(jobs: Jobs, kept: Plan) -> int:
    return jobs.run(expire_segments, "--plan", kept.plan_id, "--approved-by", "bob")


def night(jobs: Jobs, name: TopicName, job: ModuleType = expire_segments, day: int = 0) -> int:
    now = at(NIGHT_MS + day * DAY_MS).isoformat()
    return jobs.run(job, "--topic", str(name), "--now", now, "--dag", "nightly_retention")


def test_whole_segments_are_a_range_and_told_by_rule(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    assert kept.removes == {0: offset_range(0, 6), 1: offset_range(0, 6)}
    assert kept.bounds[0]["log_start_offset"] == 6
    of_partition = kept.summary["partitions"]["1"]
    assert of_partition["records"] == 6
    assert of_partition["rules"]["time"]["segments"] == 3
    assert of_partition["newest_event_ms"] == FIRST_MS + 2 * DAY_MS
    assert of_partition["stays"] == [{"reason": "within the limits", "records": 2}]
    assert bench.left() == list(range(8))
    assert execute(jobs, kept) == ExitCode.DONE
    assert (bench.left(), bench.left(1)) == ([6, 7], [6, 7])
    executed = jobs.events(kept)[-1]
    assert executed.numbers == {
        "planned_records": {"0": 6, "1": 6},
        "leaving_offsets": {"0": 6, "1": 6},
        "records_removed": 12,
    }


@pytest.mark.long
def test_a_plan_keeps_its_clock_and_bounds_while_the_log_grows(bench: Bench, jobs: Jobs) -> None:
    """A limit by size and one by event time would now take more than was planned."""
    bench.set(
        {
            "kafka.retention.ms": None,
            "kafka.retention.bytes": "160",
            "kafka.retention.max.eventtime.ms": days(2),
        }
    )
    kept = plan(jobs, bench.name)
    planned = kept.bounds[0]["log_start_offset"]
    assert planned < 6
    grow(bench, 9 * DAY_MS)
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == list(range(planned, 9))
    # The next night takes the rest.
    bench.set({"ebbtide.max.delete.ratio": "1"})
    assert night(jobs, bench.name) == ExitCode.DONE
    assert bench.left() == [6, 7, 8]


@pytest.mark.long
def test_an_active_segment_that_has_grown_does_not_go_with_its_plan(
    bench: Bench, jobs: Jobs
) -> None:
    bench.set({"kafka.retention.ms": "1"})
    kept = plan(jobs, bench.name)
    assert kept.removes is not None
    assert kept.removes[0] == offset_range(0, 8)
    grow(bench, 0)
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [6, 7, 8]
    assert bench.left(1) == []


@pytest.mark.long
def test_a_setting_that_removes_more_stops_the_plan(bench: Bench, jobs: Jobs) -> None:
    """Here single records, in a segment that the plan keeps."""
    event_time = {"kafka.retention.ms": None, "kafka.retention.max.eventtime.ms": days(1.5)}
    bench.set(event_time)
    kept = plan(jobs, bench.name)
    assert kept.removes is not None
    assert kept.removes[0] == offset_range(0, 4)
    tighter = {"kafka.retention.max.eventtime.ms": days(0.5)}
    by_record = {"ebbtide.retention.granularity": "record"}
    bench.set({**tighter, **by_record})
    assert execute(jobs, kept) == ExitCode.FAILED
    row = jobs.last_run()
    assert row.error_class == "PlanExceededError"
    assert "2 offsets of partition 0 from 4 on; 2 offsets of partition 1 from 4 on" in row.error
    assert bench.left() == list(range(8))
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXCEEDED]


@pytest.mark.long
def test_single_records_are_planned_one_by_one(empty: Bench, jobs: Jobs) -> None:
    messages = [[Message("a", "1", 5 * DAY_MS), Message("b", "1"), Message("c", "1", 5 * DAY_MS)]]
    config = {"cleanup.policy": "delete", "retention.max.eventtime.ms": days(1)}
    empty.log(messages, config, NIGHT_MS)
    empty.set({"ebbtide.retention.granularity": "record"})
    kept = plan(jobs, empty.name)
    assert kept.removes == {0: offset_range(1, 2)}
    of_partition = kept.summary["partitions"]["0"]
    assert of_partition["rules"]["single_records"]["records"] == 1
    assert of_partition["newest_event_ms"] == FIRST_MS
    assert len(of_partition["example_keys"]) == 1
    assert execute(jobs, kept) == ExitCode.DONE
    assert empty.left() == [0, 2]


@pytest.mark.long(but="share")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"ebbtide.max.delete.ratio": "0.74"}, "at most 0.74 of the bytes (ebbtide.max.delete."),
        ({"ebbtide.max.delete.records": "11"}, "at most 11 records (ebbtide.max.delete.records)"),
        ({"ebbtide.max.delete.bytes": "100"}, "at most 100 bytes (ebbtide.max.delete.bytes)"),
        (
            {"kafka.retention.ms": "1", "ebbtide.max.emptied.partitions": "1"},
            "at most 1 emptied partitions (ebbtide.max.emptied.partitions)",
        ),
    ],
    ids=["share", "records", "bytes", "emptied partitions"],
)
def test_a_guard_leaves_the_topic_as_it_is_and_keeps_a_plan(
    bench: Bench, jobs: Jobs, setting: dict[str, str], told: str
) -> None:
    off = {"ebbtide.max.delete.ratio": "1"}
    bench.set({**off, **setting})
    before = bench.load().properties
    assert night(jobs, bench.name) == ExitCode.FAILED
    assert bench.load().properties == before
    assert bench.left() == list(range(8))
    (kept,) = jobs.plans(topic=str(bench.name))
    row = jobs.last_run()
    assert (row.error_class, row.is_transient) == ("SafetyError", False)
    assert told in row.error
    assert f"To remove the records of plan {kept.plan_id}, approve it" in row.error
    assert row.topic_result["plan"] == kept.plan_id
    assert (kept.dag, kept.requested_by) == ("nightly_retention", "nightly_retention")
    assert told in kept.summary["guard"]
    assert execute(jobs, kept) == ExitCode.DONE
    assert len(bench.left()) < 8


@pytest.mark.long
def test_at_its_limits_a_night_passes(bench: Bench, jobs: Jobs) -> None:
    limits = {"ebbtide.max.delete.ratio": "0.75", "ebbtide.max.delete.records": "12"}
    bench.set({**limits, "ebbtide.max.emptied.partitions": "0"})
    assert night(jobs, bench.name) == ExitCode.DONE
    assert bench.left() == [6, 7]
    assert jobs.plans(topic=str(bench.name)) == []


@pytest.mark.long
def test_the_next_night_replaces_an_unanswered_plan(bench: Bench, jobs: Jobs) -> None:
    bench.set({"ebbtide.max.delete.ratio": "0.1"})
    assert night(jobs, bench.name) == ExitCode.FAILED
    assert night(jobs, bench.name, day=1) == ExitCode.FAILED
    first, second = jobs.plans(topic=str(bench.name))
    (replaced,) = jobs.events(first)
    assert (replaced.event, replaced.note) == (PlanStep.REPLACED, f"replaced by {second.plan_id}")
    assert jobs.events(second) == []
    assert execute(jobs, first) == ExitCode.FAILED
    assert "replaced at " in jobs.last_run().error
    # What a person has planned meanwhile is left alone, and so is what is answered.
    by_hand = plan(jobs, bench.name)
    jobs.run(expire_segments, "--plan", second.plan_id, "--rejected-by", "bob")
    assert night(jobs, bench.name, day=2) == ExitCode.FAILED
    assert jobs.events(by_hand) == []
    assert jobs.kinds(second) == [PlanStep.REJECTED]


@pytest.mark.long
def test_a_round_stops_at_the_guards_too(empty: Bench, jobs: Jobs) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    messages = [[Message("a", "1"), Message("b", "1")], [Message("a", "2")], [Message("c", "1")]]
    empty.log(messages, config, FIRST_MS)
    empty.mark()
    empty.set({"ebbtide.max.delete.records": "0"})
    assert night(jobs, empty.name, clean_log) == ExitCode.FAILED
    assert empty.left() == [0, 1, 2, 3]
    (kept,) = jobs.plans(topic=str(empty.name))
    assert kept.removes == {0: offset_range(0, 1)}
    assert jobs.run(clean_log, "--plan", kept.plan_id, "--approved-by", "bob") == ExitCode.DONE
    assert empty.left() == [1, 2, 3]


def test_a_plan_is_refused_while_a_setting_keeps_what_it_removes(bench: Bench, jobs: Jobs) -> None:
    """It stays, and what another run has removed meanwhile is no reason against it."""
    kept = plan(jobs, bench.name)
    bench.set({"kafka.cleanup.policy": "compact"})
    assert execute(jobs, kept) == ExitCode.FAILED
    row = jobs.last_run()
    assert row.error_class == "PlanError"
    assert f"all offsets of plan {kept.plan_id} to be removed" in row.error
    assert "kafka.cleanup.policy was 'delete' and is 'compact'" in row.error
    assert bench.left() == list(range(8))
    assert jobs.kinds(kept) == [PlanStep.APPROVED]

    bench.set({"kafka.cleanup.policy": "delete"})
    pause = Hold(
        hold_id="h-1",
        event=HoldEvent.MADE,
        at=at(NIGHT_MS),
        by="ann",
        run_id="r",
        kind=Kind.PAUSE,
        topic=str(bench.name),
        partition=1,
    )
    append_hold(bench.spark, bench.name, pause)
    assert execute(jobs, kept) == ExitCode.FAILED
    assert re.search("partition 1: hold .* blocks removals", jobs.last_run().error)
    assert bench.left() == list(range(8))


def test_records_below_the_log_start_count_for_nothing(bench: Bench) -> None:
    """The log starts inside the first batch of one partition, behind that of the other."""
    bench.answer(TopicRequest({0: AtOffset(1), 1: AtOffset(2)}), NIGHT_MS)
    planned = plan_expire(bench.load(), NIGHT_MS)
    for partition, before in {0: 7, 1: 6}.items():
        numbers = planned.outcome().partitions[partition]
        assert (numbers["records_before"], numbers["records_after"]) == (before, 2)
        assert numbers["records_in_segments"] == before - 2
    assert planned.removal.records == 5 + 4
