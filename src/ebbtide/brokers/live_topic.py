"""The live topic behind a table: its brokers' answers, as the driver gets them."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from ebbtide.errors import ConfigurationError, EbbtideError, UnavailableError
from ebbtide.kafka.live_offsets import BrokerOffsets, Isolation
from ebbtide.kafka.low_watermarks import HIGH_WATERMARK, ErrorCode, PartitionAnswer, refused
from ebbtide.settings.names import INTERNAL_TOPICS
from ebbtide.settings.upstream import CONNECTIONS, parse_connection

# Convert a connection's librdkafka settings for the Java client in Spark's Kafka source.
#
# Secrets and file contents are passed as options, in memory, so executors need no file.


PREFIX = "kafka."
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SAME = ("bootstrap.servers", "client.id", "client.rack", "client.dns.lookup")
# Prefixes of security settings: one that cannot be converted is refused.
_MATTERS = ("sasl.", "ssl.", "security.", "https.", "enable.ssl.", "enable.sasl.")
_LOGIN = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password")
_PEM = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_options(connection: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as options of Spark's Kafka source.

    Settings that only tune librdkafka are left out. Raise ConfigurationError for a security setting
    that the Java client does not have; the error never shows its value.
    """
    client = _Client(connection, {name: text for name, text in settings.items() if text != ""})
    for name in _SAME:
        client.take(name, name)
    client.take("security.protocol", "security.protocol", str.upper)
    client.login()
    client.trust()
    client.identify()
    client.check_rest()
    return {PREFIX + name: text for name, text in client.options.items()}


class _Client:
    """Converts settings one by one; `left` has those that are not converted yet."""

    def __init__(self, connection: str, settings: dict[str, str]) -> None:
        self.connection = connection
        self.left = settings
        self.options: dict[str, str] = {}

    def take(self, name: str, option: str, change: Callable[[str], str] = str) -> None:
        """Convert one setting, if it is set."""
        if name in self.left:
            self.options[option] = change(self.left.pop(name))

    def login(self) -> None:
        """Set user and password in the one line that Java's login modules read."""
        credentials = {name: self.left.pop(name) for name in _LOGIN if name in self.left}
        if not self.options.get("security.protocol", "").startswith("SASL_"):
            return
        mechanism = (
            credentials.get("sasl.mechanism") or credentials.get("sasl.mechanisms") or "GSSAPI"
        )
        if mechanism not in _MODULES:
            raise self.refused("sasl.mechanism", f"one of {', '.join(_MODULES)}")
        for name in ("sasl.username", "sasl.password"):
            if name not in credentials:
                raise self.refused(name, f"a value (needed by {mechanism})")
        user, password = (quoted(credentials[name]) for name in ("sasl.username", "sasl.password"))
        module = _MODULES[mechanism]
        self.options["sasl.mechanism"] = mechanism
        self.options["sasl.jaas.config"] = f"{module} required username={user} password={password};"

    def trust(self) -> None:
        """Trust the authorities that sign the brokers' certificates; default: Java's own."""
        authorities = self.pem("ssl.ca")
        if authorities is not None:
            self.options["ssl.truststore.type"] = "PEM"
            self.options["ssl.truststore.certificates"] = authorities
        self.take(
            "ssl.endpoint.identification.algorithm",
            "ssl.endpoint.identification.algorithm",
            lambda algorithm: "" if algorithm == "none" else algorithm,
        )
        if self.left.pop("enable.ssl.certificate.verification", "true") != "true":
            raise self.refused("enable.ssl.certificate.verification", "true")

    def identify(self) -> None:
        """Set the client's own certificate and key."""
        chain, key = self.pem("ssl.certificate"), self.pem("ssl.key")
        if chain is not None and key is not None:
            if not any(begin in key for begin in _PEM):
                raise self.refused("ssl.key", "a key in PKCS#8 (openssl pkcs8 -topk8 makes one)")
            self.options["ssl.keystore.type"] = "PEM"
            self.options["ssl.keystore.certificate.chain"] = chain
            self.options["ssl.keystore.key"] = key
            self.take("ssl.key.password", "ssl.key.password")
        elif chain is not None or key is not None:
            missing = "ssl.key" if key is None else "ssl.certificate"
            raise self.refused(missing, "a value (ssl.certificate and ssl.key need each other)")

    def pem(self, name: str) -> str | None:
        """Return the text of setting NAME.pem, or of the file in setting NAME.location."""
        text, path = self.left.pop(f"{name}.pem", None), self.left.pop(f"{name}.location", None)
        if text is not None or path is None:
            return text
        try:
            return Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            problem = (
                str(error.strerror) if isinstance(error, OSError) else "bytes that are not text"
            )
            raise self.refused(f"{name}.location", "a readable PEM file", problem) from None

    def check_rest(self) -> None:
        """Raise ConfigurationError for a remaining security setting: Java's client lacks it."""
        for name in sorted(self.left):
            if name.startswith(_MATTERS):
                raise self.refused(name, "no value (Java's client has no such setting)")

    def refused(self, name: str, expected: str, found: str = "") -> ConfigurationError:
        """Return the error that names a setting. Its value can be a secret, so it is not shown."""
        problem = f", found: {found}" if found else ""
        return ConfigurationError(
            f"expected {expected} for {name} of connection {self.connection!r}, so that Spark's "
            f"Kafka source can use the connection{problem}. Change that setting of the connection"
        )


def quoted(text: str) -> str:
    """Quote a value of a login configuration, which is read with C's escapes."""
    for character, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, escape)
    return f'"{text}"'


T = TypeVar("T")

ANSWER_MS = 10_000  # time limit for requests that a broker answers immediately
POLL_SECONDS = 0.05
_REFUSED_LOGIN = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_NO_ANSWER = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
)
# Errors of a single broker, which librdkafka reports with the address and the cause.
_OF_A_BROKER = (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL)


class Described(NamedTuple):
    """A topic's id and partitions, from its brokers."""

    topic_id: str
    partitions: list[int]


class LiveTopic:
    """One topic of a running cluster."""

    def __init__(
        self,
        admin: AdminClient,
        connection: str,
        topic: str,
        answer_ms: int,
        settings: Mapping[str, str],
        errors: Sequence[KafkaError] = (),
    ) -> None:
        self.connection = connection
        self._errors = errors  # librdkafka's errors about the connection, oldest first
        self.settings = settings  # librdkafka's
        self.topic = topic
        self._admin = admin
        self._answer_s = answer_ms / 1000

    @classmethod
    def connect(cls, connection: str, topic: str, answer_ms: int = ANSWER_MS) -> Self:
        """Connect to the topic by a connection of EBBTIDE_KAFKA_CONNECTIONS; a broker must answer.

        Raise UnavailableError if none does within `answer_ms`. Raise ConfigurationError if the
        connection is missing, has settings that librdkafka refuses, or may not log in.
        """
        settings = parse_connection(connection, os.environ.get(CONNECTIONS))
        errors: list[KafkaError] = []
        try:
            # Errors are raised; librdkafka would also log them at every attempt to connect.
            quiet = {"log_level": "2", **settings}
            admin = AdminClient({**quiet, "error_cb": errors.append})  # type: ignore[dict-item]
        except KafkaException as error:
            raise ConfigurationError(
                f"expected valid settings of connection {connection!r} for librdkafka, found: "
                f"{_without_values(error.args[0].str(), settings)}"
            ) from None
        live = cls(admin, connection, topic, answer_ms, settings, errors)
        described = admin.describe_cluster(request_timeout=live._answer_s)
        while not (described.done() or _refused_login(errors)):
            admin.poll(POLL_SECONDS)
        if refusal := _refused_login(errors):
            # The request's own error would only be that it got no answer.
            raise live._failed("to answer", KafkaException(refusal))
        live._result("to answer", described)
        return live

    def topics(self) -> list[str]:
        """Return all topics that the connection's user may see, except Kafka's internal ones."""
        with self._asking("to list their topics"):
            topics = self._admin.list_topics(timeout=self._answer_s).topics
        return sorted(set(topics) - INTERNAL_TOPICS)

    def partitions(self) -> list[int]:
        """Return the topic's partitions."""
        with self._asking(f"to describe {self.topic}"):
            return self._partitions()

    @cached_property
    def description(self) -> Described:
        """The topic's id, as in partition.metadata files, and its partitions; requested once."""
        with self._asking(f"to describe {self.topic}"):
            description = self._described()
        uuid = description.topic_id
        halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
        bits = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
        topic_id = urlsafe_b64encode(bits).decode().rstrip("=")
        return Described(topic_id, sorted(partition.id for partition in description.partitions))

    @cached_property
    def configs(self) -> dict[str, str]:
        """The topic's effective configuration, by Kafka's names; requested once."""
        asked = ConfigResource(ResourceType.TOPIC, self.topic)
        futures = self._admin.describe_configs([asked], request_timeout=self._answer_s)
        entries = self._result(f"to describe the configuration of {self.topic}", futures[asked])
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def offsets(self, partitions: Sequence[int], isolation: Isolation) -> dict[int, BrokerOffsets]:
        """Return each partition's offsets, with the end for a consumer of this isolation level."""
        starts, ends = self.log_start_offsets(partitions), self.log_end_offsets(partitions)
        stable = ends
        if isolation is Isolation.READ_COMMITTED:
            stable = self._offsets(partitions, _latest(), IsolationLevel.READ_COMMITTED)
        # The requests follow each other, so if the log grows, the last answer has the largest end.
        return {p: BrokerOffsets(starts[p], max(ends[p], stable[p]), stable[p]) for p in partitions}

    def log_start_offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return each partition's log start offset, as its leader has it."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def log_end_offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return each partition's high watermark, up to which consumers can read."""
        return self._offsets(partitions, _latest())

    def delete_records(
        self, offsets: Mapping[int, int], timeout_ms: int
    ) -> dict[int, PartitionAnswer]:
        """Send DeleteRecords up to these offsets, -1 for the high watermark; return the answers.

        A partition without an answer in time gets REQUEST_TIMED_OUT, as in KIP-107's admin client.
        """
        try:
            known = self._partitions()
        except KafkaException as error:
            return dict.fromkeys(offsets, _refusal(error))
        # The client would wait for a partition that does not exist, and refuses offsets below -1.
        answers = {
            p: refused(ErrorCode.OFFSET_OUT_OF_RANGE)
            for p, o in offsets.items()
            if o < HIGH_WATERMARK
        } | {p: refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for p in offsets if p not in known}
        left = [TopicPartition(self.topic, p, o) for p, o in offsets.items() if p not in answers]
        if left:
            seconds = timeout_ms / 1000
            futures = self._admin.delete_records(
                left, operation_timeout=seconds, request_timeout=seconds + self._answer_s
            )
            answers |= {asked.partition: _answer(future) for asked, future in futures.items()}
        return answers

    def committed(
        self, groups: Sequence[str], partitions: Iterable[int]
    ) -> dict[int, dict[str, int | None]]:
        """Return {partition: {group: committed offset}}, with None if the group committed none."""
        committed: dict[int, dict[str, int | None]] = {partition: {} for partition in partitions}
        for group in groups:
            what = f"to list the offsets that group {group!r} has committed of {self.topic}"
            asked = [TopicPartition(self.topic, partition) for partition in committed]
            futures = self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, asked)], request_timeout=self._answer_s
            )
            for held in self._result(what, futures[group]).topic_partitions:
                if held.error is not None:
                    raise self._failed(what, KafkaException(held.error))
                committed[held.partition][group] = held.offset if held.offset >= 0 else None
        return committed

    def _partitions(self) -> list[int]:
        return [partition.id for partition in self._described().partitions]

    def _described(self) -> Any:
        """Describe the topic. Unlike a listing, this does not create a missing topic."""
        described = self._admin.describe_topics(
            TopicCollection([self.topic]), request_timeout=self._answer_s
        )
        return described[self.topic].result()

    def _offsets(
        self,
        partitions: Iterable[int],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[int, int]:
        wanted = {TopicPartition(self.topic, partition): spec for partition in partitions}
        if not wanted:
            return {}
        futures = self._admin.list_offsets(
            wanted, isolation_level=isolation, request_timeout=self._answer_s
        )
        what = f"to list the offsets of {self.topic}"
        return {
            asked.partition: self._result(what, future).offset for asked, future in futures.items()
        }

    def _result(self, what: str, future: Future[T]) -> T:
        with self._asking(what):
            return future.result()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Convert the brokers' errors to ebbtide's errors."""
        try:
            yield
        except KafkaException as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: KafkaException) -> EbbtideError:
        kafka_error: KafkaError = error.args[0]
        asked = f"expected the brokers of connection {self.connection!r}"
        found = f"{what}, found {kafka_error.name()}: {kafka_error.str()}"
        if kafka_error.code() in _NO_ANSWER:
            address = self.settings.get("bootstrap.servers", "no address")
            return UnavailableError(
                f"{asked} at {address} {found}{self._why_unreachable()}. Run it again once the "
                "brokers can be reached"
            )
        return ConfigurationError(f"{asked} {found}. Check the topic, and that connection's user")

    def _why_unreachable(self) -> str:
        """Return the newest error of a single broker, such as a refused connection."""
        self._admin.poll(0)  # adds librdkafka's latest errors to `_errors`
        told = [error for error in self._errors if error.code() in _OF_A_BROKER]
        return f": {told[-1].str()}" if told else ""


def list_topics(connection: str) -> list[str]:
    """Return the topics that the connection's user may see, except Kafka's internal ones."""
    return LiveTopic.connect(connection, "").topics()


def _latest() -> OffsetSpec:
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return latest


def _refused_login(errors: Iterable[KafkaError]) -> KafkaError | None:
    return next((error for error in errors if error.code() in _REFUSED_LOGIN), None)


def _answer(future: Future[Any]) -> PartitionAnswer:
    try:
        low_watermark = future.result().low_watermark
    except KafkaException as error:
        return _refusal(error)
    return PartitionAnswer(low_watermark, low_watermark)


def _refusal(error: KafkaException) -> PartitionAnswer:
    """Return Kafka's error code as an answer; REQUEST_TIMED_OUT if the broker sent none."""
    kafka_error: KafkaError = error.args[0]
    code = kafka_error.code()
    if code in _NO_ANSWER:
        return refused(ErrorCode.REQUEST_TIMED_OUT)
    if code in ErrorCode._value2member_map_:
        return refused(ErrorCode(code))
    return refused(
        ErrorCode.UNKNOWN_SERVER_ERROR, note=f"{kafka_error.name()}: {kafka_error.str()}"
    )


def _without_values(text: str, settings: Mapping[str, str]) -> str:
    """Hide settings' values in a message: librdkafka quotes refused ones, maybe a secret."""
    for value in settings.values():
        text = text.replace(value, "***") if value else text
    return text
