"""Metrics of runs: of topics whose numbers cannot be worked out, and of what keeps records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ebbtide.iceberg.schema import create_held
from ebbtide.iceberg.topics import load, replica_names
from ebbtide.lake.own_tables import read_all_holds
from ebbtide.lake.reader import LakeTopic, open_lake
from ebbtide.layouts.layout import LAYOUT
from ebbtide.ledger.holds import HoldEvent, Kind
from ebbtide.orchestration.monitoring import (
    HELD_RECORDS,
    MISSING_OFFSETS,
    PAUSED_RECORDS,
    ROWS_OF_ERASED_KEYS,
    WAITING_FOR_REPLICAS,
    FinishedRun,
    TopicRun,
    _measured,
    _readable,
    _topic_runs,
)
from ebbtide.orchestration.pages.topic import held_back
from ebbtide.orchestration.report import notes
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.state.covered_offsets import MissingRange
from ebbtide.state.topic_state import to_properties
from tests import rows
from tests.lake_sandbox import LakeSandbox, as_ebbtide, state_of
from tests.log.log_files import data_batch, marker, transactional
from tests.tables.bench import Bench
from tests.tables.bench import empty as empty
from tests.tables.logs import FIRST_MS, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at
from tests.tables.partition_log import write_segments

NIGHT_MS = FIRST_MS + 30 * DAY_MS


def test_one_topics_numbers_hide_no_others() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    odd: Any = {"topic": "log.odd", "partition": 0, "low_watermark": None, "log_start_offset": 0}
    topics = [
        TopicRun(LakeTopic("log.odd", {}), [], [odd], 0),
        TopicRun(LakeTopic("log.good", {}), [], [], 0),
    ]
    run = FinishedRun("nightly_retention", now, ["log.odd", "log.good"], set(), [], [])
    assert {measurement.tags["topic"] for measurement in _measured(run, topics)} == {"good"}


def test_a_topic_whose_state_is_odd_is_left_out() -> None:
    class Lake:
        def topic(self, name: str) -> LakeTopic:
            if name == "log.odd":
                raise OverflowError("date value out of range")
            return LakeTopic(name, {})

    lake: Any = Lake()
    assert [topic.name for topic in _readable(lake, ["log.odd", "log.good"])] == ["log.good"]


def test_offsets_that_never_arrived_are_a_metric_of_adopted_topics() -> None:
    missing = (MissingRange(3, 5, 2), MissingRange(9, 10, 1))
    state = to_properties(0, state_of(missing=missing))
    sent = {
        name: {
            measurement.name: measurement.value
            for measurement in TopicRun(topic, [], [], 0).measured_at_night()
        }
        for name, topic in {
            "adopted": LakeTopic("log.a", {**state, LAYOUT: "{}"}),
            "own": LakeTopic("log.a", state),
        }.items()
    }
    assert sent["adopted"][MISSING_OFFSETS] == 3
    assert MISSING_OFFSETS not in sent["own"]


def test_rows_of_erased_keys_are_counted_over_all_runs() -> None:
    outcomes = [JobOutcome(topic={"rows_of_erased_keys": 2}), JobOutcome(), JobOutcome()]
    runs = [row_of("clean_log", outcome, NIGHT_MS) for outcome in outcomes]
    counted = TopicRun(LakeTopic("log.a", {}), runs, [], NIGHT_MS).measured()
    assert [each.value for each in counted if each.name == ROWS_OF_ERASED_KEYS] == [2]


def measured_at_night(bench: Bench, job: str, outcome: JobOutcome, now_ms: int) -> dict[str, float]:
    """What is sent after a night with this job."""
    topic = LakeTopic(str(bench.name), load(bench.spark, bench.name).properties)
    measured = TopicRun(topic, [row_of(job, outcome, now_ms)], [], now_ms).measured_at_night()
    return {measurement.name: measurement.value for measurement in measured}


def row_of(job: str, outcome: JobOutcome, now_ms: int) -> Any:
    partitions = {str(p): numbers for p, numbers in outcome.partitions.items()}
    result = {"partitions": partitions, "topic": outcome.topic}
    return rows.run(job, at(now_ms), topic="log.a", result=result)


def test_each_night_says_what_waits_for_a_replica(empty: Bench) -> None:
    """Also one without a round, for which what only waits is no reason."""
    write_log(empty.home / "log", "t", [], {"cleanup.policy": "compact"})
    first = [
        data_batch(0, ("a", None), ("b", "1"), at_ms=FIRST_MS),
        transactional(2, "c", producer=7, at_ms=FIRST_MS),
        marker(3, "ABORT", producer=7, at_ms=FIRST_MS),
    ]
    second = [data_batch(4, ("b", "2"), ("d", None), at_ms=FIRST_MS)]
    write_segments(empty.home / "log", {0: first, 4: second, 6: []})
    empty.ingest(empty.home / "log", NIGHT_MS)
    empty.mark()
    empty.set({"ebbtide.replicas": "lake.copy"})
    for hour in range(2):  # the first round removes what was aborted, the second dates its marker
        assert empty.clean(NIGHT_MS + hour * HOUR_MS).partitions[0]["picked"]
    (replica,) = replica_names(empty.load())
    words = (
        f"3 tombstones and markers are due and wait for the replica {replica}, which does "
        "not have the partition yet: run replicate_log"
    )
    for night in (2, 3):
        now_ms = NIGHT_MS + night * DAY_MS
        outcome = empty.clean(now_ms)
        numbers = outcome.partitions[0]
        assert not numbers["picked"]
        assert numbers["waiting_for_replicas"] == {"tombstones": 2, "markers": 1}
        assert measured_at_night(empty, "clean_log", outcome, now_ms)[WAITING_FOR_REPLICAS] == 3
        run = row_of("clean_log", outcome, now_ms)
        assert notes([run]) == [f"log.a partition 0: {words}."]
        assert held_back([run]) == [f"Partition 0: {words}."]

    empty.set({"ebbtide.replicas": None})
    now_ms = NIGHT_MS + 4 * DAY_MS
    outcome = empty.clean(now_ms)
    numbers = outcome.partitions[0]
    assert (numbers["tombstones_removed"], numbers["markers_removed"]) == (2, 1)
    assert measured_at_night(empty, "clean_log", outcome, now_ms)[WAITING_FOR_REPLICAS] == 0
    assert held_back([row_of("clean_log", outcome, now_ms)]) == []


def kept(name: str) -> dict[str, float]:
    """What any run sends of the records that holds on a topic keep."""
    now = datetime.now(UTC)
    run = FinishedRun("ingest_segments", now, [name], set(), [], [])
    with open_lake() as opened:
        topics = list(_topic_runs(opened, run, read_all_holds(opened, now)))
    measured = {m.name: m.value for m in _measured(run, topics)}
    return {name: measured[name] for name in (HELD_RECORDS, PAUSED_RECORDS) if name in measured}


def test_records_that_holds_and_pauses_keep_are_counted(lake: LakeSandbox) -> None:
    lake.topic("log.a", {partition: state_of() for partition in range(3)})
    lake.topic("log.b")
    lake.records("log.a", [(0, 7), (1, 5), (1, 6), (2, 9)])
    lake.hold("log.b", kind=Kind.PAUSE)
    assert kept("log.a") == {HELD_RECORDS: 0, PAUSED_RECORDS: 0}

    lake.hold("log.a")
    lake.hold("log.a", hold_id="h-2", kind=Kind.PAUSE, partition=1)
    past = datetime.now(UTC) - timedelta(hours=1)
    lake.hold("log.a", hold_id="h-3", kind=Kind.PAUSE, partition=2, ends_at=past)
    create_held(lake.session, TopicName.parse("log.a"))
    with as_ebbtide(lake.session):
        of_all = "0, 0, false, current_timestamp(), 'id'"
        lake.session.sql(
            "INSERT INTO lake.log_held.a (hold_id, `partition`, offset, segment, batch, "
            f"is_tombstone, kept_at, table_id) VALUES ('h-1', 0, 1, {of_all}), "
            f"('h-1', 0, 2, {of_all}), ('h-0', 0, 3, {of_all})"
        )
    assert kept("log.a") == {HELD_RECORDS: 2, PAUSED_RECORDS: 2}
    lake.hold("log.a", hold_id="h-1", event=HoldEvent.ENDED, at=datetime.now(UTC))
    lake.hold("log.a", hold_id="h-4", kind=Kind.PAUSE, partition=None)
    assert kept("log.a") == {HELD_RECORDS: 0, PAUSED_RECORDS: 4}
    lake.session.sql("UPDATE lake.ebbtide.holds SET kind = 'forever'")
    assert kept("log.a") == {}
