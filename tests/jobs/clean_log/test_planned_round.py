"""A cleaner round is planned, kept and executed within its offsets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebbtide.errors import ExitCode
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.clean_log.stage import plan_clean
from ebbtide.ledger.plans import Plan, PlanStep
from ebbtide.settings.names import TopicName
from jobs import clean_log
from tests.log.log_files import data_batch, marker, transactional
from tests.tables.bench import Bench
from tests.tables.logs import FIRST_MS, Message, batch_of, write_log
from tests.tables.nights import DAY_MS
from tests.tables.planned import Jobs

NIGHT_MS = 1_000 * DAY_MS
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
# Two segments that supersede each other, with a tombstone, and an active one.
MESSAGES = [
    [Message("a", "1"), Message("b", "1"), Message("c", "1")],
    [Message("a", "2"), Message("b", None)],
    [Message("d", "1")],
]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    write_log(empty.home / "log", "t", MESSAGES, COMPACT)
    return taken(empty)


def taken(bench: Bench) -> Bench:
    """The topic, with what its log has now, marked."""
    bench.ingest(bench.home / "log", NIGHT_MS)
    bench.mark()
    return bench


def add_segments(home: Path, *segments: list[Message]) -> None:
    """Segments after the six offsets that are there."""
    offset = 6
    for messages in segments:
        path = home / "log" / "t-0" / f"{offset:020}.log"
        path.write_bytes(batch_of(messages, offset))
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
        offset += len(messages)


def plan(jobs: Jobs, name: TopicName, now_ms: int = NIGHT_MS) -> Plan:
    return jobs.plan(clean_log, now_ms, "--topic", str(name))


def execute(jobs: Jobs, kept: Plan) -> int:
    return jobs.run(clean_log, "--plan", kept.plan_id, "--approved-by", "bob")


def removed(kept: Plan, partition: int = 0) -> list[int]:
    assert kept.removes is not None
    return list(kept.removes[partition])


def test_a_round_tells_each_offset_and_what_waits(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    assert removed(kept) == [0, 1]
    assert kept.bounds[0]["first_uncleanable_offset"] == 5
    of_partition = kept.summary["partitions"]["0"]
    assert of_partition["rules"] == {"superseded": {"records": 2}}
    assert (of_partition["records"], of_partition["oldest_event_ms"]) == (2, FIRST_MS)
    assert len(of_partition["example_keys"]) == 2
    waits = {"reason": "a tombstone is retained until its delete horizon", "records": 1}
    assert of_partition["stays"] == [waits]
    assert of_partition["bytes"] > 0
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [2, 3, 4, 5]
    assert jobs.events(kept)[-1].numbers == {
        "planned_records": {"0": 2},
        "leaving_offsets": {"0": 2},
        "records_removed": 2,
    }


def test_a_night_without_a_plan_gathers_no_offsets(bench: Bench) -> None:
    planned = plan_clean(bench.load(), NIGHT_MS)
    assert planned.effect is not None
    assert planned.effect.planned == {}


@pytest.mark.long
def test_a_round_ends_where_its_plan_does(bench: Bench, jobs: Jobs) -> None:
    """What has come since would supersede more, and waits for the next night."""
    kept = plan(jobs, bench.name)
    add_segments(bench.home, [Message("c", "2"), Message("d", "2")], [Message("x", "1")])
    taken(bench)
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [2, 3, 4, 5, 6, 7, 8]
    bench.clean(NIGHT_MS + 1)
    assert bench.left() == [3, 4, 6, 7, 8]


@pytest.mark.long
def test_a_later_round_leaves_nothing_of_a_plan_to_do(bench: Bench, jobs: Jobs) -> None:
    kept = plan(jobs, bench.name)
    add_segments(bench.home, [Message("c", "2")], [Message("x", "1")])
    taken(bench)
    bench.clean(NIGHT_MS + 1)
    before = bench.left()
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == before
    assert jobs.events(kept)[-1].numbers["records_removed"] == 0  # type: ignore[index]


@pytest.mark.long
def test_markers_are_offsets_of_a_plan_too(empty: Bench, jobs: Jobs) -> None:
    write_log(empty.home / "log", "t", [], COMPACT)
    segments = {
        0: [
            transactional(0, "a", producer=7, at_ms=FIRST_MS),
            marker(1, "ABORT", producer=7, at_ms=FIRST_MS),
        ],
        2: [data_batch(2, ("b", "1"), at_ms=FIRST_MS)],
        3: [data_batch(3, ("c", "1"), at_ms=FIRST_MS)],
    }
    for base, batches in segments.items():
        path = empty.home / "log" / "t-0" / f"{base:020}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(batches))
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    taken(empty)
    first = plan(jobs, empty.name)
    assert removed(first) == [0]
    assert first.summary["partitions"]["0"]["rules"] == {"aborted": {"records": 1}}
    assert execute(jobs, first) == ExitCode.DONE
    empty.clean(NIGHT_MS + 2 * DAY_MS)  # sets the marker's horizon
    second = plan(jobs, empty.name, NIGHT_MS + 4 * DAY_MS)
    assert removed(second) == [1]
    assert second.summary["partitions"]["0"]["rules"] == {"markers_removed": {"records": 1}}
    assert execute(jobs, second) == ExitCode.DONE


def test_an_execution_that_is_killed_at_each_commit_goes_on_with_its_plan(
    bench: Bench, jobs: Jobs, kill_at: list[Step]
) -> None:
    kept = plan(jobs, bench.name)
    kill_at += [Step.ROUND_STARTED, Step.ROUND_RECORDS, Step.ROUND_STATE]
    while kill_at:
        assert execute(jobs, kept) == ExitCode.FAILED
    assert execute(jobs, kept) == ExitCode.DONE
    assert bench.left() == [2, 3, 4, 5]
    assert jobs.kinds(kept) == [PlanStep.APPROVED, PlanStep.EXECUTED]


@pytest.mark.long
def test_a_round_in_flight_that_a_plan_does_not_have_is_not_finished_by_it(
    bench: Bench, jobs: Jobs, kill_at: list[Step]
) -> None:
    kept = plan(jobs, bench.name)
    add_segments(bench.home, [Message("c", "2")], [Message("x", "1")])
    taken(bench)
    kill_at.append(Step.ROUND_RECORDS)
    assert jobs.run(clean_log, "--topic", str(bench.name), "--now", "2000-01-01T00:00:00Z") == 1
    assert execute(jobs, kept) == ExitCode.FAILED
    assert "1 offsets of partition 0 from 2 on" in jobs.last_run().error
    assert bench.left() == list(range(8))
