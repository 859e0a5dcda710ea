"""A real broker as the cases of delete_cases.py want it, and what it answers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import KafkaAdminClient
from kafka.errors import BrokerResponseError
from kafka.structs import TopicPartition as RawPartition

from ebbtide.kafka.low_watermarks import ErrorCode
from ebbtide.settings.config import DAY_MS
from tests.kafka.broker import KafkaBroker
from tests.kafka.consume import QUIET
from tests.kafka.delete_cases import (
    ACLS,
    CASES,
    COMMITTED,
    DELETED,
    FIRST_MS,
    INTERNAL,
    LIVE_CASES,
    MISSED,
    NOWHERE,
    ROLLED,
    ROLLED_SECONDS,
    SECONDS,
    TOPICS,
    UNKNOWN_PARTITION,
)
from tests.waiting import PATIENCE_S, wait_until

TIMEOUT_MS = 20_000
SETTINGS = QUIET | {
    # What the tables are made from is on disk at once.
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    # A frozen follower stays in the ISR, alive as far as the controller knows.
    "replica.lag.time.max.ms": "600000",
    "broker.session.timeout.ms": "600000",
}


class Answered(NamedTuple):
    error: ErrorCode
    low_watermark: int


class Place(NamedTuple):
    """A case's partition for the broker and the tables, and its like for the live replica."""

    topic: str
    partition: int
    live_partition: int


def fill(broker: KafkaBroker) -> None:
    """Topics, their records, log start offsets, what groups have committed, and ACLs."""
    partitions = {topic: range(partition_count(topic)) for topic in TOPICS}
    create(
        broker,
        [
            *(
                NewTopic(topic, len(partitions[topic]), 1, config={"cleanup.policy": policy})
                for topic, policy in TOPICS.items()
            ),
            NewTopic(ROLLED, 1, 1, config={"segment.ms": "1000"}),
        ],
    )
    produce(broker, ROLLED, [0], seconds=ROLLED_SECONDS)
    ask_broker(broker, ROLLED, 0, MISSED.start)
    in_transaction = {
        partition
        for name, place in PLACES.items()
        for partition in (place.partition, place.live_partition)
        if CASES[name].is_transactional
    }
    for topic in TOPICS:
        produce(broker, topic, [p for p in partitions[topic] if p not in in_transaction])
    produce(broker, DELETED, in_transaction, transactional_id="t")
    for name, place in PLACES.items():
        if CASES[name].start:
            for partition in (place.partition, place.live_partition):
                ask_broker(broker, place.topic, partition, CASES[name].start)
    admin = AdminClient(broker.client())
    for group, offset in COMMITTED.items():
        commit(admin, group, [TopicPartition(DELETED, p, offset) for p in partitions[DELETED]])
    acls = [acl(user, ResourceType.TOPIC, DELETED, what) for user, what in ACLS.items()]
    acls.append(acl("stranger", ResourceType.GROUP, "slow", "DESCRIBE"))
    for allowed in admin.create_acls(acls).values():
        allowed.result()


def create(broker: KafkaBroker, topics: Sequence[NewTopic]) -> None:
    admin = AdminClient(broker.client())
    for created in admin.create_topics(list(topics)).values():
        created.result(timeout=PATIENCE_S)


def commit(admin: AdminClient, group: str, offsets: list[TopicPartition]) -> None:
    """Commit what a group has read, once its coordinator is there."""

    def is_done() -> bool:
        held = ConsumerGroupTopicPartitions(group, offsets)
        done = admin.alter_consumer_group_offsets([held])[group].result().topic_partitions
        return not any(partition.error for partition in done)

    wait_until(is_done, f"the coordinator of {group} to take its offsets")


def acl(user: str, kind: ResourceType, name: str, operation: str) -> AclBinding:
    return AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def produce(
    broker: KafkaBroker,
    topic: str,
    partitions: Iterable[int],
    *,
    seconds: Sequence[int] = SECONDS,
    transactional_id: str | None = None,
) -> None:
    of_transaction = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({**broker.client(), **of_transaction})
    if transactional_id:
        producer.init_transactions()
        producer.begin_transaction()
    for partition in partitions:
        for i, after_first in enumerate(seconds):
            timestamp = FIRST_MS + after_first * 1000
            producer.produce(topic, b"v", str(i), partition=partition, timestamp=timestamp)
            if topic == ROLLED:
                producer.flush(PATIENCE_S)  # a batch each
    if transactional_id:
        producer.commit_transaction()
    assert producer.flush(PATIENCE_S) == 0


def wait_for_checkpoints(broker: KafkaBroker) -> None:
    """Until the directory says what the broker knows of its offsets."""
    started = {
        f"{place.topic} {place.partition} {CASES[name].start}"
        for name, place in PLACES.items()
        if CASES[name].start
    }
    started.add(f"{ROLLED} 0 {MISSED.start}")
    ended = {f"{ROLLED} 0 {len(ROLLED_SECONDS)}"} | {
        f"{topic} {partition} {10 + any(p.partition == partition for p in MARKED[topic])}"
        for topic in TOPICS
        for partition in range(0, partition_count(topic), 2)
    }
    ends, starts = (
        broker.log_dir / f"{name}-offset-checkpoint" for name in ("replication", "log-start")
    )
    wait_until(
        lambda: ended <= lines_of(ends) and started <= lines_of(starts),
        "the broker's checkpoints to have all offsets",
    )


def lines_of(checkpoint: Path) -> set[str]:
    return set(checkpoint.read_text().splitlines()) if checkpoint.exists() else set()


def ask_broker(
    broker: KafkaBroker,
    topic: str,
    partition: int,
    offset: int,
    *,
    user: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> Answered:
    """What the leader answers, by a client that sends any request as it is."""
    login = broker.client(user)
    admin = KafkaAdminClient(
        bootstrap_servers=login["bootstrap.servers"],
        security_protocol=login["security.protocol"],
        sasl_mechanism=login["sasl.mechanism"],
        sasl_plain_username=login["sasl.username"],
        sasl_plain_password=login["sasl.password"],
    )
    at = RawPartition(topic, partition)
    try:
        answers = admin.delete_records({at: offset}, timeout_ms, partition_leader_id=broker.node_id)
    except BrokerResponseError as error:
        return Answered(ErrorCode(error.errno), -1)
    finally:
        admin.close()
    return Answered(ErrorCode(answers[at]["error_code"]), answers[at]["low_watermark"])


def offset_of(broker: KafkaBroker, place: Place, entry: Mapping[str, Any], now_ms: int) -> int:
    """The offset that a user of Kafka's own tools would ask for."""
    if "offset" in entry:
        return int(entry["offset"])
    if "groups" in entry:
        return min(COMMITTED[group] for group in entry["groups"])
    timestamp_ms = entry["timestamp"] if "timestamp" in entry else now_ms - 7 * DAY_MS
    asked = {TopicPartition(place.topic, place.partition): OffsetSpec.for_timestamp(timestamp_ms)}
    admin = AdminClient(broker.client())
    (answer,) = admin.list_offsets(asked).values()
    return int(answer.result().offset)  # -1 where there is none: the high watermark then


def live_partitions(name: str) -> tuple[int, int]:
    """Partitions of DELETED behind those of CASES."""
    first = partition_count(DELETED) - 2 * (LIVE_NAMES.index(name) + 1)
    return first, first + 1


def places() -> dict[str, Place]:
    """Two partitions a case; a case that is refused needs none of its own, but may have them."""
    by_name: dict[str, Place] = {}
    counts = dict.fromkeys([*TOPICS, NOWHERE], 0)
    for name, case in CASES.items():
        if case.topic == INTERNAL:
            by_name[name] = Place(INTERNAL, 0, 0)
        elif not case.is_known:
            by_name[name] = Place(case.topic, UNKNOWN_PARTITION, UNKNOWN_PARTITION)
        else:
            first = counts[case.topic]
            counts[case.topic] += 2
            by_name[name] = Place(case.topic, first, first + 1)
    return by_name


def partition_count(topic: str) -> int:
    used = 2 * sum(place.topic == topic for place in PLACES.values())
    return used + (2 * len(LIVE_NAMES) if topic == DELETED else 0)


PLACES = places()
LIVE_NAMES = [*LIVE_CASES, "one of several"]


MARKED = {
    topic: [p for n, p in PLACES.items() if p.topic == topic and CASES[n].is_transactional]
    for topic in TOPICS
}
