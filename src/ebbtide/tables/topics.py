"""A topic's tables: finding them, their configuration and state, and compare-and-set on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError, UnknownTopicError
from ebbtide.log.config import TopicConfig, parse_config
from ebbtide.log.delete_records import INVALID_LOW_WATERMARK
from ebbtide.log.names import TopicName
from ebbtide.log.state import PartitionState, parse_states
from ebbtide.tables.commits import Step, commit
from ebbtide.tables.java import iceberg_class, java_class

# A property set to None is removed.
Changes = Mapping[str, str | None]
CAS_ATTEMPTS = 20


@dataclass(frozen=True)
class Topic:
    """A topic as its table's properties stood when they were read; each is parsed once."""

    spark: SparkSession
    name: TopicName
    properties: Mapping[str, str]

    @cached_property
    def config(self) -> TopicConfig:
        """The validated configuration; ConfigurationError where a property is wrong."""
        return parse_config(self.properties)

    @cached_property
    def partitions(self) -> dict[int, PartitionState]:
        """The state of each partition."""
        return parse_states(self.properties)

    def offsets_of(self, partition: int) -> dict[str, Any]:
        """What a job that moves none of them says of a partition."""
        state = self.partitions[partition]
        return {
            "log_start_offset": state.log_start_offset,
            "low_watermark": self.low_watermark(state.log_start_offset),
            "log_end_offset": state.log_end_offset,
        }

    def low_watermark(self, log_start_offset: int) -> int:
        """A partition's low watermark by its own log start: unknown where there are replicas."""
        return INVALID_LOW_WATERMARK if self.config.replicas else log_start_offset


def exists(spark: SparkSession, name: TopicName) -> bool:
    """Whether the topic has its tables."""
    tables = (name.records_table, name.batches_table)
    return all(bool(spark.catalog.tableExists(table)) for table in tables)


def load(spark: SparkSession, name: TopicName) -> Topic:
    """The topic as it is now; UnknownTopicError where it has no tables."""
    if not exists(spark, name):
        raise UnknownTopicError(
            f"expected the table {name.records_table}, found none; ingest the topic first"
        )
    table = java_table(spark, name.records_table)
    return Topic(spark, name, _as_dict(spark, table.properties()))


def read_again(topic: Topic) -> Topic:
    """The topic as it is by now."""
    properties = java_table(topic.spark, topic.name.records_table).properties()
    return Topic(topic.spark, topic.name, _as_dict(topic.spark, properties))


def _as_dict(spark: SparkSession, java_map: Any) -> dict[str, str]:
    """A Java map in one call; going through it one by one takes two for each entry."""
    mapper = java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
    found: dict[str, str] = json.loads(mapper.writeValueAsString(java_map))
    return found


def java_table(spark: SparkSession, table: str) -> Any:
    """Iceberg's own table object, freshly loaded."""
    util = iceberg_class(spark, "spark.Spark3Util")
    return util.loadIcebergTable(spark._jsparkSession, table)


def compare_and_set(topic: Topic, step: Step, change: Callable[[Topic], Changes | None]) -> Topic:
    """Apply `change` to the properties as they are at the moment of the commit.

    `change` sees the newest properties and checks its rule on them; it is asked again when
    another writer was faster, and returns None when nothing is left to do.
    """
    for _ in range(CAS_ATTEMPTS):
        operations = java_table(topic.spark, topic.name.records_table).operations()
        base = operations.current()
        properties = _as_dict(topic.spark, base.properties())
        current = Topic(topic.spark, topic.name, properties)
        changes = change(current)
        if not changes or _is_applied(current.properties, changes):
            return current
        try:
            after = base.replaceProperties(_merged(properties, changes))
            commit(step, partial(operations.commit, base, after))
        except CommitConflictError:
            continue
        return load(topic.spark, topic.name)
    raise CommitConflictError(
        f"expected to change the properties of {topic.name} within {CAS_ATTEMPTS} attempts, "
        "found another writer faster each time; run the job again when it is done"
    )


def _is_applied(properties: Mapping[str, str], changes: Changes) -> bool:
    return all(properties.get(name) == value for name, value in changes.items())


def _merged(properties: Mapping[str, str], changes: Changes) -> dict[str, str]:
    return {name: value for name, value in {**properties, **changes}.items() if value is not None}


def current_snapshot(spark: SparkSession, table: str) -> int | None:
    """Id of the table's current snapshot; None for a table without data."""
    snapshot = java_table(spark, table).currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def find_snapshot(spark: SparkSession, table: str, name: str, value: str) -> int | None:
    """The newest snapshot in the table's history whose summary holds `name` = `value`."""
    loaded = java_table(spark, table)
    snapshot = loaded.currentSnapshot()
    while snapshot is not None:
        if snapshot.summary().get(name) == value:
            return int(snapshot.snapshotId())
        parent = snapshot.parentId()
        snapshot = None if parent is None else loaded.snapshot(parent)
    return None
