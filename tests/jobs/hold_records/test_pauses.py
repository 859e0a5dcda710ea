"""While a pause stands, no job removes anything from its partition, and each says which it is."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, HoldError
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.clean_log.stage import plan_clean
from ebbtide.ledger.holds import Hold, HoldEvent, Kind
from ebbtide.runner.holds import append_hold, read_holds, standing_holds
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import NEVER
from jobs import clean_log, expire_segments
from tests.jobs.hold_records.builders import NIGHT_MS, HeldTopic
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError
from tests.tables.logs import Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark
from tests.tables.planned import Jobs

# Two partitions, each of three segments of two records, of which retention lets the first two go.
MESSAGES = [[Message("a", "1", day * DAY_MS), Message("b", "1", day * DAY_MS)] for day in range(3)]
ALL = list(range(6))


@pytest.fixture
def topic(sandbox: LakeSandbox, cluster: str, jobs: Jobs, tmp_path: Path) -> HeldTopic:
    config = {"cleanup.policy": "compact,delete", "retention.ms": str(int(8.5 * DAY_MS))}
    config["min.cleanable.dirty.ratio"] = "0.01"
    for partition in (0, 1):
        write_log(tmp_path / "log", "t", MESSAGES, config, partition=partition)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", NIGHT_MS)
    mark(sandbox.session, f"{cluster}.t")
    return HeldTopic(sandbox, jobs, TopicName(cluster, "t"))


def pause(name: TopicName, **changes: Any) -> Hold:
    """A pause of partition 0 for a week."""
    return Hold(
        **{
            "hold_id": f"h-{name.cluster[-8:]}",
            "event": HoldEvent.MADE,
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


def test_nothing_is_removed_until_it_is_over(topic: HeldTopic) -> None:
    append_hold(topic.spark, topic.name, pause(topic.name))
    told = f"hold {pause(topic.name).hold_id} blocks removals until "
    cleaned = topic.run(clean_log)
    assert cleaned.partitions[0]["reason"].startswith(told)
    assert [cleaned.partitions[p]["picked"] for p in (0, 1)] == [False, True]
    expired = topic.run(expire_segments)
    assert expired.partitions[0]["note"].startswith(told)
    assert [expired.partitions[p]["segments_expired"] for p in (0, 1)] == [0, 1]
    assert topic.left(0) == ALL
    assert topic.left(1) == [4, 5]
    # The same topic a week later: the night's jobs are started, and judge it by its settings.
    topic.now_ms += 7 * DAY_MS
    topic.run(expire_segments)
    assert topic.left(0) == []


def test_a_limit_by_size_is_judged_once_the_pause_is_over(topic: HeldTopic) -> None:
    """A pause must not be noted as a log within its limits, which no night would open again."""
    by_size = {"kafka.retention.ms": None, "kafka.retention.bytes": "160"}
    topic.set(by_size)
    append_hold(topic.spark, topic.name, pause(topic.name))
    topic.run(expire_segments)
    states = topic.topic().partitions
    assert [states[p].expiry_basis == NEVER for p in (0, 1)] == [True, False]


def test_delete_records_is_refused_by_the_holds_name(topic: HeldTopic) -> None:
    append_hold(topic.spark, topic.name, pause(topic.name))
    assert topic.delete(p0=3, p1=3) == ExitCode.FAILED
    row = topic.jobs.last_run()
    assert (
        f"partition 0: POLICY_VIOLATION (hold {pause(topic.name).hold_id} blocks removals"
        in row.error
    )
    assert "undone by run-1" in row.error
    assert row.partitions[1]["error_name"] == "NONE"
    assert topic.left(0) == ALL
    assert topic.left(1) == [3, 4, 5]


@pytest.mark.long
def test_a_plan_made_before_the_pause_is_refused(topic: HeldTopic) -> None:
    kept = topic.jobs.plan(expire_segments, NIGHT_MS, "--topic", str(topic.name))
    append_hold(topic.spark, topic.name, pause(topic.name))
    assert topic.jobs.run(expire_segments, "--plan", kept.plan_id) == ExitCode.FAILED
    assert f"{pause(topic.name)} blocks removals" in topic.jobs.last_run().error
    assert [topic.left(partition) for partition in (0, 1)] == [ALL, ALL]
    paused = topic.jobs.plan(expire_segments, NIGHT_MS, "--topic", str(topic.name))
    (stays,) = paused.summary["partitions"]["0"]["stays"]
    assert (stays["reason"].split(" blocks")[0], stays["records"]) == (
        f"hold {pause(topic.name).hold_id}",
        6,
    )


def test_an_ended_pause_counts_no_more(sandbox: LakeSandbox, cluster: str) -> None:
    spark, name = sandbox.session, TopicName(cluster, "t")
    append_hold(spark, name, pause(name))
    ended = pause(name, event=HoldEvent.ENDED, at=at(NIGHT_MS) + timedelta(hours=1))
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


def test_a_row_that_nobody_understands_stops_its_topic_alone(topic: HeldTopic) -> None:
    other = TopicName(topic.name.cluster, "another")
    append_hold(topic.spark, other, pause(other))
    topic.spark.sql(
        "INSERT INTO lake.ebbtide.holds (hold_id, event, `at`, `by`, run_id, kind, topic) VALUES "
        f"('h', 'made', timestamp'2026-01-01', 'ann', 'r', 'freeze', '{topic.name}')"
    )
    with pytest.raises(HoldError, match="kind = 'freeze', which is none of keep, pause"):
        plan_clean(topic.topic(), NIGHT_MS)
    assert [hold.hold_id for hold in read_holds(topic.spark, other)] == [pause(other).hold_id]
