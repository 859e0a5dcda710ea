"""The replicas of a topic that are tables: their names, and finding them."""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import ConfigurationError, EbbtideError, RequestError, UnavailableError
from ebbtide.iceberg.topics import Topic, find
from ebbtide.log.settings.names import TopicName
from ebbtide.log.state.topic_state import REPLICA_OF, PartitionState


def replica_names(topic: Topic) -> list[TopicName]:
    """Return the names of the replicas; ConfigurationError for one that Spark cannot know."""
    names = [replica.of(topic.name) for replica in topic.config.table_replicas]
    for name in names:
        setting = f"spark.sql.catalog.{name.catalog}"
        if topic.spark.conf.get(setting, None) is None:
            raise ConfigurationError(
                f"expected {setting} in Spark's settings, since {name} is a replica of "
                f"{topic.name}, found none; name the catalog there, or change ebbtide.replicas"
            )
        if name == topic.name:
            raise ConfigurationError(
                f"expected ebbtide.replicas of {topic.name} to name other namespaces, found its own"
            )
    return names


def check_is_no_replica(topic: Topic, what_to_do: str) -> None:
    """Raise RequestError where the topic gets its log from a primary, and from nowhere else."""
    if REPLICA_OF in topic.properties:
        raise RequestError(
            f"expected a topic that is no replica, found that {topic.name} is one; {what_to_do} "
            "its primary, and replicate_log brings what is new"
        )


def find_replica(spark: SparkSession, name: TopicName) -> Topic | None:
    """Return the current replica; None where it has no tables yet.

    Raise UnavailableError where its catalog does not answer.
    """
    try:
        return find(spark, name)
    except EbbtideError:
        raise
    except Exception as error:  # every catalog has its own words for this
        raise UnavailableError(
            f"expected the catalog of the replica {name} to answer, found {_first_line(error)}; "
            "run again once it can be reached"
        ) from error


class ReplicaEnd(NamedTuple):
    """Where the log of a replica ends."""

    offset: int
    replica: TopicName


def first_replica_ends(topic: Topic) -> dict[int, ReplicaEnd]:
    """Return, of each partition, the replica whose log ends first; empty without replicas.

    Its end is 0 if the replica cannot be reached or lacks the partition: it is unknown.
    """
    ends: dict[int, ReplicaEnd] = {}
    for name in replica_names(topic):
        states = _states(topic.spark, name)
        for partition in topic.partitions:
            end = ReplicaEnd(states[partition].log_end_offset if partition in states else 0, name)
            ends[partition] = min(end, ends.get(partition, end), key=itemgetter(0))
    return ends


def _states(spark: SparkSession, name: TopicName) -> dict[int, PartitionState]:
    try:
        replica = find_replica(spark, name)
    except UnavailableError:
        return {}
    return {} if replica is None else replica.partitions


def _first_line(error: Exception) -> str:
    """Return the first line of a Java or Python error's message."""
    message = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in str(message).splitlines() if line.strip()), "no message")
