"""Retention on tables that others write: a prefix of whole segments leaves."""

import re
from collections.abc import Mapping

import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from ebbtide.errors import ExitCode, ForeignLogError
from ebbtide.iceberg.adopted import arrivals
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load, set_properties
from ebbtide.jobs.abandon_table import execute_abandonment, plan_abandonment
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.ledger.holds import Kind
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.state.covered_offsets import PRIME
from jobs import clean_log, expire_segments
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, adopt, append, live, spark_table
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import at
from tests.tables.planned import Jobs

DAY_MS = 86_400_000


def expire(spark: SparkSession, name: str, now_ms: int) -> JobOutcome:
    topic = load(spark, TopicName.parse(name))
    return execute_expire(plan_expire(topic, now_ms))


@pytest.mark.long(but="copy-on-write")
@pytest.mark.parametrize(
    ("version", "limit", "mode"),
    [
        pytest.param(2, {"kafka.retention.ms": str(2 * DAY_MS)}, None, id="time, format 2"),
        pytest.param(
            3, {"kafka.retention.max.eventtime.ms": str(DAY_MS)}, None, id="event time, format 3"
        ),
        pytest.param(
            2, {"kafka.retention.ms": str(2 * DAY_MS)}, "copy-on-write", id="copy-on-write"
        ),
    ],
)
def test_segments_past_a_limit_leave(
    sandbox: LakeSandbox,
    cluster: str,
    kill_at: list[Step],
    version: int,
    limit: dict[str, str],
    mode: str | None,
) -> None:
    """One file leaves whole, another loses a row; a late row below the start goes too."""
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name, version)
    set_properties(spark, TopicName.parse(name).records_table, {"write.delete.mode": mode})
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in (1, 2)])
    settings = {"kafka.cleanup.policy": "delete", "kafka.segment.ms": str(DAY_MS), **limit}
    adopt(spark, name, settings, now_ms=2 * DAY_MS)
    assert expire(spark, name, 2 * DAY_MS).rows_removed == 0  # closes a segment at offset 3
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in (3, 4)])
    append(spark, name, [Record(2, "k", "v", 0, 2 * DAY_MS), Record(5, "k", "v", 1, 4 * DAY_MS)])
    for step in (Step.LOG_START_OFFSET, Step.TRUNCATE_RECORDS):
        kill_at.append(step)
        with pytest.raises(KilledError):
            expire(spark, name, 4 * DAY_MS + 1)
    outcome = expire(spark, name, 4 * DAY_MS + 1)
    assert outcome.rows_removed == 3
    assert live(spark, name) == [3, 4, 5]
    states = load(spark, TopicName.parse(name)).partitions
    assert {p: s.log_start_offset for p, s in states.items()} == {0: 3, 1: 0}
    files = spark.table(f"{TopicName.parse(name).records_table}.data_files")
    assert files.count() == 2


@pytest.mark.long
def test_single_rows_past_the_event_time_limit_leave(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs
) -> None:
    """One without a time stays, and sums count what is left; a late one stops a plan."""
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    days = {0: 1, 1: 9, 2: 3, 3: 8, 4: 2}
    append(spark, name, [Record(n, "k", "v", 0, day * DAY_MS) for n, day in days.items()])
    append(spark, name, [Record(5, "k", "v", 0, DAY_MS), Record(6, "k", "v", 0, 10 * DAY_MS)])
    table = TopicName.parse(name).records_table
    spark.sql(f"UPDATE {table} SET timestamp = null WHERE offset = 5")
    limits = {
        "kafka.cleanup.policy": "delete",
        "kafka.segment.ms": str(9 * DAY_MS),
        "kafka.retention.max.eventtime.ms": str(5 * DAY_MS),
        "ebbtide.retention.granularity": "record",
        "ebbtide.max.delete.ratio": "1",
    }
    adopt(spark, name, limits, now_ms=10 * DAY_MS)
    plan = jobs.plan(expire_segments, 10 * DAY_MS, "--topic", name)
    assert {p: list(offsets) for p, offsets in (plan.removes or {}).items()} == {0: [0, 2, 4]}
    late = Record(4, "k", "v", 0, DAY_MS), Record(1, "k", "v", 0, DAY_MS)
    append(spark, name, late[:1])  # its offset is the plan's
    assert jobs.run(expire_segments, "--plan", plan.plan_id) == 0
    run = jobs.last_run()
    assert (run.rows_removed, run.partitions[0]["records_expired"]) == (4, 4)
    assert live(spark, name) == [1, 3, 5, 6]
    (state,) = load(spark, TopicName.parse(name)).partitions.values()
    assert sum(sums.record_count for sums in state.sums) == 4
    again = jobs.plan(expire_segments, 10 * DAY_MS + 1, "--topic", name)
    append(spark, name, late[1:])
    assert jobs.run(expire_segments, "--plan", again.plan_id) != 0
    assert "1 offsets of partition 0 from 1 on" in str(jobs.last_run().error)
    assert expire(spark, name, 10 * DAY_MS + 2).partitions[0]["records_expired"] == 1
    assert live(spark, name) == [1, 3, 5, 6]


def _expired_log(spark: SparkSession, name: str, settings: dict[str, str]) -> None:
    """A log of three rows, of which retention has let all go; the last lies beyond the limit."""
    spark_table(spark, name)
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in range(3)])
    limits = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": str(DAY_MS), **settings}
    adopt(spark, name, {**limits, "kafka.segment.ms": str(DAY_MS)}, now_ms=2 * DAY_MS)
    expire(spark, name, 9 * DAY_MS)
    assert live(spark, name) == []


def test_a_log_that_begins_again_stops_the_topic(sandbox: LakeSandbox, cluster: str) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    _expired_log(spark, name, {})
    append(spark, name, [Record(n, "k", "v", 0, 9 * DAY_MS) for n in range(2)])
    with pytest.raises(ForeignLogError, match="newer than 1970-01-03 00:00 UTC"):
        expire(spark, name, 9 * DAY_MS)
    assert live(spark, name) == [0, 1]
    execute_abandonment(plan_abandonment(spark, TopicName.parse(name)))
    adopt(spark, name, {"kafka.cleanup.policy": "delete"}, now_ms=9 * DAY_MS)
    assert expire(spark, name, 9 * DAY_MS).rows_removed == 0
    assert live(spark, name) == [0, 1]


@pytest.mark.long
def test_rows_of_another_log_that_come_while_the_log_start_moves_stay(
    sandbox: LakeSandbox, cluster: str, meanwhile: Meanwhile
) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in range(3)])
    limits = {"kafka.cleanup.policy": "delete", "kafka.retention.ms": str(DAY_MS)}
    adopt(spark, name, {**limits, "kafka.segment.ms": str(DAY_MS)}, now_ms=2 * DAY_MS)
    begun_again = [Record(n, "k", "v", 0, 9 * DAY_MS) for n in range(2)]
    meanwhile(Step.LOG_START_OFFSET, lambda: append(spark, name, begun_again))
    for _ in range(2):
        with pytest.raises(ForeignLogError, match="newer than 1970-01-03 00:00 UTC"):
            expire(spark, name, 9 * DAY_MS)
    assert live(spark, name) == [0, 0, 1, 1, 2]


def test_guards_see_rows_that_come_below_the_log_start(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs
) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    _expired_log(spark, name, {"ebbtide.max.delete.records": "1"})
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in (0, 1)])
    assert jobs.run(expire_segments, "--topic", name, "--now", at(9 * DAY_MS).isoformat()) != 0
    assert re.search("at most 1 records? .* found 2", str(jobs.last_run().error))
    assert live(spark, name) == [0, 1]
    plan = jobs.plan(expire_segments, 9 * DAY_MS, "--topic", name)
    assert {p: list(offsets) for p, offsets in (plan.removes or {}).items()} == {0: [0, 1]}


@pytest.mark.long
def test_guards_see_such_rows_also_if_a_round_has_seen_them_before(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs
) -> None:
    """As in each night of a compacted topic, whose round is the first to look."""
    spark, name = sandbox.session, f"{cluster}.t"
    policy = {"kafka.cleanup.policy": "compact,delete", "ebbtide.max.delete.records": "1"}
    _expired_log(spark, name, policy)
    append(spark, name, [Record(n, "k", "v", 0, n * DAY_MS) for n in (0, 1)])
    asked = ("--topic", name, "--now", at(9 * DAY_MS).isoformat())
    assert jobs.run(clean_log, *asked) == ExitCode.DONE
    assert jobs.run(expire_segments, *asked) == ExitCode.FAILED
    assert re.search("at most 1 records? .* found 2", str(jobs.last_run().error))
    assert live(spark, name) == [0, 1]
    (plan,) = jobs.plans(run_id=jobs.run_id)
    assert jobs.run(expire_segments, "--plan", plan.plan_id, "--approved-by", "bob") == 0
    assert live(spark, name) == []
    append(spark, name, [Record(3, "k", "v", 0, 9 * DAY_MS)])
    assert jobs.run(expire_segments, *asked) == ExitCode.DONE
    assert load(spark, TopicName.parse(name)).partitions[0].late == ()


@pytest.mark.long
def test_a_pause_keeps_rows_that_come_late_too(
    sandbox: LakeSandbox, cluster: str, jobs: Jobs
) -> None:
    spark, name = sandbox.session, f"{cluster}.t"
    _expired_log(spark, name, {})
    append(spark, name, [Record(1, "k", "v", 0, DAY_MS)])
    sandbox.hold(name, kind=Kind.PAUSE, partition=None, first_offset=None, end_offset=None)
    asked = ("--topic", name, "--now", at(9 * DAY_MS).isoformat())
    assert jobs.run(expire_segments, *asked) == ExitCode.DONE
    assert live(spark, name) == [1]


def test_offsets_that_never_arrived_are_counted(
    sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row came twice, one came late, another partition begins at its first row.

    In a third two came twice, so that sum and exclusive or are those of the two that did not.
    """
    asked: list[set[int]] = []
    offsets_from = arrivals._offsets_from

    def asking(rows: DataFrame, starts: Mapping[int, int]) -> dict[int, BitMap64]:
        asked.append(set(starts))
        return offsets_from(rows, starts)

    monkeypatch.setattr(arrivals, "_offsets_from", asking)
    spark, name = sandbox.session, f"{cluster}.t"
    spark_table(spark, name)
    append(spark, name, [Record(n, "k") for n in (0, 1, 1, 4)])
    append(spark, name, [Record(PRIME + n, "k", partition=1) for n in (-2, -1, 0)])
    append(spark, name, [Record(n, "k", partition=2) for n in (0, 0, 3, 3)])
    adopted = adopt(spark, name, {"kafka.cleanup.policy": "delete"})
    assert adopted.partitions[0]["missing_offsets"] == 2
    assert "missing_offsets" not in adopted.partitions[1]
    assert adopted.partitions[2]["missing_offsets"] == 2
    append(spark, name, [Record(7, "k"), Record(PRIME + 1, "k", partition=1)])
    outcome = expire(spark, name, 2_000)
    assert outcome.partitions[0]["missing_offsets"] == 4
    assert "partition 0: 4 offsets never arrived, the newest from 5 to 6" in outcome.topic["note"]
    append(spark, name, [Record(n, "k") for n in (5, 4, 8, 2, 3, 6)])
    done = expire(spark, name, 3_000)
    assert "missing_offsets" not in done.partitions[0]
    assert load(spark, TopicName.parse(name)).partitions[0].missing == ()
    assert asked == [{0, 2}, {0}, {0}]
