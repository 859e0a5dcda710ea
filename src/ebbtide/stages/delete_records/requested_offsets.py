"""Resolve a DeleteRecords request to offsets: times by the tables, groups by a broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.brokers.live_topic import LiveTopic
from ebbtide.errors import RequestError
from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.topics import Topic
from ebbtide.log.delete_answers import HIGH_WATERMARK
from ebbtide.log.requests.delete_request import AtOffset, CommittedBy, OlderThan, TopicRequest
from ebbtide.log.settings.replicas import REPLICAS
from ebbtide.stages.table_layout import ObservedLog, layout_of

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
    log: ObservedLog, topic: Topic, asked: TopicRequest, now_ms: int
) -> RequestedOffsets:
    """Return the offsets that a request means at `now_ms`; -1 stands for the high watermark.

    `topic` has the partitions of the log. One that it does not have gets some offset: its answer
    does not depend on it.
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
        found = layout_of(log.topic).find_offsets_of_times(log, times)
        for partition, timestamp_ms in times.items():
            # Kafka: offsetsForTimes finds nothing, so everything is older.
            requested.offsets[partition] = found.first.get(partition, HIGH_WATERMARK)
            requested.more_numbers[partition] = {
                "timestamp_ms": timestamp_ms,
                "older_kept": found.older.get(partition, 0),
            }
    for committed, partitions in groups.items():
        _resolve_groups(topic, committed, partitions, requested)
    return requested


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
