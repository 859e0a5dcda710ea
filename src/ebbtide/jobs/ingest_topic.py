"""ingest_topic: append the records of a live topic that are beyond the tables' ends.

The live topic's end offsets are read once, then its records are ingested in slices. Order for each
slice: claim it in the state, append its records, derive and append their batches, move the state.
So a killed slice is finished as planned, without the brokers.
"""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ebbtide.brokers.kafka_source import live_records, reading, source_frame
from ebbtide.brokers.live_topic import LiveTopic, java_options, list_topics
from ebbtide.columns.headers import slices_by_value
from ebbtide.columns.live_records import ActiveSegment, to_headers
from ebbtide.errors import (
    EbbtideError,
    NotCoveredError,
    RequestError,
    UnknownTopicError,
    standing_for,
)
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.data_files import SegmentFiles, count_rows, read_segment
from ebbtide.iceberg.segment_planning import plan_segments
from ebbtide.iceberg.topics import PropertyChanges, Topic, compare_and_set, current_snapshot, find
from ebbtide.jobs.ingest_segments.append import (
    NO_CHANGES,
    SUMMED,
    Ends,
    IngestOutcome,
    add_slice,
    append_records,
    appended_slice,
    check_copies_no_table,
    check_takes_ingests,
    check_topic_id,
    claim,
    drop_left_behind,
    end_slice,
    event_time_of,
    find_ends,
    make_views,
    new_slice,
    new_topic,
    pinned,
)
from ebbtide.jobs.ingest_segments.source import HeldLog, SourceLog
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.live_offsets import (
    MAX_OFFSETS,
    Isolation,
    Range,
    Ranges,
    Slice,
    next_slice,
    range_to_take,
    rest,
)
from ebbtide.moments import to_ms
from ebbtide.numbers import MAX_OFFSET
from ebbtide.records import arrays
from ebbtide.records.arrays import Bools
from ebbtide.records.batch import HEADERS_TYPE
from ebbtide.runner.job import Job, Parameters, PlanRequest
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import drift_note, drifts, layout_of
from ebbtide.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.settings.upstream import SOURCE, Upstream
from ebbtide.spark.expressions import any_of
from ebbtide.spark.job_log import log_partitions
from ebbtide.spark.tasks import map_segments
from ebbtide.state.logical_segments import SegmentStart
from ebbtide.state.topic_state import COPIED_SLICE, SLICE

_TIME = pa.timestamp("us", tz="UTC")
_READ = pa.schema(
    [
        ("partition", pa.int32()),
        ("segment", pa.int64()),
        ("offset", pa.int64()),
        ("batch", pa.int64()),
        ("timestamp", _TIME),
        ("append_time", _TIME),
        ("size_bytes", pa.int32()),
    ]
)


def batches_of_slice(topic: Topic, piece: Slice) -> pa.Table:
    """Derive the headers of the slice's batches from its records, by partition and offset."""
    spark, table = topic.spark, topic.name.records_table
    snapshot = current_snapshot(spark, table)
    firsts = {partition: offsets.start for partition, offsets in piece.ranges.items()}
    units = []
    if snapshot is not None:
        units = plan_segments(spark, table, snapshot, dict.fromkeys(firsts, MAX_OFFSET), firsts)
    # A record with a producer's timestamp has the run's `now` as append time. If both are equal by
    # chance, the topic's setting decides.
    is_create_time = topic.config.message_timestamp_type == "CreateTime"
    work = partial(_batches_of_segment, firsts, to_ms(piece.now) if is_create_time else None)
    tables = map_segments(spark, work, units, count_rows(units), "deriving batches of")
    headers = pa.concat_tables([_headers(_READ.empty_table(), None), *tables])
    return headers.sort_by([("partition", "ascending"), ("base_offset", "ascending")])


def _batches_of_segment(
    firsts: Mapping[int, int], unstamped_ms: int | None, unit: SegmentFiles
) -> pa.Table:
    """Derive the batches of a segment from the slice's first offset, in a Spark task."""
    read, schema = read_segment(unit, _READ.names).table, _READ
    if read["timestamp"].null_count:
        schema = _READ.append(pa.field("headers", HEADERS_TYPE))  # a header may have the timestamp
        read = read_segment(unit, schema.names).table
    records = read.select(schema.names)
    records = records.filter(pc.greater_equal(records["offset"], firsts[unit.partition]))
    return _headers(records.cast(schema).combine_chunks(), unstamped_ms)


def _headers(records: pa.Table, unstamped_ms: int | None) -> pa.Table:
    """Derive batch headers; an append time of `unstamped_ms` is not the broker's."""
    append_ms = arrays.to_ms(records["append_time"])
    is_stamped: Bools = append_ms == arrays.to_ms(records["timestamp"])
    if unstamped_ms is not None:
        is_stamped &= append_ms != unstamped_ms
    return to_headers(records, is_stamped)


# Ingest a slice of a source without record batches: append its records, then their batches.
#
# Batches are derived from the records in the table, so a killed slice is finished without the
# source.


log = logging.getLogger(__name__)


class SliceKind(NamedTuple):
    """A kind of slice, by its job."""

    job: str
    claim: str  # the property of the claim
    step: Step  # the commit of the claim


LIVE = SliceKind("ingest_topic", SLICE, Step.LIVE_SLICE)
COPIED = SliceKind("ingest_table", COPIED_SLICE, Step.COPY_SLICE)


def log_ends(topic: Topic) -> dict[int, int]:
    """Return the log end offset of each partition."""
    return {partition: state.log_end_offset for partition, state in topic.partitions.items()}


def take_slice(
    kind: SliceKind,
    topic: Topic,
    piece: Slice,
    source: Callable[[Topic, Ranges], AbstractContextManager[DataFrame]],
    done: IngestOutcome,
    *,
    claimed: PropertyChanges = NO_CHANGES,
    on_end: PropertyChanges = NO_CHANGES,
) -> Topic:
    """Claim the slice, append its records from the source, and finish it.

    The changes `claimed` are committed with the claim, and `on_end` with the partitions' states.
    """
    ends = find_ends(topic, piece.ranges)
    topic = drop_left_behind(topic, ends, piece.now)
    topic = claim(topic, kind.step, kind.claim, piece, claimed)
    ranges = {partition: offsets for partition, offsets in piece.ranges.items() if offsets.offsets}
    taken = {p: f"ingesting offsets {each.start} to {each.end}" for p, each in ranges.items()}
    log_partitions(log, taken)
    if ranges:
        event_time = event_time_of(topic.spark, topic.config.event_time)
        with source(topic, ranges) as frame:
            rows = live_records(frame, _active_segments(topic, piece), topic.config, piece.now)
            snapshot = append_records(topic, rows, event_time, ends.records, piece.id)
        done.snapshot_ids.append(snapshot)
    return _finish_slice(kind, topic, piece, ends, done, on_end)


def finish_killed(
    kind: SliceKind, topic: Topic, done: IngestOutcome, on_end: PropertyChanges = NO_CHANGES
) -> Topic:
    """Finish the slice that a killed run appended, if there is one, and return the topic."""
    piece = appended_slice(topic, kind.claim)
    if piece is None:
        return topic
    ends = find_ends(topic, piece.ranges)
    if ends.left_batches:
        ends.batches.drop(Step.LEFT_BATCHES)
    return settle(_finish_slice(kind, topic, piece, ends, done, on_end), kind.job)


def numbers_of_run(done: IngestOutcome, topic: Topic, partition: int) -> dict[str, Any]:
    """Return a partition's numbers over the run's slices, or zeros if it had no new records."""
    nothing = {**dict.fromkeys((*SUMMED, "segments"), 0), "skipped": ["nothing new"]}
    return {**done.partitions.get(partition, nothing), **topic.offsets_of(partition)}


def _active_segments(topic: Topic, piece: Slice) -> dict[int, ActiveSegment]:
    """Return each partition's active segment, with its size and first timestamp."""
    active = {}
    for partition, offsets in piece.ranges.items():
        state = topic.partitions.get(partition)
        begun = (
            SegmentStart(offsets.start, to_ms(piece.now)) if state is None else state.segments[-1]
        )
        active[partition] = ActiveSegment(*begun)
    is_active = any_of(
        f"`partition` = {p} AND base_offset >= {segment.base_offset}"
        for p, segment in active.items()
    )
    first_ms = "CASE WHEN attributes & 8 != 0 THEN max_timestamp_ms ELSE base_timestamp_ms END"
    sums = (
        topic.spark.table(topic.name.batches_table)
        .where(is_active)
        .groupBy("partition")
        .agg(F.sum("size_bytes"), F.min_by(F.expr(first_ms), "base_offset"))
        .collect()
    )
    for partition, *sum_and_first in sums:
        base_and_created = active[partition][:2]
        active[partition] = ActiveSegment(*base_and_created, *sum_and_first)
    return active


def _finish_slice(
    kind: SliceKind,
    topic: Topic,
    piece: Slice,
    ends: Ends,
    done: IngestOutcome,
    on_end: PropertyChanges,
) -> Topic:
    """Append the batches of the slice's appended records, move the state, and return the topic."""
    event_time = event_time_of(topic.spark, topic.config.event_time)
    headers, now_ms = batches_of_slice(topic, piece), to_ms(piece.now)
    headers_of = dict(slices_by_value(headers, "partition"))
    nothing = headers.slice(0, 0)
    logs = {
        partition: _log(headers_of.get(partition, nothing), offsets, ends.held[partition], now_ms)
        for partition, offsets in piece.ranges.items()
    }
    topic, outcome = end_slice(
        topic, kind.claim, piece, logs, ends.batches, now_ms, event_time, lambda *_: on_end
    )
    add_slice(done, outcome)
    return topic


def _log(batches: pa.Table, offsets: Range, held: HeldLog, now_ms: int) -> SourceLog:
    """Return one partition of the slice as the log that every ingest appends."""
    begun = {offsets.start: now_ms} if held.state is None else dict(held.state.segments[-1:])
    begun |= dict.fromkeys(pc.unique(batches["segment"]).to_pylist(), now_ms)
    return SourceLog(
        held,
        log_start_offset=offsets.start if held.state is None else held.state.log_start_offset,
        visible_from=offsets.start,
        first_offset=offsets.start,
        log_end_offset=offsets.end,
        batches=batches,
        segments=tuple(SegmentStart(*segment) for segment in sorted(begun.items())),
    )


# Batches of a transaction, by kind.
_KINDS = (("data", "(attributes & 32) = 0"), ("marker", "control_type IN ('COMMIT', 'ABORT')"))


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A run's connection to the brokers, with the options of the run."""

    connection: str
    now: datetime
    isolation: Isolation = Isolation.READ_COMMITTED
    accept_gap: bool = False
    max_offsets: int = MAX_OFFSETS  # of a slice

    @property
    def upstream(self) -> str:
        """The value of the topic's property for its source."""
        return str(Upstream("kafka", self.connection))


@dataclass(slots=True)
class LivePlan:
    """The offsets of each partition that the tables lack, by end offsets that were read once."""

    topic: Topic
    live: LiveTopic
    source: LiveSource
    left: dict[int, Range] = field(default_factory=dict)
    errors: list[EbbtideError] = field(default_factory=list)
    accepted_gaps: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add_drift(self, outcome: JobOutcome) -> None:
        """Add the settings that differ at the brokers, with a note on how to adopt them."""
        drifts_of_topic = drifts(self.topic.properties, self.live.configs)
        outcome.topic["drift"] = [drift._asdict() for drift in drifts_of_topic]
        if drifts_of_topic:
            outcome.add_notes([drift_note(str(self.topic.name), drifts_of_topic)])

    def outcome(self) -> JobOutcome:
        """Return the numbers of the plan."""
        outcome = JobOutcome(error=standing_for(self.errors))
        self.add_drift(outcome)
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
    """Return the topics named, and those whose whole name matches the regular expression."""
    for name in asked:
        if name.cluster != cluster or name.topic in INTERNAL_TOPICS:
            raise RequestError(
                f"expected topics of cluster {cluster!r} that are not internal, found {name}"
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
            f"{source.connection!r}, found none among {len(known)}. Check the pattern, and the "
            "topics that the connection's user may list"
        )
    return matching


def ingest_topic(
    spark: SparkSession, name: TopicName, source: LiveSource, *, is_plan_only: bool = False
) -> JobOutcome:
    """Append the records that the brokers have at the start and that the topic lacks.

    A new topic is created.
    """
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
    if any(offsets.offsets for offsets in plan.left.values()):  # not if every log was refused
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
    """Return the topic after work in flight is finished, or a new one with brokers' settings."""
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
    """Record the topic id in the tables' properties.

    Raise ForeignLogError if they have another id, RequestError if the topic is copied from a table.
    """

    def pin(current: Topic) -> PropertyChanges:
        check_copies_no_table(current)  # may have changed since the plan
        check_topic_id(current, topic_id, where)
        return pinned([topic_id])

    compare_and_set(topic, Step.FOLLOW_SETTINGS, pin)


def _check_decided(topic: Topic, left: Mapping[int, Range]) -> None:
    """Raise NotCoveredError if a transaction is open: consumers of a live topic get no markers."""
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
            f"{row['producer_id']} in partition {row['partition']}, with its last batch at offset "
            f"{row['data']}: live records do not show how it ends. Run ingest_segments once more "
            "while no transaction is open"
        )


def plan_live(topic: Topic, live: LiveTopic, source: LiveSource) -> LivePlan:
    """Plan the offsets of each partition to ingest: those that the tables lack."""
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
    """Ingest the slice's offsets from the brokers, by Spark's Kafka source."""

    @contextmanager
    def read(topic: Topic, ranges: Ranges) -> Iterator[DataFrame]:
        live, isolation = plan.live, plan.source.isolation
        options = java_options(live.connection, live.settings)
        with reading(live.topic, live.connection):
            yield source_frame(topic.spark, options, live.topic, ranges, isolation)

    return take_slice(LIVE, plan.topic, piece, read, done, on_end={SOURCE: plan.source.upstream})


def _answer(done: IngestOutcome, plan: LivePlan) -> JobOutcome:
    """Return the run's outcome, with zeros for partitions without new records."""
    for partition in plan.left:
        gap = plan.accepted_gaps.get(partition)
        numbers = numbers_of_run(done, plan.topic, partition)
        done.partitions[partition] = {**numbers, "accepted_gaps": [gap] if gap else []}
    plan.add_drift(done)
    done.error = standing_for(plan.errors)
    return done


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    """Return the topics that the arguments name, or that match the pattern at the brokers."""
    args.source = LiveSource(args.connection, args.now, Isolation(args.isolation), args.accept_gap)
    topics = choose_topics(args.source, args.cluster, args.topic, args.topics_pattern)
    return {name: {} for name in topics}


def _do(spark: SparkSession, name: TopicName, request: PlanRequest) -> JobOutcome:
    args = request.given
    return ingest_topic(spark, name, args.source, is_plan_only=args.plan_only)


INGEST_TOPIC: Job[Any] = Job("ingest_topic", _do, asked=_asked, is_of_source=True)
