"""While a pause stands, no job removes anything from its partition, and each says which it is."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.holds import Event, Hold, Kind
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import NEVER
from ebbtide.runs.holds_table import append_hold, read_holds, standing_holds
from ebbtide.stages.clean_log.stage import plan_clean
from jobs import clean_log, delete_records, expire_segments
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark, set_properties
from tests.tables.planned import Jobs

NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Two partitions, each of three segments of two records, of which retention lets the first two go.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(3)]
ALL = list(range(6))


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    config = {"cleanup.policy": "compact,delete", "retention.ms": str(int(8.5 * DAY_MS))}
    config["min.cleanable.dirty.ratio"] = "0.01"
    for partition in (0, 1):
        write_log(tmp_path / "log", "t", MESSAGES, config, partition=partition)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    return TopicName(cluster, "t")


def pause(name: TopicName, **changes: Any) -> Hold:
    """A pause of partition 0 for a week."""
    return Hold(
        **{
            "hold_id": f"h-{name.cluster[-8:]}",
            "event": Event.MADE,
            "at": at(NIGHT_MS),
            "by": "ann",
            "run_id": "run-1",
            "kind": Kind.PAUSE,
            "topic": str(name),
            "partition": 0,
            "reason": "undone by run-1",
            "ends_at": at(NIGHT_MS) + timedelta(days=7),
            **changes,
        }
    )


def left(sandbox: LakeSandbox, name: TopicName, partition: int) -> list[int]:
    return offsets(view_of_table(sandbox.session, name, partition))


def run(jobs: Jobs, job: Any, name: TopicName, now_ms: int = NIGHT_MS) -> Any:
    """Run a job of a night; its row."""
    now = at(now_ms).isoformat()
    assert jobs.run(job, "--topic", str(name), "--now", now) == ExitCode.DONE
    return jobs.last_run()


def test_nothing_is_removed_until_it_is_over(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    append_hold(sandbox.session, name, pause(name))
    told = f"hold {pause(name).hold_id} lets nothing be removed until "
    cleaned = run(jobs, clean_log, name)
    assert cleaned.partitions[0]["reason"].startswith(told)
    assert [cleaned.partitions[p]["picked"] for p in (0, 1)] == [False, True]
    expired = run(jobs, expire_segments, name)
    assert expired.partitions[0]["note"].startswith(told)
    assert [expired.partitions[p]["segments_expired"] for p in (0, 1)] == [0, 1]
    assert left(sandbox, name, 0) == ALL
    assert left(sandbox, name, 1) == [4, 5]
    # The same topic a week later: the night's jobs are started, and judge it by its settings.
    run(jobs, expire_segments, name, NIGHT_MS + 7 * DAY_MS)
    assert left(sandbox, name, 0) == []


def test_a_limit_by_size_is_judged_once_the_pause_is_over(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    """A pause must not be noted as a log within its limits, which no night would open again."""
    by_size = {"kafka.retention.ms": None, "kafka.retention.bytes": "160"}
    set_properties(sandbox.session, str(name), by_size)
    append_hold(sandbox.session, name, pause(name))
    run(jobs, expire_segments, name)
    states = load(sandbox.session, name).partitions
    assert [states[p].expiry_basis == NEVER for p in (0, 1)] == [True, False]


def test_delete_records_is_refused_by_the_holds_name(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    append_hold(sandbox.session, name, pause(name))
    partitions = [{"partition": p, "offset": 3} for p in (0, 1)]
    request = json.dumps({"topics": [{"topic": str(name), "partitions": partitions}]})
    now = at(NIGHT_MS).isoformat()
    assert jobs.run(delete_records, "--request", request, "--now", now) == ExitCode.FAILED
    row = jobs.last_run()
    assert f"partition 0: POLICY_VIOLATION (hold {pause(name).hold_id} lets nothing" in row.error
    assert "undone by run-1" in row.error
    assert row.partitions[1]["error_name"] == "NONE"
    assert left(sandbox, name, 0) == ALL
    assert left(sandbox, name, 1) == [3, 4, 5]


@pytest.mark.long
def test_a_plan_made_before_the_pause_is_refused(
    sandbox: LakeSandbox, jobs: Jobs, name: TopicName
) -> None:
    kept = jobs.plan(expire_segments, NIGHT_MS, "--topic", str(name))
    append_hold(sandbox.session, name, pause(name))
    assert jobs.run(expire_segments, "--plan", kept.plan_id) == ExitCode.FAILED
    assert f"{pause(name)} lets nothing be removed" in jobs.last_run().error
    assert [left(sandbox, name, partition) for partition in (0, 1)] == [ALL, ALL]
    paused = jobs.plan(expire_segments, NIGHT_MS, "--topic", str(name))
    (stays,) = paused.summary["partitions"]["0"]["stays"]
    assert (stays["reason"].split(" lets")[0], stays["records"]) == (
        f"hold {pause(name).hold_id}",
        6,
    )


def test_an_ended_pause_counts_no_more(sandbox: LakeSandbox, cluster: str) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    append_hold(spark, name, pause(name))
    ended = pause(name, event=Event.ENDED, at=at(NIGHT_MS) + timedelta(hours=1))
    append_hold(spark, name, ended)
    assert standing_holds(spark, name, at(NIGHT_MS)) == []
    assert sorted(hold.event for hold in read_holds(spark, name)) == ["ended", "made"]
    other = TopicName(name.cluster, "another")
    assert read_holds(spark, other) == []


def test_a_killed_event_is_kept_or_not(
    sandbox: LakeSandbox, cluster: str, kill_at: list[Step]
) -> None:
    name = TopicName(cluster, "t")
    kill_at.append(Step.HOLD_EVENT)
    with pytest.raises(KilledError):
        append_hold(sandbox.session, name, pause(name))
    assert read_holds(sandbox.session, name) == []
    append_hold(sandbox.session, name, pause(name))
    assert read_holds(sandbox.session, name) == [pause(name)]


def test_a_row_that_nobody_understands_stops_its_topic_alone(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    spark = sandbox.session
    other = TopicName(name.cluster, "another")
    append_hold(spark, other, pause(other))
    spark.sql(
        "INSERT INTO lake.ebbtide.holds (hold_id, event, `at`, `by`, run_id, kind, topic) VALUES "
        f"('h', 'made', timestamp'2026-01-01', 'ann', 'r', 'freeze', '{name}')"
    )
    with pytest.raises(HoldError, match="kind = 'freeze', which is none of keep, pause"):
        plan_clean(load(spark, name), NIGHT_MS)
    assert [hold.hold_id for hold in read_holds(spark, other)] == [pause(other).hold_id]
