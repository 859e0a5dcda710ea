"""ingest_topic: append what a live topic holds beyond the tables' ends.

The live topic's ends are read once, then its records are taken in slices. Each slice is written to
the state, its records are appended, their batches are worked out from those records, and the state
is moved. So a killed slice is finished as planned, and without the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.brokers.java_client_settings import java_options
from ebbtide.brokers.kafka_source import reading, source_frame
from ebbtide.brokers.live_topic import LiveTopic, list_topics
from ebbtide.errors import (
    EbbtideError,
    NotCoveredError,
    RequestError,
    UnknownTopicError,
    standing_for,
)
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, find
from ebbtide.log.live_offsets import (
    MAX_OFFSETS,
    Isolation,
    Range,
    Ranges,
    Slice,
    next_slice,
    range_to_take,
    rest,
)
from ebbtide.log.settings.drift import drift_note, drifts, layout_of
from ebbtide.log.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.log.settings.upstream import SOURCE, Upstream
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.stages.ingest_segments.append import (
    IngestOutcome,
    check_copies_no_table,
    check_takes_ingests,
    check_topic_id,
    drop_left_behind,
    make_views,
    new_slice,
    new_topic,
    pinned,
)
from ebbtide.stages.ingest_segments.table_ends import find_ends
from ebbtide.stages.ingest_topic.slices import (
    LIVE,
    finish_killed,
    log_ends,
    numbers_of_run,
    take_slice,
)
from ebbtide.stages.unfinished import settle

# Batches of a transaction.
_KINDS = (("data", "(attributes & 32) = 0"), ("marker", "control_type IN ('COMMIT', 'ABORT')"))


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A run's source, and what the run may accept."""

    connection: str
    now: datetime
    isolation: Isolation = Isolation.READ_COMMITTED
    accept_gap: bool = False
    max_offsets: int = MAX_OFFSETS  # of a slice

    @property
    def upstream(self) -> str:
        """The upstream as the topic's property names it."""
        return str(Upstream("kafka", self.connection))


@dataclass(slots=True)
class LivePlan:
    """The offsets of each partition that the tables lack, as the broker said once."""

    topic: Topic
    live: LiveTopic
    source: LiveSource
    left: dict[int, Range] = field(default_factory=dict)
    errors: list[EbbtideError] = field(default_factory=list)
    accepted_gaps: dict[int, tuple[int, int]] = field(default_factory=dict)

    def drift(self) -> dict[str, Any]:
        """Return which settings differ at the brokers, and how to take them over."""
        drifts_of_topic = drifts(self.topic.properties, self.live.configs)
        numbers: dict[str, Any] = {"drift": [drift._asdict() for drift in drifts_of_topic]}
        if drifts_of_topic:
            numbers["note"] = drift_note(str(self.topic.name), drifts_of_topic)
        return numbers

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(topic=self.drift(), error=standing_for(self.errors))
        for partition, offsets in self.left.items():
            state = self.topic.partitions.get(partition)
            start = offsets.start if state is None else state.log_start_offset
            gap = self.accepted_gaps.get(partition)
            outcome.partitions[partition] = {
                "log_start_offset": start,
                "low_watermark": self.topic.low_watermark(start),
                "log_end_offset": offsets.end,
                "offsets": offsets.offsets,
                "accepted_gaps": [gap] if gap else [],
            }
        return outcome


def choose_topics(
    source: LiveSource, cluster: str, asked: Sequence[TopicName], pattern: str | None
) -> list[TopicName]:
    """Return the topics asked for by name, and those whose whole name is the regular expression."""
    for name in asked:
        if name.cluster != cluster or name.topic in INTERNAL_TOPICS:
            raise RequestError(
                f"expected topics of cluster {cluster!r}, and none of Kafka's own, found {name}"
            )
    if not asked and not pattern:
        raise RequestError("expected --topic or --topics-pattern, found neither")
    matching = _matching(source, pattern) if pattern else []
    return sorted({*asked, *(TopicName(cluster, topic) for topic in matching)})


def _matching(source: LiveSource, pattern: str) -> list[str]:
    try:
        is_matching = re.compile(pattern).fullmatch
    except re.error as error:
        raise RequestError(f"expected a regular expression, found {pattern!r}: {error}") from None
    known = list_topics(source.connection)
    matching = [topic for topic in known if is_matching(topic)]
    if not matching:
        raise UnknownTopicError(
            f"expected topics named {pattern!r} at the brokers of connection "
            f"{source.connection!r}, found {len(known)} others; check the pattern, and what that "
            "connection's user may see"
        )
    return matching


def ingest_topic(
    spark: SparkSession, name: TopicName, source: LiveSource, *, is_plan_only: bool = False
) -> JobOutcome:
    """Create a new topic, and append all that the brokers had at the start."""
    live = LiveTopic.connect(source.connection, name.topic)
    topic_id = live.description.topic_id
    topic = _topic(spark, name, live, source, is_plan_only=is_plan_only)
    where = f"connection {source.connection!r}"
    check_topic_id(topic, topic_id, where)
    if is_plan_only:
        return plan_live(topic, live, source).outcome()
    done = IngestOutcome()
    topic = finish_killed(LIVE, topic, done, {SOURCE: source.upstream})
    plan = plan_live(topic, live, source)
    _check_decided(plan.topic, plan.left)
    if any(offsets.offsets for offsets in plan.left.values()):  # a refused log pins nothing
        _pin(plan.topic, topic_id, where)
    plan.topic = drop_left_behind(plan.topic, find_ends(plan.topic, plan.left), source.now)
    while taken := next_slice(plan.left, log_ends(plan.topic), source.max_offsets):
        plan.topic = _take_slice(plan, new_slice(taken, source.now), done)
        plan.left = rest(plan.left, taken)
    return _answer(done, plan)


def _topic(
    spark: SparkSession,
    name: TopicName,
    live: LiveTopic,
    source: LiveSource,
    *,
    is_plan_only: bool,
) -> Topic:
    """Return the current topic, settled, or a new one with its brokers' settings."""
    name = TopicName.checked(name.cluster, name.topic)
    topic = find(spark, name)
    if topic is not None:
        topic = settle(topic, "ingest_topic", is_plan_only=is_plan_only)
        check_takes_ingests(topic)
        make_views(topic, is_plan_only=is_plan_only)
        return topic
    properties = layout_of(live.configs)
    properties |= {SOURCE: source.upstream, **pinned([live.description.topic_id])}
    return new_topic(spark, name, properties, is_plan_only=is_plan_only)


def _pin(topic: Topic, topic_id: str, where: str) -> None:
    """Hold the tables to the topic id.

    ForeignLogError if they have another id, RequestError if a table is copied to the topic.
    """

    def pin(current: Topic) -> PropertyChanges:
        check_copies_no_table(current)  # it may do so by now
        check_topic_id(current, topic_id, where)
        return pinned([topic_id])

    compare_and_set(topic, Step.FOLLOW_SETTINGS, pin)


def _check_decided(topic: Topic, left: Mapping[int, Range]) -> None:
    """Raise NotCoveredError where a transaction waits for a marker: live reads show none."""
    if not any(offsets.offsets for offsets in left.values()):
        return
    producers = (
        topic.spark.table(topic.name.batches_table)
        .where("producer_id >= 0 AND (attributes & 16) != 0")
        .groupBy("partition", "producer_id")
        .agg(*(F.max(F.when(F.expr(is_a), F.col("base_offset"))).alias(n) for n, is_a in _KINDS))
    )
    undecided = producers.where("data > coalesce(marker, -1)")
    for row in undecided.orderBy("partition", "data").limit(1).collect():
        raise NotCoveredError(
            f"expected no open transaction in {topic.name}, found one of producer "
            f"{row['producer_id']} in partition {row['partition']}, whose last batch is at offset "
            f"{row['data']}: what comes live does not say how it ends; run ingest_segments once "
            "more at a moment when no transaction is open"
        )


def plan_live(topic: Topic, live: LiveTopic, source: LiveSource) -> LivePlan:
    """Plan which offsets of each partition to take: those that the tables lack."""
    plan = LivePlan(topic, live, source)
    offsets = live.offsets(live.description.partitions, source.isolation)
    for partition, live_offsets in offsets.items():
        state = topic.partitions.get(partition)
        where = f"{live.topic}-{partition}"
        try:
            taken = range_to_take(where, state, live_offsets, accepts_gap=source.accept_gap)
        except EbbtideError as error:
            plan.errors.append(error)
            continue
        plan.left[partition] = taken
        if state is not None and taken.start > state.log_end_offset:
            plan.accepted_gaps[partition] = (state.log_end_offset, taken.start)
    return plan


def _take_slice(plan: LivePlan, piece: Slice, done: IngestOutcome) -> Topic:
    """Take the slice's offsets from the brokers, by Spark's Kafka source."""

    @contextmanager
    def read(topic: Topic, ranges: Ranges) -> Iterator[DataFrame]:
        live, isolation = plan.live, plan.source.isolation
        options = java_options(live.connection, live.settings)
        with reading(live.topic, live.connection):
            yield source_frame(topic.spark, options, live.topic, ranges, isolation)

    return take_slice(LIVE, plan.topic, piece, read, done, on_end={SOURCE: plan.source.upstream})


def _answer(done: IngestOutcome, plan: LivePlan) -> JobOutcome:
    """What the run did, and that there was nothing new of the other partitions."""
    for partition in plan.left:
        gap = plan.accepted_gaps.get(partition)
        numbers = numbers_of_run(done, plan.topic, partition)
        done.partitions[partition] = {**numbers, "accepted_gaps": [gap] if gap else []}
    done.topic |= plan.drift()
    done.error = standing_for(plan.errors)
    return done
