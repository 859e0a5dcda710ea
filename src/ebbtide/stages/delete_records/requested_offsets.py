"""Resolve a DeleteRecords request to offsets: times by the tables, groups by a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import RequestError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.topics import Topic
from ebbtide.log.delete_answers import HIGH_WATERMARK
from ebbtide.log.requests.delete_request import AtOffset, CommittedBy, OlderThan, TopicRequest
from ebbtide.log.settings.replicas import REPLICAS
from ebbtide.spark.conditions import any_column
from ebbtide.stages.adopted_look import Look
from ebbtide.stages.delete_records.adopted_times import find_adopted_times

NOTHING = 0  # as Kafka has it, an offset at or below the log start changes nothing


@dataclass(frozen=True, slots=True)
class RequestedOffsets:
    """The offset requested for each partition, and how it was determined."""

    offsets: dict[int, int] = field(default_factory=dict)
    more_numbers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def within(self, topic: Topic, bounds: Mapping[int, int]) -> RequestedOffsets:
        """Return the offsets of the bounds' partitions, none of them beyond its bound."""
        ends = {p: topic.partitions[p].log_end_offset for p in bounds if p in topic.partitions}
        offsets = {}
        for partition, bound in bounds.items():
            offset = self.offsets.get(partition, NOTHING)
            end = ends.get(partition, bound) if offset == HIGH_WATERMARK else offset
            offsets[partition] = min(end, bound)
        numbers = {p: numbers for p, numbers in self.more_numbers.items() if p in bounds}
        return RequestedOffsets(offsets, numbers)


def resolve_offsets(
    topic: Topic, asked: TopicRequest, now_ms: int, look: Look | None = None
) -> RequestedOffsets:
    """Return the offsets that a request means at `now_ms`; -1 stands for the high watermark.

    A partition that the topic does not have gets some offset: its answer does not depend on it.
    `look` is of an adopted topic.
    """
    requested = RequestedOffsets()
    times: dict[int, int] = {}
    groups: dict[CommittedBy, list[int]] = defaultdict(list)
    for partition, selector in asked.of(topic.partitions).items():
        requested.offsets[partition] = NOTHING
        if isinstance(selector, AtOffset):
            requested.offsets[partition] = selector.offset
        elif partition not in topic.partitions:
            continue
        elif isinstance(selector, CommittedBy):
            groups[selector].append(partition)
        else:
            time = selector.at(now_ms) if isinstance(selector, OlderThan) else selector
            times[partition] = time.timestamp_ms
    if times:
        _resolve_times(topic, times, requested, look)
    for committed, partitions in groups.items():
        _resolve_groups(topic, committed, partitions, requested)
    return requested


def _resolve_times(
    topic: Topic, times: Mapping[int, int], requested: RequestedOffsets, look: Look | None
) -> None:
    if look is None:
        first_offsets = find_first_at_or_after(topic, times)
        older = count_older(topic, times, first_offsets)
    else:
        first_offsets, older = find_adopted_times(look, times)
    for partition, timestamp_ms in times.items():
        # Kafka: offsetsForTimes finds nothing, so everything is older.
        requested.offsets[partition] = first_offsets.get(partition, HIGH_WATERMARK)
        requested.more_numbers[partition] = {
            "timestamp_ms": timestamp_ms,
            "older_kept": older.get(partition, 0),
        }


def find_first_at_or_after(topic: Topic, times: Mapping[int, int]) -> dict[int, int]:
    """Return each partition's first offset at or after its timestamp, markers included.

    Partitions without one are left out. Kafka: UnifiedLog.fetchOffsetByTimestamp. One
    difference: where the log starts inside a segment, Kafka may find nothing although a later
    segment holds such an offset.
    """

    def is_found(timestamp: Callable[[int], Column]) -> Column:
        return _any_of(
            times,
            lambda partition: (
                (F.col("offset") >= topic.partitions[partition].log_start_offset)
                & (F.col("timestamp") >= timestamp(times[partition]))
            ),
        )

    first_offsets = (
        _records(topic)
        .where(is_found(_timestamp))
        .select("partition", "offset")
        .union(_markers(topic).where(is_found(F.lit)).select("partition", "offset"))
    )
    rows = first_offsets.groupBy("partition").agg(F.min("offset").alias("first"))
    return {row["partition"]: row["first"] for row in rows.collect()}


def count_older(
    topic: Topic, times: Mapping[int, int], first_offsets: Mapping[int, int]
) -> dict[int, int]:
    """Count the records after each first offset whose timestamp is before the partition's time."""
    if not first_offsets:
        return {}

    def is_kept(partition: int) -> Column:
        is_older = F.col("timestamp") < _timestamp(times[partition])
        is_behind = F.col("offset") > first_offsets[partition]
        return is_behind & (F.col("timestamp").isNull() | is_older)

    rows = _records(topic).where(_any_of(first_offsets, is_kept)).groupBy("partition").count()
    return {row["partition"]: row["count"] for row in rows.collect()}


def _resolve_groups(
    topic: Topic, asked: CommittedBy, partitions: list[int], requested: RequestedOffsets
) -> None:
    connection = asked.connection or _only_connection(topic)
    live = LiveTopic.connect(connection, _kafka_topic(topic))
    for partition, committed in live.committed(asked.groups, partitions).items():
        end = topic.partitions[partition].log_end_offset
        without = [group for group, offset in committed.items() if offset is None]
        offsets = [offset for offset in committed.values() if offset is not None]
        requested.more_numbers[partition] = {"committed": committed}
        if without:
            note = f"left alone: no commit of {', '.join(without)}"
            requested.more_numbers[partition]["note"] = note
        else:
            requested.offsets[partition] = min(*offsets, end)


def _kafka_topic(topic: Topic) -> str:
    """Return the name that the topic has in Kafka; an adopted table's column of topics tells it."""
    if not topic.is_adopted:
        return topic.name.topic
    return topic.name.in_table or AdoptedRows.of(topic).ids.topic_name or topic.name.topic


def _only_connection(topic: Topic) -> str:
    connections = topic.config.live_replicas
    if len(connections) != 1:
        raise RequestError(
            f"expected a connection beside groups, or one kafka:<connection> in {REPLICAS} "
            f"of {topic.name}, found {topic.properties.get(REPLICAS, '')!r}"
        )
    return connections[0]


def _records(topic: Topic) -> DataFrame:
    table = topic.spark.table(topic.name.records_table)
    return table.select("partition", "offset", "timestamp")


def _markers(topic: Topic) -> DataFrame:
    """Return the control records, each the one record of its batch; their timestamps in ms."""
    batches = topic.spark.table(topic.name.batches_table)
    is_marker = F.col("control_type").isNotNull() & (F.col("record_count") > 0)
    return batches.where(is_marker).select(
        "partition",
        F.col("last_offset").alias("offset"),
        F.col("max_timestamp_ms").alias("timestamp"),
    )


def _any_of(partitions: Mapping[int, Any], condition: Callable[[int], Column]) -> Column:
    return any_column(
        (F.col("partition") == partition) & condition(partition) for partition in partitions
    )


def _timestamp(timestamp_ms: int) -> Column:
    return F.timestamp_millis(F.lit(timestamp_ms))
