"""Produce tombstones to the live topic behind a table. Nothing else in ebbtide produces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import ConfigurationError, UnavailableError
from ebbtide.moments import machine_clock, to_ms
from ebbtide.specs.erase_request import LoggedTombstone, PartitionKey, TombstoneHeaders

POLL_SECONDS = 0.1
# Settings that a connection may have for consumers, but that would break a producer's own.
_OWN = ("acks", "request.required.acks", "enable.idempotence", "transactional.id")

# Errors that a retry cannot help.
_FINAL = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError._AUTHENTICATION,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
)


def produce_tombstones(
    live: LiveTopic, wanted: Iterable[PartitionKey], headers: TombstoneHeaders, timeout_ms: int
) -> dict[PartitionKey, LoggedTombstone]:
    """Produce one tombstone per key to its partition; return their offsets and timestamps.

    Raise UnavailableError if some were not acknowledged in time. They may be in the topic
    nevertheless; a second tombstone of a key does no harm.
    """
    given = {name: value for name, value in live.settings.items() if name not in _OWN}
    producer = Producer(
        {
            **given,
            "enable.idempotence": "true",
            "acks": "all",
            "message.timeout.ms": str(max(1_000, timeout_ms)),
            "log_level": "2",
        }
    )
    logged: dict[PartitionKey, LoggedTombstone] = {}
    started_ms = to_ms(machine_clock())
    refusals: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refusals.append(error)
        else:
            kind, ms = message.timestamp()  # by the broker's clock if the topic says so
            at_ms = started_ms if kind == TIMESTAMP_NOT_AVAILABLE else ms
            logged[_place(message)] = LoggedTombstone(int(message.offset() or 0), at_ms)

    asked = list(wanted)
    for partition, key in asked:
        produce = partial(
            producer.produce,
            live.topic,
            key=key,
            value=None,
            partition=partition,
            timestamp=started_ms,
            headers=list(headers),
            on_delivery=delivered,
        )
        _queue(producer, produce, delivered)
        if refusals:
            break
    producer.flush(max(1.0, timeout_ms / 1000))
    _check_all(live, refusals, acknowledged=len(logged), asked=len(asked))
    return logged


def _queue(producer: Producer, produce: Callable[[], None], told: Any) -> None:
    """Queue one tombstone; while the queue is full, wait until some are sent."""
    while True:
        try:
            produce()
        except BufferError:
            producer.poll(POLL_SECONDS)
            continue
        except KafkaException as refused:
            told(refused.args[0], None)
        producer.poll(0)
        return


def _place(message: Message) -> PartitionKey:
    key: Any = message.key()
    return int(message.partition() or 0), bytes(key)


def _check_all(
    live: LiveTopic, refusals: list[KafkaError], *, acknowledged: int, asked: int
) -> None:
    """Raise UnavailableError or ConfigurationError unless all are acknowledged; name no key."""
    if acknowledged == asked:
        return
    answers = f"{acknowledged} of them" + "".join(
        f", and {e.name()}: {e.str()}" for e in refusals[:1]
    )
    message = (
        f"expected the brokers of connection {live.connection!r} to acknowledge {asked} "
        f"tombstones for {live.topic}, found {answers}"
    )
    if refusals and refusals[0].code() in _FINAL:
        raise ConfigurationError(f"{message}. Check the topic, and that connection's user")
    raise UnavailableError(f"{message}. Run it again once the brokers can be reached")
