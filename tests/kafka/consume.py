"""What Kafka's own consumer reads from a copied log directory, served again by a real broker."""

import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kafka.broker import KafkaBroker
from tests.waiting import PATIENCE_S

Isolation = Literal["read_committed", "read_uncommitted"]

PATIENCE_SECONDS = PATIENCE_S
# Serving must not change the log: no cleaning, and no retention whatever the records' age.
QUIET = {
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": str(2**62),
    "log.retention.ms": "-1",
}


class ConsumedRecord(NamedTuple):
    """One record as the consumer hands it over."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Consumed = dict[tuple[str, int], list[ConsumedRecord]]


@contextmanager
def serve_log(log_directory: Path, jars_dir: Path, work_dir: Path) -> Iterator[KafkaBroker]:
    """A broker whose partitions hold the segment files of `log_directory`, unchanged.

    The topics are created empty first, since a broker serves only what its metadata knows; then
    their files are exchanged while it is down, and it recovers everything else from them.
    """
    broker = KafkaBroker(jars_dir, work_dir, **QUIET)
    with broker:
        create_topics(broker.bootstrap_servers, partition_counts(log_directory))
    for partition in partition_directories(log_directory):
        exchange_segments(partition, broker.log_dir / partition.name)
    adopt_log_start_offsets(log_directory, broker.log_dir)
    (broker.log_dir / "replication-offset-checkpoint").unlink(missing_ok=True)
    (broker.log_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    # Without it the broker takes the log for one that crashed, and rebuilds indexes,
    # producer state and the transaction index.
    (broker.log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    with broker:
        yield broker


def consume_log(log_directory: Path, jars_dir: Path, work_dir: Path) -> dict[Isolation, Consumed]:
    """All records of all partitions of `log_directory`, at both isolation levels."""
    partitions = [topic_partition(path) for path in partition_directories(log_directory)]
    with serve_log(log_directory, jars_dir, work_dir) as broker:
        return {
            isolation: consume(broker.client(), partitions, isolation)
            for isolation in ("read_committed", "read_uncommitted")
        }


def consume(
    client: Mapping[str, str],
    partitions: Sequence[tuple[str, int]],
    isolation: Isolation,
    first_offset: int = OFFSET_BEGINNING,
) -> Consumed:
    """The records of each partition from its beginning, or an offset, to its end."""
    consumer = quiet_consumer(client, isolation)
    consumer.assign([TopicPartition(*partition, first_offset) for partition in partitions])
    consumed: Consumed = {partition: [] for partition in partitions}
    open_partitions = set(consumed)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while open_partitions:
            messages = consumer.consume(1_000, timeout=0.1)
            if messages:
                deadline = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > deadline:
                raise TimeoutError(f"nothing more of {sorted(open_partitions)}, nor their end")
            for message in messages:
                partition = (message.topic() or "", message.partition() or 0)
                if has_reached_end(message):
                    open_partitions.discard(partition)
                else:
                    consumed[partition].append(consumed_record(message))
    finally:
        consumer.close()
    return consumed


def quiet_consumer(client: Mapping[str, str], isolation: Isolation) -> Consumer:
    """A consumer that commits nothing and tells when a partition ends."""
    return Consumer(
        {
            **client,
            "group.id": "reads-without-committing",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )


def has_reached_end(message: Message) -> bool:
    """Whether the message is the sign for a partition's end and no record."""
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise KafkaException(error)


def consumed_record(message: Message) -> ConsumedRecord:
    """The parts of a message that a log keeps."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return ConsumedRecord(
        offset=cast(int, message.offset()),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(headers),
    )


def partition_directories(log_directory: Path) -> list[Path]:
    """The directories `<topic>-<partition>` that hold segment files."""
    return sorted({path.parent for path in log_directory.glob("*-*/*.log")})


def topic_partition(directory: Path) -> tuple[str, int]:
    """Topic and partition from a directory's name."""
    topic, _, partition = directory.name.rpartition("-")
    return topic, int(partition)


def partition_counts(log_directory: Path) -> dict[str, int]:
    """How many partitions each topic has, at least."""
    counts: dict[str, int] = {}
    for topic, partition in map(topic_partition, partition_directories(log_directory)):
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    return counts


def create_topics(bootstrap_servers: str, counts: dict[str, int]) -> None:
    """Create the topics; their log is neither cleaned nor expired."""
    config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = [NewTopic(name, count, 1, config=config) for name, count in counts.items()]
    for created in admin.create_topics(topics).values():
        created.result(timeout=PATIENCE_S)


def exchange_segments(source: Path, target: Path) -> None:
    """Put all that `source` has in place of all but the topic id of `target`."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.is_symlink():
            (target / path.name).symlink_to(path.readlink())
        elif path.is_file() and path.name != "partition.metadata":
            shutil.copyfile(path, target / path.name)
        elif path.is_dir():
            (target / path.name).mkdir()
        elif path.is_fifo():
            os.mkfifo(target / path.name)
        elif path.is_socket():
            os.mknod(target / path.name, stat.S_IFSOCK)


def adopt_log_start_offsets(source: Path, target: Path) -> None:
    """Take over the log start offsets that the source's checkpoint names."""
    checkpoint = source / "log-start-offset-checkpoint"
    if checkpoint.exists():
        shutil.copyfile(checkpoint, target / checkpoint.name)
