"""delete_records where a topic has replicas: tables in another catalog, and a live topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ebbtide.errors import ConfigurationError, RequestError, UnavailableError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.delete_records import replicas
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.delete_records.replicas import Replicas
from ebbtide.kafka.low_watermarks import ErrorCode, PartitionAnswer, refused
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.jobs.replicate_log.replicas import replica_of, replicate, sandbox, set_replicas
from tests.lake_sandbox import LakeSandbox
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ingest

pytestmark = pytest.mark.long

__all__ = ["sandbox"]

DELETE = {"cleanup.policy": "delete"}
SHORT_MS = 1


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """Three segments of two records in two partitions; the replica has the first two of them."""
    name = TopicName(cluster, "t")
    grow(sandbox, name, tmp_path, 2)
    set_replicas(sandbox, name, f"other.{cluster}")
    replicate(sandbox, name)
    grow(sandbox, name, tmp_path, 3)
    return name


def grow(sandbox: LakeSandbox, name: TopicName, home: Path, segments: int) -> None:
    messages = [[Message("a", "1"), Message("b", "1")]] * segments
    for partition in range(2):
        write_log(home / str(segments), "t", messages, DELETE, partition=partition)
    ingest(sandbox.session, str(name), home / str(segments), FIRST_MS)


def delete(
    sandbox: LakeSandbox, name: TopicName, requested: dict[int, int], timeout_ms: int = SHORT_MS
) -> JobOutcome:
    return execute_delete(plan_delete(load(sandbox.session, name), requested, FIRST_MS, timeout_ms))


def replies(outcome: JobOutcome) -> dict[int, tuple[int, str]]:
    """Low watermark and error by partition."""
    return {p: (n["low_watermark"], n["error_name"]) for p, n in outcome.partitions.items()}


def left(sandbox: LakeSandbox, name: TopicName, partition: int = 0) -> list[int]:
    return offsets(view_of_table(sandbox.session, name, partition))


def test_the_low_watermark_is_given_when_every_replica_starts_there(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    outcome = delete(sandbox, name, {0: 3})
    assert outcome.error is None
    assert replies(outcome) == {0: (3, "NONE")}
    assert left(sandbox, name) == [3, 4, 5]
    assert left(sandbox, replica_of(name)) == [3]
    assert outcome.rows_removed == 3
    assert outcome.topic["replicas"] == {str(replica_of(name)): {"records_removed": 3}}


def test_a_replica_that_is_behind_times_out_and_a_retry_finishes_it(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    outcome = delete(sandbox, name, {0: 5, 1: 2})
    assert replies(outcome) == {0: (-1, "REQUEST_TIMED_OUT"), 1: (2, "NONE")}
    assert isinstance(outcome.error, UnavailableError)
    assert f"({replica_of(name)} ends at offset 4, below 5)" in str(outcome.error)
    # As on Kafka's leader, what was asked is out of the primary although time ran out.
    assert left(sandbox, name) == [5]
    assert left(sandbox, replica_of(name)) == [0, 1, 2, 3]
    assert left(sandbox, replica_of(name), 1) == [2, 3]
    replicate(sandbox, name)
    outcome = delete(sandbox, name, {0: 5})
    assert (replies(outcome), outcome.error) == ({0: (5, "NONE")}, None)
    assert left(sandbox, replica_of(name)) == [5]


def test_a_replica_that_catches_up_in_time_is_waited_for(
    sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Replicas._wait

    def catch_up(waiting: Replicas) -> bool:
        monkeypatch.setattr(Replicas, "_wait", wait)
        replicate(sandbox, name)
        return wait(waiting)

    monkeypatch.setattr(Replicas, "_wait", catch_up)
    outcome = delete(sandbox, name, {0: -1}, timeout_ms=3_600_000)
    assert replies(outcome) == {0: (6, "NONE")}
    assert left(sandbox, replica_of(name)) == []


def test_a_replica_out_of_reach_times_out(sandbox: LakeSandbox, name: TopicName) -> None:
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "jdbc"}.items():
        sandbox.session.conf.set(f"spark.sql.catalog.gone{key}", value)
    sandbox.session.conf.set("spark.sql.catalog.gone.uri", "jdbc:sqlite:/nowhere/catalog.db")
    sandbox.session.conf.set("spark.sql.catalog.gone.warehouse", "/nowhere")
    set_replicas(sandbox, name, f"gone.log,other.{name.cluster}")
    outcome = delete(sandbox, name, {0: 3})
    assert replies(outcome) == {0: (-1, "REQUEST_TIMED_OUT")}
    assert "expected the catalog of replica gone:log.t to answer" in str(outcome.error)
    assert left(sandbox, replica_of(name)) == [3]


def test_what_no_retry_can_help_is_no_timeout(sandbox: LakeSandbox, name: TopicName) -> None:
    outcome = delete(sandbox, name, {0: 2, 1: 99})
    assert replies(outcome) == {0: (2, "NONE"), 1: (-1, "OFFSET_OUT_OF_RANGE")}
    assert isinstance(outcome.error, RequestError)


def test_an_unknown_catalog_is_refused_before_anything_moves(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    set_replicas(sandbox, name, "elsewhere.log")
    with pytest.raises(ConfigurationError, match=r"spark.sql.catalog.elsewhere"):
        delete(sandbox, name, {0: 3})
    assert left(sandbox, name) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", [Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS])
def test_a_request_killed_at_a_replica_is_finished_when_it_is_asked_again(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step], step: Step
) -> None:
    set_replicas(sandbox, name, None)
    delete(sandbox, name, {0: 3})
    set_replicas(sandbox, name, f"other.{name.cluster}")
    kill_at.append(step)
    with pytest.raises(KilledError):
        delete(sandbox, name, {0: 3})
    assert replies(delete(sandbox, name, {0: 3})) == {0: (3, "NONE")}
    assert left(sandbox, replica_of(name)) == [3]


def test_a_request_that_read_the_states_too_early_moves_no_start_back(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile
) -> None:
    early = plan_delete(load(sandbox.session, name), {0: 2}, FIRST_MS, SHORT_MS)
    meanwhile(Step.LOG_START_OFFSET, lambda: delete(sandbox, name, {0: 4}))
    execute_delete(early)
    for topic in (name, replica_of(name)):
        assert load(sandbox.session, topic).partitions[0].log_start_offset == 4


class Live:
    """Stands for a live topic of 100 records in which nobody may delete from partition 1."""

    asked: list[dict[int, int]]

    def __init__(self, refusal: Callable[[], None] = lambda: None) -> None:
        self.asked = []
        self._refusal = refusal

    def connect(self, connection: str, topic: str, answer_ms: int) -> Live:
        assert (connection, topic) == ("main", "t")
        self._refusal()
        return self

    def delete_records(
        self, offsets: Mapping[int, int], timeout_ms: int
    ) -> dict[int, PartitionAnswer]:
        self.asked.append(dict(offsets))
        denied = refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return {p: denied if p == 1 else PartitionAnswer(o, o) for p, o in offsets.items()}


@pytest.fixture
def live(sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch) -> Live:
    live = Live()
    monkeypatch.setattr(replicas, "LiveTopic", live)
    set_replicas(sandbox, name, f"other.{name.cluster},kafka:main")
    return live


def test_a_live_topic_is_last_and_its_own_refusal_is_passed_on(
    sandbox: LakeSandbox, name: TopicName, live: Live
) -> None:
    outcome = delete(sandbox, name, {0: 2, 1: 3})
    assert live.asked == [{0: 2, 1: 3}]
    assert replies(outcome) == {0: (2, "NONE"), 1: (-1, "TOPIC_AUTHORIZATION_FAILED")}
    assert isinstance(outcome.error, RequestError)


def test_a_live_topic_is_never_truncated_past_what_every_table_holds(
    sandbox: LakeSandbox, name: TopicName, live: Live
) -> None:
    outcome = delete(sandbox, name, {0: 6})
    assert live.asked == [{0: 4}]
    assert replies(outcome) == {0: (-1, "REQUEST_TIMED_OUT")}
    short = "kafka:main starts at offset 4, below 6, since a table replica lacks records"
    assert short in str(outcome.error)


def test_a_live_topic_out_of_reach_times_out_once_the_tables_are_done(
    sandbox: LakeSandbox, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnavailableError("no broker")

    monkeypatch.setattr(replicas, "LiveTopic", Live(refuse))
    set_replicas(sandbox, name, f"other.{name.cluster},kafka:main")
    outcome = delete(sandbox, name, {0: 2})
    assert replies(outcome) == {0: (-1, "REQUEST_TIMED_OUT")}
    assert "kafka:main cannot be reached" in str(outcome.error)
    assert left(sandbox, replica_of(name)) == [2, 3]
