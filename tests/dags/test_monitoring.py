"""Metrics as they arrive at a StatsD server, and notices as a notifier gets them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.sdk import BaseNotifier

from ebbtide.errors import ConfigurationError, SafetyError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.own_tables import append_own
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.holds import HoldEvent as HoldEvent
from ebbtide.ledger.plans import PLAN_EVENTS, PlanStep
from ebbtide.orchestration import monitoring
from ebbtide.orchestration.handover import _finished_run
from ebbtide.orchestration.monitoring import NOTIFIER, count_waiting
from ebbtide.runner.stored_plans import event_of
from tests.dags.fake_spark import NO_GUARD, FakeSpark
from tests.dags.runs import run_dag
from tests.lake_sandbox import LakeSandbox, state_of

DUE_MS = 1_767_225_600_000  # 2026-01-01
WORK = {0: state_of(first_unmarked_offset=0, cleaned_end_offset=0, next_clean_ms=DUE_MS)}
COMPACT = {"kafka.cleanup.policy": "compact,delete", "kafka.retention.ms": "1"}
PAST = date(2026, 1, 1)
OF_TOPIC = "catalog=lake,cluster=log,topic=a"
NUMBERS = {
    "clean_log": {
        "superseded": 7,
        "aborted": 2,
        "tombstones_removed": 1,
        "markers_removed": 3,
        "dirty_ratio": 0.25,
        "waiting_for_replicas": {"tombstones": 4, "markers": 1},
        "open_transaction": {"producer_id": 7, "first_offset": 1, "since_ms": DUE_MS - 60_000},
    },
    "expire_segments": {"records_removed": 12, "records_expired": 2, "segments_held_back": 6},
}
TOTALS = {
    "clean_log": {"bytes_removed": 900},
    "expire_segments": {"bytes_removed": 500},
    "expire_snapshots": {"topic": {"bytes_freed": 4000}},
}


class StatsD:
    """A StatsD server on loopback that keeps each line it gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._receive, daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def _receive(self) -> None:
        while (packet := self.socket.recv(65_536)) != b"end":
            self.lines += packet.decode().splitlines()

    def end(self) -> None:
        """Take what is under way, and stop."""
        if self.thread.is_alive():
            self.socket.sendto(b"end", self.socket.getsockname())
            self.thread.join()
        self.socket.close()

    def of_ebbtide(self) -> dict[str, str]:
        """What came of ebbtide's: by name and tags the value and its kind."""
        self.end()
        ours = [line for line in self.lines if line.startswith("airflow.ebbtide.")]
        return dict(line.removeprefix("airflow.ebbtide.").rsplit(":", 1) for line in ours)


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsD]:
    """Airflow's metrics go to a server of the test's, as a worker sets them up."""
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    server = StatsD()
    for name, value in {
        "STATSD_ON": "True",
        "STATSD_HOST": "127.0.0.1",
        "STATSD_PORT": str(server.port),
        "STATSD_INFLUXDB_ENABLED": "True",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
    yield server
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)
    server.end()


def test_a_night_is_measured_by_topic(
    lake: LakeSandbox, spark_submit: FakeSpark, statsd: StatsD
) -> None:
    dirty = replace(WORK[0], first_dirty_offset=0, cleaned_at_ms=DUE_MS - 3_600_000)
    lake.topic("log.a", {0: dirty}, {**COMPACT, "ebbtide.replicas": "lake.copy"})
    lake.hold("log.a", review_date=PAST)
    lake.hold("log.a", hold_id="h-2", review_date=date(2999, 1, 1))
    spark_submit.numbers, spark_submit.totals = NUMBERS, TOTALS
    spark_submit.low_watermarks = {"delete_records": 2, "expire_snapshots": -1}
    run = run_dag("nightly_retention", now="2026-01-01T01:00:00Z")
    assert run.state == "success"
    sent = statsd.of_ebbtide()
    succeeded = int(sent.pop(f"last_success_timestamp_seconds,{OF_TOPIC}").removesuffix("|g"))
    assert abs(succeeded - datetime.now(UTC).timestamp()) < 60
    assert sent == {
        f"seconds_since_last_success,{OF_TOPIC}": "0|g",
        f"records_removed,{OF_TOPIC},reason=superseded": "7|c",
        f"records_removed,{OF_TOPIC},reason=aborted": "2|c",
        f"records_removed,{OF_TOPIC},reason=tombstone": "1|c",
        f"records_removed,{OF_TOPIC},reason=marker": "3|c",
        f"records_removed,{OF_TOPIC},reason=retention": "10|c",
        f"records_removed,{OF_TOPIC},reason=event_time": "2|c",
        f"night_records_removed,{OF_TOPIC}": "25|g",
        f"bytes_removed,{OF_TOPIC},reason=compaction": "900|c",
        f"bytes_removed,{OF_TOPIC},reason=retention": "500|c",
        f"bytes_freed,{OF_TOPIC}": "4000|c",
        f"dirty_ratio,{OF_TOPIC}": "0.25|g",
        f"horizon_overdue_seconds,{OF_TOPIC}": "3600|g",
        f"low_watermark_lag,{OF_TOPIC}": "3|g",
        f"low_watermark_unknown,{OF_TOPIC}": "0|g",
        f"waiting_for_replicas,{OF_TOPIC}": "5|g",
        f"segments_held_back,{OF_TOPIC}": "6|g",
        f"uncleanable_partitions,{OF_TOPIC}": "0|g",
        f"open_transaction_seconds,{OF_TOPIC}": "3660|g",
        f"seconds_since_last_round,{OF_TOPIC}": "7200|g",
        f"waiting_approvals,{OF_TOPIC}": "0|g",
        f"holds_to_review,{OF_TOPIC}": "1|g",
        f"held_records,{OF_TOPIC}": "0|g",
        f"paused_records,{OF_TOPIC}": "0|g",
    }


def test_plans_that_wait_for_an_answer_are_counted(lake: LakeSandbox) -> None:
    """Not those that are answered or expired, nor those by which nothing leaves."""
    lake.topic("log.a", WORK, {"ebbtide.plan.expire.ms": str(2 * 86_400_000)})
    lake.topic("log.b", WORK)
    clock = datetime.now(UTC)
    yesterday, long_ago = clock - timedelta(hours=30), clock - timedelta(days=9)
    lake.plan("log.a", "clean_log")
    lake.plan("log.a", "clean_log", made_at=yesterday, expires_at=clock + timedelta(hours=18))
    lake.plan("log.a", "clean_log", made_at=yesterday)
    lake.plan("log.a", "clean_log", made_at=long_ago, expires_at=clock + timedelta(days=9))
    lake.plan("log.a", "clean_log", records=0)
    answered = lake.plan("log.a", "expire_segments")
    rejected = event_of(answered, PlanStep.REJECTED, "run-1", by="bob")
    append_own(lake.session, PLAN_EVENTS, [rejected], Step.PLAN_EVENT)
    with open_lake() as opened:
        topics = [opened.topic(name) for name in ("log.a", "log.b")]
        assert count_waiting(opened, topics, clock) == {"log.a": 2}


def test_every_metric_is_described(lake: LakeSandbox) -> None:
    from tests.test_docs import METRICS

    names = [
        value
        for name, value in vars(monitoring).items()
        if name.isupper() and str(value).startswith(monitoring.PREFIX)
    ]
    text = METRICS.read_text()
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in text] == [monitoring.PREFIX]


def date_successes_back(age: timedelta) -> float:
    """Let all that Airflow knows of successes be older by `age`; the time at which it is done."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        for event in session.query(AssetEvent).all():
            event.timestamp -= age
    return datetime.now(UTC).timestamp()


@pytest.mark.long
def test_a_topic_that_keeps_failing_tells_when_it_last_succeeded(
    lake: LakeSandbox, spark_submit: FakeSpark, statsd: StatsD
) -> None:
    lake.topic("log.a", WORK)
    lake.topic("log.b", WORK)
    lake.topic("log.never", WORK)
    spark_submit.failures["clean_log", "log.never"] = [ConfigurationError("no")] * 2
    run_dag("nightly_retention")
    spark_submit.failures["clean_log", "log.a"] = [ConfigurationError("no")]
    between = date_successes_back(timedelta(days=5))
    run_dag("nightly_retention")
    sent = statsd.of_ebbtide().items()
    times, ages = (
        {
            name.rpartition("=")[2]: int(value.removesuffix("|g"))
            for name, value in sent
            if name.startswith(metric)
        }
        for metric in ("last_success", "seconds_since_last_success")
    )
    assert set(times) == set(ages) == {"a", "b"}
    assert times["a"] <= between - 5 * 86_400
    assert 5 * 86_400 <= ages["a"] < 5 * 86_400 + 600
    assert times["b"] >= int(between)
    assert ages["b"] == 0


@pytest.mark.long
@pytest.mark.parametrize("keeps_tags", ["True", "False"])
def test_neither_a_plan_nor_what_drops_tags_is_measured(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    statsd: StatsD,
    monkeypatch: pytest.MonkeyPatch,
    keeps_tags: str,
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", keeps_tags)
    lake.topic("log.a", WORK, COMPACT)
    form = {"topic": "log.a", "set": ["kafka.retention.ms=5"], "plan_only": True}
    is_plan = keeps_tags == "True"
    run = run_dag("configure_topic", **form) if is_plan else run_dag("nightly_retention")
    assert run.state == "success"
    assert statsd.of_ebbtide() == {}
    assert statsd.lines


class Notifier(BaseNotifier):
    """Keeps what it is told, or fails."""

    template_fields = ("message",)
    messages: ClassVar[list[str]] = []
    is_broken: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.message = "{{ dag.dag_id }}: {{ ebbtide.text }}"

    def notify(self, context: Any) -> None:
        if self.is_broken:
            raise OSError("no such channel")
        assert len(context["ebbtide"]["notices"]) == len(self.message.splitlines())
        self.messages.append(self.message)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages of a notifier that is asked for."""
    monkeypatch.setenv(NOTIFIER, f"{__name__}.Notifier")
    monkeypatch.setattr(Notifier, "messages", [])
    return Notifier.messages


def test_a_notifier_is_told_of_guards_and_horizons(
    lake: LakeSandbox, spark_submit: FakeSpark, told: list[str]
) -> None:
    lake.topic("log.a", WORK, COMPACT)
    spark_submit.failures["expire_segments", "log.a"] = [SafetyError("expected less, found 60 %")]
    run_dag("nightly_retention", now="2026-01-01T02:00:00Z")
    guard, horizon = told[0].splitlines()
    assert guard == (
        "nightly_retention: log.a: a guard stopped expire_segments: "
        "SafetyError: expected less, found 60 %"
    )
    assert horizon.startswith("log.a: a delete horizon was due 2.0 hours before this nightly run")


@pytest.mark.long
def test_a_notifier_is_told_of_no_guard_if_the_job_itself_refused(
    lake: LakeSandbox, spark_submit: FakeSpark, told: list[str]
) -> None:
    lake.topic("log.a", WORK, COMPACT)
    failures = [SafetyError(f"{NO_GUARD} a row for each batch, found none")]
    spark_submit.failures["clean_log", "log.a"] = failures
    run_dag("nightly_retention")
    assert not [line for message in told for line in message.splitlines() if "guard" in line]


@pytest.mark.long
def test_a_notifier_is_told_each_night_of_holds_to_review(
    lake: LakeSandbox, spark_submit: FakeSpark, told: list[str]
) -> None:
    lake.topic("log.a", {0: state_of()}, {"ebbtide.enabled": "false"})
    lake.hold("log.a", review_date=PAST)
    lake.hold("log.a", hold_id="h-2", review_date=PAST)
    lake.hold("log.a", hold_id="h-2", review_date=PAST, event=HoldEvent.ENDED, at=datetime.now(UTC))
    lake.hold("log.a", hold_id="h-3", review_date=date(2999, 1, 1))
    run_dag("nightly_retention")
    assert told == [
        "nightly_retention: log.a: the review of hold h-1 (case C-7) was due by 2026-01-01; "
        "ask legal"
    ]


@pytest.mark.long
def test_holds_that_cannot_be_read_hide_no_other_notice(
    lake: LakeSandbox, spark_submit: FakeSpark, told: list[str], statsd: StatsD
) -> None:
    lake.topic("log.a", WORK, COMPACT)
    lake.hold("log.a", review_date=PAST)
    lake.session.sql("UPDATE lake.ebbtide.holds SET kind = 'forever'")
    run_dag("nightly_retention", now="2026-01-01T02:00:00Z")
    assert [line.partition(": ")[2][:22] for line in told] == ["log.a: a delete horizon"[:22]]
    assert not [name for name in statsd.of_ebbtide() if name.startswith("holds_to_review")]


@pytest.mark.long
def test_a_quiet_night_tells_nobody(
    lake: LakeSandbox, spark_submit: FakeSpark, told: list[str]
) -> None:
    lake.topic("log.a", {0: state_of()}, COMPACT)
    run_dag("nightly_retention")
    assert told == []


@pytest.mark.long
@pytest.mark.parametrize(
    "notifier", [f"{__name__}.Notifier", "no.such.Notifier", "Notifier", "os.getcwd"]
)
def test_a_broken_notifier_breaks_no_night(
    lake: LakeSandbox,
    spark_submit: FakeSpark,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    notifier: str,
) -> None:
    monkeypatch.setattr(Notifier, "is_broken", True)
    monkeypatch.setenv(NOTIFIER, notifier)
    lake.topic("log.a", WORK, COMPACT)
    assert run_dag("nightly_retention").state == "success"
    assert told == []


def test_a_cleared_run_tells_of_its_new_rows_alone(lake: LakeSandbox) -> None:
    cleared = datetime(2026, 1, 2, 3, tzinfo=UTC)
    before, after = (cleared + timedelta(hours=hours) for hours in (-1, 1))
    lake.topic("log.a")
    for ended, rows in ((before, 5), (after, 7)):
        lake.run("log.a", "delete_records", started=ended, ended=ended, rows_removed=rows)
    ti = SimpleNamespace(
        dag_id="delete_records",
        task_id="report_run",
        task=SimpleNamespace(retries=0),
        max_tries=0,
        try_number=1,
        xcom_pull=lambda task_ids: [None],
    )
    dag_run = SimpleNamespace(start_date=cleared, run_after=before, run_id="run-1")
    context = {"ti": ti, "dag_run": dag_run, "params": {}}
    with open_lake() as opened:
        rows = opened.runs()
    finished = _finished_run(context, ["delete_records"], None, rows)
    assert [row.rows_removed for row in finished.rows] == [7]
    assert finished.topics == ["log.a"]
