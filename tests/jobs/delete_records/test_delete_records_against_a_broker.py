"""The same DeleteRecords requests to a real broker, to the tables and to a live replica."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import ConfigurationError, ExitCode, UnavailableError
from ebbtide.iceberg.topics import load
from ebbtide.kafka.low_watermarks import ErrorCode, PartitionAnswer
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from ebbtide.settings.upstream import CONNECTIONS, REPLICAS
from ebbtide.specs.delete_request import AtOffset, TopicRequest, parse_request
from jobs import delete_records, undo_run
from tests.jobs.undo_run.twins import of_request
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import (
    PLACES,
    SETTINGS,
    TIMEOUT_MS,
    Answered,
    Place,
    ask_broker,
    commit,
    create,
    fill,
    live_partitions,
    offset_of,
    produce,
    wait_for_checkpoints,
)
from tests.kafka.delete_cases import (
    CASES,
    COMMITTED,
    DELETED,
    FIRST_MS,
    INTERNAL,
    LIVE_CASES,
    MISSED,
    NOWHERE,
    ROLLED,
    SECONDS,
    TOPICS,
    UNKNOWN_PARTITION,
    USERS,
    LiveCase,
)
from tests.lake_sandbox import LakeSandbox
from tests.ports import free_port
from tests.tables.adopted import Record, adopt, append, spark_table
from tests.tables.nights import answer_request, at, ingest
from tests.tables.planned import Jobs

pytestmark = pytest.mark.broker

FOLLOWED = "followed"  # a topic of two replicas
CLUSTER = "live"
SHORT_MS = 1_500


@dataclass
class Asked:
    """What each case was answered, one after another."""

    broker: dict[str, list[Answered]] = field(default_factory=lambda: defaultdict(list))
    tables: dict[str, list[Answered]] = field(default_factory=lambda: defaultdict(list))
    live: dict[str, list[Answered]] = field(default_factory=lambda: defaultdict(list))
    more_numbers: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # the tables' other numbers


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One with topics, records, consumer groups and ACLs as the cases want them."""
    work = tmp_path_factory.mktemp("broker")
    with KafkaBroker(kafka_jars, work, users=USERS, **SETTINGS) as started:
        fill(started)
        yield started


@pytest.fixture(scope="module", autouse=True)
def connections(broker: KafkaBroker) -> Iterator[None]:
    """A connection for each user, the superuser's called by the cluster's name."""
    known = {user: broker.client(user) for user in USERS} | {CLUSTER: broker.client()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONNECTIONS, json.dumps(known))
        yield


@pytest.fixture(scope="module")
def asked(broker: KafkaBroker, connections: None, sandbox: LakeSandbox) -> Asked:
    """All cases, asked of the tables in one request a round, as the job does."""
    now_ms = int(time.time() * 1000)
    take_in(broker, sandbox, now_ms)
    answers = Asked()
    for i in range(max(len(case.asked) for case in CASES.values())):
        todo = {name: case for name, case in CASES.items() if i < len(case.asked)}
        ask_tables(sandbox, {name: case.asked[i] for name, case in todo.items()}, now_ms, answers)
        for name, case in todo.items():
            place = PLACES[name]
            offset = offset_of(broker, place, case.asked[i], now_ms)
            answers.broker[name].append(ask_broker(broker, place.topic, place.partition, offset))
            offsets = {place.live_partition: offset}
            live = LiveTopic.connect(CLUSTER, place.topic).delete_records(offsets, TIMEOUT_MS)
            answers.live[name].append(answered(live[place.live_partition]))
    return answers


@pytest.mark.parametrize("name", CASES)
def test_the_broker_answers_as_the_list_says(asked: Asked, name: str) -> None:
    assert len(asked.broker[name]) == len(CASES[name].asked)
    assert asked.broker[name][-1] == (CASES[name].error, CASES[name].low_watermark)


@pytest.mark.parametrize("name", CASES)
def test_the_tables_answer_as_the_broker(asked: Asked, name: str) -> None:
    assert asked.tables[name] == asked.broker[name]


@pytest.mark.parametrize("name", CASES)
def test_a_live_replica_passes_the_brokers_answer_on(asked: Asked, name: str) -> None:
    assert asked.live[name] == asked.broker[name]


def test_older_records_after_the_first_at_a_time_stay_and_are_counted(asked: Asked) -> None:
    counted = {
        name: numbers["older_kept"]
        for name, numbers in asked.more_numbers.items()
        if "older_kept" in numbers
    }
    with_older = {
        "a time that a record has": 1,
        "a time before an older record that comes later": 1,
        "a time whose first record lies below the log start": 0,
    }
    assert counted == dict.fromkeys(counted, 0) | with_older


@pytest.mark.long
def test_a_table_of_others_means_the_same_by_times_and_groups(
    broker: KafkaBroker, asked: Asked, sandbox: LakeSandbox
) -> None:
    """Each partition of it holds what the broker's does, and is asked in its own way."""
    place = PLACES["0 of a log that starts at 0"]
    first_to_last = range(min(SECONDS) * 1000 - 1, max(SECONDS) * 1000 + 2, 2_500)
    entries: list[dict[str, Any]] = [{"timestamp": FIRST_MS + ms} for ms in first_to_last]
    entries += [{"timestamp": FIRST_MS + second * 1000} for second in (5, 15, 50)]
    entries += [{"groups": [group], "connection": CLUSTER} for group in COMMITTED]
    name = TopicName("others", "t")
    records = [
        Record(i, str(i), "v", p, FIRST_MS + second * 1000)
        for p in range(len(entries))
        for i, second in enumerate(SECONDS)
    ]
    spark_table(sandbox.session, str(name))
    append(sandbox.session, str(name), records, topic=DELETED)
    adopt(sandbox.session, str(name), {"kafka.cleanup.policy": "delete"})
    partitions = [{**entry, "partition": p} for p, entry in enumerate(entries)]
    request = parse_request(
        json.dumps({"topics": [{"topic": str(name), "partitions": partitions}]})
    )
    answers = answer_request(
        sandbox.session, name, request.topics[name], FIRST_MS, plan_only=True
    ).partitions
    by_kafka = {p: offset_of(broker, place, entry, 0) for p, entry in enumerate(entries)}
    assert {p: answer["requested_offset"] for p, answer in answers.items()} == by_kafka
    assert len(set(by_kafka.values())) > 5


def test_a_time_that_kafka_does_not_find_is_found(
    broker: KafkaBroker, asked: Asked, sandbox: LakeSandbox
) -> None:
    (entry,) = MISSED.asked
    assert offset_of(broker, Place(ROLLED, 0, 0), entry, 0) == -1
    numbers = ask(sandbox, ROLLED, {0: entry}).partitions[0]
    assert (numbers["error_name"], numbers["low_watermark"]) == ("NONE", MISSED.low_watermark)


@pytest.mark.parametrize("name", [n for n, c in LIVE_CASES.items() if not c.is_follower_frozen])
def test_a_brokers_refusal_is_passed_on(broker: KafkaBroker, name: str) -> None:
    case = LIVE_CASES[name]
    partitions = live_partitions(name)
    assert ask_broker(broker, DELETED, partitions[0], 1, user=case.user) == expected(case)
    live = LiveTopic.connect(str(case.user), DELETED).delete_records({partitions[1]: 1}, TIMEOUT_MS)
    assert answered(live[partitions[1]]) == expected(case)


def test_one_refused_partition_does_not_stop_the_others(broker: KafkaBroker) -> None:
    first, second = live_partitions("one of several")
    live = LiveTopic.connect(CLUSTER, DELETED)
    answers = live.delete_records({first: 99, second: 2, UNKNOWN_PARTITION: 1}, TIMEOUT_MS)
    assert {p: answered(a) for p, a in answers.items()} == {
        first: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        second: (ErrorCode.NONE, 2),
        UNKNOWN_PARTITION: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }
    assert live.log_start_offsets([first, second]) == {first: 0, second: 2}
    assert live.log_end_offsets([first, second]) == {first: 10, second: 10}


@pytest.fixture
def with_replica(
    sandbox: LakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """Makes the live topic by a connection the table's replica; `nobody` is where no broker is."""
    port = free_port()
    nobody = {"nobody": {"bootstrap.servers": f"127.0.0.1:{port}"}}
    monkeypatch.setenv(CONNECTIONS, json.dumps({**json.loads(os.environ[CONNECTIONS]), **nobody}))
    table = f"ALTER TABLE {TopicName(CLUSTER, DELETED).records_table}"

    def follow(connection: str) -> None:
        replicas = f"'{REPLICAS}' = 'kafka:{connection}'"
        sandbox.session.sql(f"{table} SET TBLPROPERTIES ({replicas})")

    yield follow
    sandbox.session.sql(f"{table} UNSET TBLPROPERTIES ('{REPLICAS}')")


def test_a_table_and_its_live_topic_move_together_once_the_broker_lets_them(
    broker: KafkaBroker, asked: Asked, sandbox: LakeSandbox, with_replica: Callable[[str], None]
) -> None:
    partition, _ = live_partitions("one of several")
    name, live = TopicName(CLUSTER, DELETED), LiveTopic.connect(CLUSTER, DELETED)
    request = TopicRequest({partition: AtOffset(3)})

    def ask_both(connection: str) -> tuple[JobOutcome, tuple[int, int, str]]:
        with_replica(connection)
        outcome = answer_request(sandbox.session, name, request, FIRST_MS, SHORT_MS)
        numbers = outcome.partitions[partition]
        return outcome, (
            numbers["log_start_offset"],
            numbers["low_watermark"],
            numbers["error_name"],
        )

    _, refused = ask_both("describer")
    late, timed_out = ask_both("nobody")
    assert live.log_start_offsets([partition]) == {partition: 0}
    _, done = ask_both(CLUSTER)
    assert (refused, timed_out, done) == (
        (3, -1, "TOPIC_AUTHORIZATION_FAILED"),
        (3, -1, "REQUEST_TIMED_OUT"),
        (3, 3, "NONE"),
    )
    assert isinstance(late.error, UnavailableError)
    assert live.log_start_offsets([partition]) == {partition: 3}


@pytest.mark.long
def test_a_run_that_truncated_the_live_topic_is_not_undone(
    asked: Asked, sandbox: LakeSandbox, jobs: Jobs, with_replica: Callable[[str], None]
) -> None:
    """Though the tables have all that it removed in their snapshots."""
    _, partition = live_partitions("one of several")
    name, live = TopicName(CLUSTER, DELETED), LiveTopic.connect(CLUSTER, DELETED)
    with_replica(CLUSTER)
    request = of_request(name, [{"partition": partition, "offset": 6}])
    now = ("--now", at(int(time.time() * 1000)).isoformat())
    assert jobs.run(delete_records, *request, *now) == ExitCode.DONE
    run_id = jobs.run_id
    assert jobs.run(undo_run, "--topic", str(name), "--run", run_id, *now) == ExitCode.FAILED
    told = f"run {run_id} deleted records of the live topic at kafka:{CLUSTER} below offset 6"
    assert told in jobs.last_run().error
    assert live.log_start_offsets([partition]) == {partition: 6}
    assert load(sandbox.session, name).partitions[partition].log_start_offset == 6


def test_a_partition_without_a_commit_is_left_alone_and_named(
    asked: Asked, sandbox: LakeSandbox
) -> None:
    place = PLACES["0 of a log that starts at 0"]
    entry = {"groups": ["slow", "idle"], "connection": CLUSTER}
    outcome = ask(sandbox, DELETED, {place.partition: entry})
    numbers = outcome.partitions[place.partition]
    assert outcome.error is None
    assert (numbers["error_name"], numbers["low_watermark"], numbers["log_start_offset"]) == (
        "NONE",
        0,
        0,
    )
    assert numbers["note"] == "not changed: no committed offset of idle"
    assert numbers["committed"] == {"slow": 6, "idle": None}


def test_what_is_committed_beyond_the_table_takes_what_the_table_has(
    broker: KafkaBroker, asked: Asked, sandbox: LakeSandbox
) -> None:
    place = PLACES["a time before all records"]
    admin = AdminClient(broker.client())
    commit(admin, "ahead", [TopicPartition(DELETED, place.partition, 99)])
    outcome = ask(sandbox, DELETED, {place.partition: {"groups": ["ahead"]}})
    assert outcome.partitions[place.partition]["low_watermark"] == 10


@pytest.mark.parametrize(
    ("user", "refusal"),
    [("describer", "GROUP_AUTHORIZATION_FAILED"), ("stranger", "TOPIC_AUTHORIZATION_FAILED")],
)
def test_groups_that_a_user_may_not_read_are_refused(
    asked: Asked, sandbox: LakeSandbox, user: str, refusal: str
) -> None:
    entry = {"groups": ["slow"], "connection": user}
    with pytest.raises(
        ConfigurationError, match=f"{user!r} to list the offsets that group 'slow' .*{refusal}"
    ):
        ask(sandbox, DELETED, {0: entry})


@pytest.mark.long
def test_a_frozen_follower_is_waited_for_and_a_retry_finishes_it(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """Last: the follower's start must not move what the other tests look at."""
    name = "two replicas, the follower frozen"
    with KafkaBroker(broker.jars_dir, tmp_path / "follower", joins=broker, **SETTINGS) as follower:
        create(broker, [NewTopic(FOLLOWED, 2, replica_assignment=[[1, 2], [1, 2]])])
        produce(broker, FOLLOWED, [0, 1])
        live = LiveTopic.connect(CLUSTER, FOLLOWED)
        follower.freeze()
        raw = ask_broker(broker, FOLLOWED, 0, 1, timeout_ms=SHORT_MS)
        assert raw == expected(LIVE_CASES[name])
        answers = live.delete_records({1: 1}, SHORT_MS)
        assert answered(answers[1]) == expected(LIVE_CASES[name])
        follower.thaw()
        assert answered(live.delete_records({1: 1}, TIMEOUT_MS)[1]) == (ErrorCode.NONE, 1)


def test_a_broker_that_cannot_be_reached_is_a_transient_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    nobody = {"bootstrap.servers": f"127.0.0.1:{port}", "sasl.password": "hush"}
    monkeypatch.setenv(CONNECTIONS, json.dumps({"nobody": nobody}))
    with pytest.raises(UnavailableError) as error:
        LiveTopic.connect("nobody", DELETED, answer_ms=500)
    assert error.value.transient
    assert "'nobody'" in str(error.value)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, r"expected the Kafka connection 'bad' .* found none. Create an Airflow connection"),
        ({}, r"expected the Kafka connection 'bad' with bootstrap\.servers .* found bad. Create "),
        ({"sasl.mechanism": "hush"}, r"expected valid settings of connection"),
        (
            {"no.such.setting": "hush"},
            r"connection 'bad' for librdkafka, found: .*no\.such\.setting",
        ),
        ({"sasl.password": "hush"}, r"of connection 'bad' to answer, found _AUTHENTICATION: "),
    ],
)
def test_a_connection_that_is_no_use_is_named_without_its_secrets(
    broker: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str] | None,
    message: str,
) -> None:
    known = {"bad": {**broker.client(), **settings} if settings else {}}
    monkeypatch.setenv(CONNECTIONS, json.dumps({} if settings is None else known))
    with pytest.raises(ConfigurationError, match=message) as error:
        LiveTopic.connect("bad", DELETED)
    assert "hush" not in str(error.value)
    assert USERS["admin"] not in str(error.value)


def expected(case: LiveCase) -> Answered:
    return Answered(case.error, case.low_watermark)


def answered(answer: PartitionAnswer) -> Answered:
    return Answered(answer.error, answer.low_watermark)


def take_in(broker: KafkaBroker, sandbox: LakeSandbox, now_ms: int) -> None:
    """Ingest the running broker's directory, with the topics' configuration as it says."""
    wait_for_checkpoints(broker)
    admin = AdminClient(broker.client())
    asked = [
        ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in [*TOPICS, ROLLED, INTERNAL]
    ]
    configs = {
        resource.name: {"cleanup.policy": described.result()["cleanup.policy"].value}
        for resource, described in admin.describe_configs(asked).items()
    }
    manifest = {"files": {}, "topics": {t: {"config": config} for t, config in configs.items()}}
    (broker.log_dir / "ebbtide-manifest.json").write_text(json.dumps(manifest))
    for topic in configs:
        ingest(sandbox.session, f"{CLUSTER}.{topic}", broker.log_dir, now_ms)


def ask_tables(
    sandbox: LakeSandbox,
    entries: Mapping[str, Mapping[str, Any]],
    now_ms: int,
    answers: Asked,
) -> None:
    """Ask each topic once for all its cases."""
    for topic in [*TOPICS, INTERNAL, NOWHERE]:
        names = {PLACES[name].partition: name for name in entries if PLACES[name].topic == topic}
        if not names:
            continue
        outcome = ask(sandbox, topic, {p: entries[name] for p, name in names.items()}, now_ms)
        for partition, name in names.items():
            numbers = outcome.partitions[partition]
            answers.more_numbers[name] = numbers
            answer = Answered(ErrorCode(numbers["error_code"]), numbers["low_watermark"])
            answers.tables[name].append(answer)


def ask(
    sandbox: LakeSandbox,
    topic: str,
    entries: Mapping[int, Mapping[str, Any]],
    now_ms: int = FIRST_MS,
) -> JobOutcome:
    name = TopicName(CLUSTER, topic)
    partitions = [
        {"connection": CLUSTER, **entry, "partition": p}
        if "groups" in entry
        else {**entry, "partition": p}
        for p, entry in entries.items()
    ]
    request = parse_request(
        json.dumps({"topics": [{"topic": str(name), "partitions": partitions}]})
    )
    return answer_request(sandbox.session, name, request.topics[name], now_ms)
