"""A DeleteRecords request is planned, kept, approved and executed within its offsets."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.ledger.plans import PLANS, Plan, PlanStep, offset_range
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import to_properties
from jobs import delete_records
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS, ingest
from tests.tables.planned import Jobs

# Four segments of two records, a day apart.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(4)]
NOW_MS = FIRST_MS + 4 * DAY_MS
FOUR_EYES = {"ebbtide.plan.four.eyes": "true"}


@pytest.fixture
def bench(empty: Bench) -> Bench:
    empty.log(MESSAGES, {"cleanup.policy": "delete"}, FIRST_MS)
    return empty


def request(name: TopicName, *partitions: dict[str, Any], **fields: Any) -> tuple[str, str]:
    asked = {"topic": str(name), **({"partitions": partitions} if partitions else fields)}
    return "--request", json.dumps({"topics": [asked]})


def plan(jobs: Jobs, name: TopicName, offset: int = 5, *more: str) -> Plan:
    return jobs.plan(
        delete_records, NOW_MS, *request(name, {"partition": 0, "offset": offset}), *more
    )


def execute(jobs: Jobs, kept: Plan, *more: str) -> int:
    return jobs.run(delete_records, "--plan", kept.plan_id, *more)


def test_a_plan_is_kept_with_all_that_it_says_and_nothing_else_is_written(
    bench: Bench, jobs: Jobs
) -> None:
    before = bench.load().properties
    kept = plan(jobs, bench.name, 5, "--requested-by", "ann")
    assert bench.load().properties == before
    assert bench.left() == list(range(8))
    assert kept.removes == {0: offset_range(0, 5)}
    assert kept.bounds == {0: {"offset": 5, "log_end_offset": 8}}
    assert kept.own_digest == kept.digest
    assert (kept.job, kept.topic, kept.requested_by) == ("delete_records", str(bench.name), "ann")
    assert kept.now == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert kept.expires_at - kept.made_at == timedelta(days=1)
    partition = kept.summary["partitions"]["0"]
    numbers = partition["rules"]["delete_records"]
    assert (partition["records"], partition["files"]) == (5, 2)
    assert (numbers["records"], numbers["segments"]) == (5, 2)
    assert numbers["bytes"] > 0
    # The third file is cut in two: its statistics tell its newest.
    assert partition["oldest_event_ms"] == FIRST_MS
    assert partition["newest_event_ms"] == FIRST_MS + 2 * DAY_MS
    hashes = [
        "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d",
    ]
    assert partition["example_keys"] == hashes
    assert kept.text.startswith(f"delete_records {bench.name}: plan only, nothing was changed")
    assert f"plan: {kept.plan_id}" in kept.text
    assert "a" not in kept.parameters  # no key in clear


def test_a_topic_may_show_keys_in_clear(bench: Bench, jobs: Jobs) -> None:
    bench.set({"ebbtide.plan.show.keys": "true"})
    assert plan(jobs, bench.name).summary["partitions"]["0"]["example_keys"] == ["a", "b"]


def test_a_plan_is_executed_as_approved_and_only_once(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    approved = ("--approved-by", "bob", "--approval-note", "ticket 17")
    assert execute(jobs, kept, *approved) == ExitCode.DONE
    assert bench.left() == [5, 6, 7]
    approval, done = jobs.events(kept)
    assert (approval.event, approval.by, approval.note) == (PlanStep.APPROVED, "bob", "ticket 17")
    assert (done.event, done.by, done.digest) == (PlanStep.EXECUTED, "bob", kept.digest)
    assert done.numbers == {
        "planned_records": {"0": 5},
        "leaving_offsets": {"0": 5},
        "records_removed": 5,
    }
    row = jobs.last_run()
    assert (row.now, row.topic_result["plan"]) == (kept.now, kept.plan_id)
    marks = (row.partitions[0]["low_watermark_before"], row.partitions[0]["low_watermark"])
    assert marks == (0, 5)

    assert execute(jobs, kept) == ExitCode.FAILED
    row = jobs.last_run()
    assert row.error_class == "PlanError"
    assert f"found {kept.plan_id} executed by bob at " in row.error
    assert not row.is_transient


@pytest.mark.long
def test_an_ingest_after_the_plan_stays(bench: Bench, jobs: Jobs) -> None:
    """The plan says the end of the log; what has come since is behind it."""
    kept = plan(jobs, bench.name, -1)
    active = bench.home / "log" / "t-0" / f"{6:020}.log"
    active.write_bytes(active.read_bytes() + batch_of([Message("c", "1")], 8))
    bench.ingest(bench.home / "log", FIRST_MS)
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [8]


@pytest.mark.long
def test_a_time_means_what_it_meant_when_planned(bench: Bench, jobs: Jobs) -> None:
    """Everything was older then: that was the log's end, and not whatever it is later."""
    kept = jobs.plan(delete_records, NOW_MS, *request(bench.name, age="PT1H"))
    assert kept.parameters["request"]["topics"][0]["age"] == "PT1H"
    active = bench.home / "log" / "t-0" / f"{6:020}.log"
    active.write_bytes(active.read_bytes() + batch_of([Message("c", "1")], 8))
    bench.ingest(bench.home / "log", FIRST_MS)
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [8]


@pytest.mark.long
def test_records_of_a_time_that_stay_behind_newer_ones_are_told(empty: Bench, jobs: Jobs) -> None:
    messages = [[Message("a", "1")], [Message("a", "2", DAY_MS)], [Message("b", "1")]]
    write_log(empty.home / "more", "u", messages, {"cleanup.policy": "delete"})
    ingest(empty.spark, f"{empty.name.cluster}.u", empty.home / "more", FIRST_MS)
    kept = jobs.plan(
        delete_records, NOW_MS, *request(TopicName(empty.name.cluster, "u"), timestamp=FIRST_MS + 1)
    )
    (staying,) = kept.summary["partitions"]["0"]["stays"]
    assert staying["records"] == 1
    assert kept.removes == {0: offset_range(0, 1)}


def move_start_back(bench: Bench, offset: int) -> None:
    """As when records that had left are taken back."""
    state = bench.load().partitions[0]
    changes = to_properties(0, replace(state, log_start_offset=offset))
    bench.set(changes)


def test_more_than_the_plan_has_stops_the_execution_before_anything_moves(
    bench: Bench, jobs: Jobs
) -> None:
    move_start_back(bench, 3)
    kept = plan(jobs, bench.name)
    assert kept.removes == {0: offset_range(3, 5)}
    move_start_back(bench, 1)
    assert execute(jobs, kept, "--approved-by", "bob") == ExitCode.FAILED
    assert bench.load().partitions[0].log_start_offset == 1
    assert bench.left() == list(range(8))
    row = jobs.last_run()
    assert row.error_class == "PlanExceededError"
    assert "found more: 2 offsets of partition 0 from 1 on. The tables or settings" in row.error
    assert "changed after the plan was made. Nothing was removed. Make a new plan" in row.error
    assert not row.is_transient
    approved, stopped = jobs.events(kept)
    assert (approved.event, stopped.event) == (PlanStep.APPROVED, PlanStep.EXCEEDED)
    assert stopped.numbers == {"0": {"new": 2, "first": 1}}


@pytest.mark.long
def test_tables_created_anew_are_not_those_of_the_plan(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    for table in (bench.name.records_table, bench.name.batches_table, bench.name.state_table):
        bench.spark.sql(f"DROP TABLE {table}")
    bench.ingest(bench.home / "log", FIRST_MS)
    assert execute(jobs, kept) == ExitCode.FAILED
    assert jobs.last_run().error_class == "PlanError"
    assert "found a new table of the same name" in jobs.last_run().error
    assert bench.left() == list(range(8))


def test_an_edited_plan_is_not_executed(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    bench.spark.sql(
        f'UPDATE {PLANS.in_catalog()} SET bounds = \'{{"0": {{"offset": 8}}}}\' '
        f"WHERE plan_id = '{kept.plan_id}'"
    )
    assert execute(jobs, kept, "--approved-by", "bob") == ExitCode.FAILED
    assert "its row was edited. Make a new plan" in jobs.last_run().error
    assert bench.left() == list(range(8))
    assert jobs.events(kept) == []


def test_a_rejected_plan_is_refused(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    assert execute(jobs, kept, "--rejected-by", "bob", "--approval-note", "too much") == 0
    (rejected,) = jobs.events(kept)
    assert (rejected.event, rejected.by, rejected.note) == (PlanStep.REJECTED, "bob", "too much")
    assert execute(jobs, kept, "--approved-by", "cy") == ExitCode.FAILED
    assert "rejected by bob at " in jobs.last_run().error
    assert bench.left() == list(range(8))


@pytest.mark.long
def test_an_answer_that_nobody_gave_in_time_is_a_rejection(bench: Bench, jobs: Jobs) -> None:
    """A plan expires as its question does; one that was approved elsewhere is not taken back."""
    answered = plan(jobs, bench.name, 2)
    bench.set({"ebbtide.plan.expire.ms": "1"})
    kept = plan(jobs, bench.name)
    assert execute(jobs, kept, "--unanswered") == ExitCode.DONE
    (rejected,) = jobs.events(kept)
    assert (rejected.event, rejected.by) == (PlanStep.REJECTED, None)
    assert rejected.note == "no answer in time"
    assert execute(jobs, kept, "--unanswered") == ExitCode.DONE
    assert jobs.kinds(kept) == [PlanStep.REJECTED]
    assert execute(jobs, kept, "--approved-by", "cy") == ExitCode.FAILED
    assert "rejected (no answer in time) at " in jobs.last_run().error
    assert execute(jobs, answered, "--approved-by", "bob") == ExitCode.DONE
    assert execute(jobs, answered, "--unanswered") == ExitCode.DONE
    assert jobs.kinds(answered) == [PlanStep.APPROVED, PlanStep.EXECUTED]
    assert bench.left() == [2, 3, 4, 5, 6, 7]


def test_an_unknown_plan_is_refused_before_anything(bench: Bench, jobs: Jobs) -> None:
    plan(jobs, bench.name)
    assert jobs.run(delete_records, "--plan", "delete_records-20260101-00000000") == 2


@pytest.mark.long
@pytest.mark.parametrize("of_all", [False, True], ids=["of the topic", "of all topics"])
def test_four_eyes_are_required_where_it_is_executed(
    bench: Bench, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, of_all: bool
) -> None:
    if of_all:
        monkeypatch.setenv("EBBTIDE_FOUR_EYES", "true")
    else:
        bench.set(FOUR_EYES)
    kept = plan(jobs, bench.name, 5, "--requested-by", "ann")
    for approval in ((), ("--approved-by", "ann")):
        assert execute(jobs, kept, *approval) == ExitCode.FAILED
        assert jobs.last_run().error_class == "PlanError"
    assert jobs.events(kept) == []  # an approval that does not count is none
    at_once = ("--now", "2026-12-01T00:00:00Z", "--requested-by", "ann")
    asked = request(bench.name, {"partition": 0, "offset": 5})
    assert jobs.run(delete_records, *asked, *at_once) == ExitCode.FAILED
    assert "Nothing was changed. Make a plan with --plan-only" in jobs.last_run().error
    assert bench.left() == list(range(8))
    assert execute(jobs, kept, "--approved-by", "bob") == ExitCode.DONE
    # A night asks for what is done at the primary already.
    assert jobs.run(delete_records, *asked, *at_once) == ExitCode.DONE


def test_what_is_killed_is_asked_again_with_the_same_plan(
    bench: Bench, jobs: Jobs, kill_at: list[Step]
) -> None:
    kill_at.append(Step.PLAN_ROW)
    asked = request(bench.name, {"partition": 0, "offset": 5})
    at_once = ("--now", "2026-12-01T00:00:00Z", "--plan-only")
    assert jobs.run(delete_records, *asked, *at_once) == ExitCode.FAILED
    kept = plan(jobs, bench.name)
    for step in (Step.PLAN_EVENT, Step.TRUNCATE_RECORDS):
        kill_at.append(step)
        assert execute(jobs, kept, "--approved-by", "bob") == ExitCode.FAILED
    assert execute(jobs, kept, "--approved-by", "bob") == ExitCode.DONE
    assert bench.left() == [5, 6, 7]
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXECUTED]


def test_a_refused_partition_leaves_no_plan(bench: Bench, jobs: Jobs) -> None:
    asked = request(bench.name, {"partition": 0, "offset": 5}, {"partition": 7, "offset": 1})
    code = jobs.run(delete_records, *asked, "--now", "2026-12-01T00:00:00Z", "--plan-only")
    assert code == ExitCode.FAILED
    assert jobs.plans(topic=str(bench.name)) == []


@pytest.mark.parametrize(
    "more",
    [
        ("--now", "2026-12-01T00:00:00Z"),
        ("--requested-by", "ann"),
        ("--plan-only",),
        ("--plan-file", "/dev/null"),
        ("--approved-by", "a", "--rejected-by", "b"),
        ("--approved-by", "a", "--unanswered"),
    ],
    ids=" ".join,
)
def test_a_plan_stands_for_what_is_asked(jobs: Jobs, more: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        jobs.run(delete_records, "--plan", "delete_records-20260101-00000000", *more)
    assert ended.value.code == 2


def test_an_approval_needs_a_plan(bench: Bench, jobs: Jobs) -> None:
    asked = request(bench.name, {"partition": 0, "offset": 5})
    with pytest.raises(SystemExit):
        jobs.run(delete_records, *asked, "--now", "2026-12-01T00:00:00Z", "--approved-by", "bob")
    with pytest.raises(SystemExit):
        jobs.run(delete_records, *asked)
