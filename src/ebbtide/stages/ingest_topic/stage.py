"""ingest_topic: append what a live topic holds beyond the tables' ends.

The live topic's ends are read once, then its records are taken in slices. Each slice is written to
the state, its records are appended, their batches are worked out from those records, and the state
is moved. So a killed slice is finished as planned, and without the broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
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
    Slice,
    next_slice,
    range_to_take,
    rest,
)
from ebbtide.log.settings.drift import drift_note, drifts, layout_of
from ebbtide.log.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.log.settings.upstream import SOURCE, Upstream
from ebbtide.log.state.topic_state import SLICE
from ebbtide.runs.runs_table import JobOutcome
from ebbtide.spark.job_log import log_partitions
from ebbtide.stages.ingest_segments.append import (
    SUMMED,
    IngestOutcome,
    check_copies_no_table,
    check_takes_ingests,
    check_topic_id,
    claim,
    drop_left_behind,
    live_slice,
    new_slice,
    new_topic,
    pinned,
)
from ebbtide.stages.ingest_segments.table_ends import find_ends
from ebbtide.stages.ingest_topic.slices import (
    append_slice,
    finish_killed,
    finish_slice,
    log_ends,
)
from ebbtide.stages.unfinished import settle

log = logging.getLogger(__name__)

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
        return (
            {**numbers, "note": drift_note(str(self.topic.name), drifts_of_topic)}
            if drifts_of_topic
            else numbers
        )

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
    plan = plan_live(_without_slice(topic, source, done), live, source)
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
        check_takes_ingests(topic, is_plan_only=is_plan_only)
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


def _without_slice(topic: Topic, source: LiveSource, done: IngestOutcome) -> Topic:
    """Finish the slice that a killed run left, if there is one; return the topic afterwards."""
    piece = live_slice(topic)
    if piece is None:
        return topic
    finished = finish_killed(topic, SLICE, piece, done, lambda _: {SOURCE: source.upstream})
    return settle(finished, "ingest_topic")


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
    """Write the slice down, append its records, and finish it."""
    live, ends = plan.live, find_ends(plan.topic, piece.ranges)
    planned = drop_left_behind(plan.topic, ends, plan.source.now)
    topic = claim(planned, Step.LIVE_SLICE, SLICE, piece)
    ranges = {partition: offsets for partition, offsets in piece.ranges.items() if offsets.offsets}
    taken = {p: f"takes offsets {of.start} to {of.end}" for p, of in ranges.items()}
    log_partitions(log, taken)
    if ranges:
        options = java_options(live.connection, live.settings)
        frame = source_frame(topic.spark, options, live.topic, ranges, plan.source.isolation)
        with reading(live.topic, live.connection):
            done.snapshot_ids.append(append_slice(topic, piece, frame, ends.records))
    # With the state: if another ingest takes the slice over, it is not from here.
    return finish_slice(topic, SLICE, piece, ends, done, lambda _: {SOURCE: plan.source.upstream})


def _answer(done: JobOutcome, plan: LivePlan) -> JobOutcome:
    """What the run did, and that there was nothing new of the other partitions."""
    nothing = dict.fromkeys((*SUMMED, "segments"), 0)
    for partition in plan.left:
        offsets = plan.topic.offsets_of(partition)
        gap = plan.accepted_gaps.get(partition)
        numbers = done.partitions.get(partition, {**nothing, "skipped": ["nothing new"]})
        done.partitions[partition] = {
            **numbers,
            **offsets,
            "accepted_gaps": [gap] if gap else [],
        }
    done.topic |= plan.drift()
    done.error = standing_for(plan.errors)
    return done
