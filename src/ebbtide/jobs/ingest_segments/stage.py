"""ingest_segments: append the batches of a log directory that are beyond the tables' ends.

Order: the claim of a slice, records, batches, state. Rows that a killed ingest left beyond the
state are removed and read again, so that no record is duplicated or missing. The rows of new
batches pass through the driver, so a log of very many batches is ingested in slices. A slice may
end within a file.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession

from ebbtide.errors import (
    ForeignLogError,
    SourceError,
    UnavailableError,
    UnknownTopicError,
    standing_for,
)
from ebbtide.iceberg.catalog import catalog_store
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import PropertyChanges, Topic, find
from ebbtide.jobs.ingest_segments.append import (
    Ends,
    IngestOutcome,
    add_slice,
    append_read,
    append_records,
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
    outcome_of,
    pinned,
)
from ebbtide.jobs.ingest_segments.source import (
    BatchAt,
    GapRule,
    RecordsToRead,
    SourceLog,
    by_partition,
    files_to_walk,
    has_new,
    log_append_batches,
    read_back,
    records_frame,
    records_of,
    refused_whole,
    take_log,
    walk_files,
    walk_slice,
)
from ebbtide.jobs.unfinished import settle
from ebbtide.kafka.live_offsets import Range, Slice
from ebbtide.moments import to_ms
from ebbtide.records.log_directory import (
    Manifest,
    PartitionDirectory,
    SegmentFile,
    list_log_directory,
    read_manifest,
)
from ebbtide.records.segment_reader import MAX_BATCH_BYTES, BatchLimits
from ebbtide.runner.job import Job, Parameters, PlanRequest, start_spark
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.config import TopicConfig
from ebbtide.settings.names import INTERNAL_TOPICS, TopicName
from ebbtide.settings.upstream import SOURCE, Upstream
from ebbtide.spark.job_log import log_partitions
from ebbtide.state.topic_state import FILES_SLICE, PartitionState
from ebbtide.stores.store import AMBIENT, Store
from ebbtide.text import number, size

log = logging.getLogger(__name__)

# If a broker deletes files while they are read, the directory is listed up to this many times.
LISTINGS = 3
REMOTE_STORAGE = "remote.storage.enable"  # a setting of a topic with a remote tier (KIP-405)


@dataclass(frozen=True, slots=True)
class Source:
    """A run's log directory, with the options of the run."""

    uri: str
    directories: Sequence[PartitionDirectory]
    manifest: Manifest | None
    now: datetime
    accept_gap: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # of the topics it creates
    store: Store = AMBIENT

    @classmethod
    def of_uri(
        cls,
        uri: str,
        now: datetime,
        *,
        accept_gap: bool = False,
        settings: Mapping[str, str] | None = None,
        store: Store = AMBIENT,
    ) -> Self:
        """List the log directory, and read its manifest."""
        directories, manifest = list_log_directory(uri, store), read_manifest(uri, store)
        return cls(uri, directories, manifest, now, accept_gap, settings or {}, store)

    def without(self, name: TopicName, partitions: Container[int]) -> Source:
        """Return the source without these partitions of a topic."""
        left = [
            d for d in self.directories if d.topic != name.topic or d.partition not in partitions
        ]
        return replace(self, directories=left)

    def of(self, name: TopicName) -> list[PartitionDirectory]:
        """Return the partitions of one topic."""
        return [directory for directory in self.directories if directory.topic == name.topic]

    def topics(self) -> list[str]:
        """Return the names of all topics, without Kafka's internal ones."""
        return sorted({d.topic for d in self.directories} - INTERNAL_TOPICS)


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The part of each partition's source log that the tables lack."""

    topic: Topic
    source: Source
    ends: Ends
    logs: dict[int, SourceLog]
    unfinished: Container[int]  # partitions with files to read in the next slice
    event_time: Column | None = None  # None: the timestamp

    @property
    def ended(self) -> set[int]:
        """The partitions that need no further slice."""
        return {p for p, log in self.logs.items() if p not in self.unfinished or not log.has_moved}

    @property
    def is_refused_whole(self) -> bool:
        """True if every partition of the source was refused, and no batch is ingested."""
        is_complete = len(self.logs) == len(self.source.of(self.topic.name))
        nothing = all(
            source_log.errors and not source_log.batches.num_rows
            for source_log in self.logs.values()
        )
        return is_complete and nothing and bool(self.logs)

    @property
    def taken(self) -> dict[str, BatchAt]:
        """The last ingested batch of each partition, by the path of its file."""
        lasts = [log.batches.slice(max(log.batches.num_rows - 1, 0)) for log in self.logs.values()]
        return {
            row["path"]: BatchAt(row["position"], row["base_offset"])
            for last in lasts
            for row in last.to_pylist()
        }

    def outcome(self) -> IngestOutcome:
        """Return the plan's numbers, with an error if a part of the source was refused."""
        outcome = outcome_of(self.topic, self.logs)
        errors = [error for log in self.logs.values() for error in log.errors]
        outcome.error = standing_for(errors)
        return outcome


def ingest_segments(
    spark: SparkSession, name: TopicName, source: Source, *, is_plan_only: bool = False
) -> JobOutcome:
    """Append the source's new batches to the topic, which is created if it is new.

    A bad file stops only its partition.
    """
    refused: dict[str, SourceError] = {}
    taken: dict[str, BatchAt] = {}
    done = IngestOutcome()
    listings = 1
    while True:
        try:
            name = TopicName.checked(name.cluster, name.topic)
            topic, is_new = _topic(spark, name, source, is_plan_only=is_plan_only)
            plan = plan_ingest(topic, source, refused, taken)
            if is_plan_only or (is_new and plan.is_refused_whole):
                return plan.outcome()
            if is_new:
                properties = dict(topic.properties)
                plan = replace(plan, topic=new_topic(spark, name, properties, is_plan_only=False))
            if plan.ends.left_behind:
                drop_left_behind(topic, plan.ends, source.now)
                continue
            add_slice(done, execute_ingest(plan))
            taken |= plan.taken
            source = source.without(name, plan.ended)
            if not source.of(name):
                return done
        except SourceError as error:
            # A batch with a valid CRC but malformed records fails only when it is decoded.
            paths = {segment.path for d in source.of(name) for segment in d.segments}
            if error.path is None or error.path not in paths or error.path in refused:
                raise
            refused[error.path] = error
        except UnavailableError:
            if listings == LISTINGS:
                raise
            source = replace(source, directories=list_log_directory(source.uri, source.store))
            listings += 1


def _topic(
    spark: SparkSession, name: TopicName, source: Source, *, is_plan_only: bool
) -> tuple[Topic, bool]:
    """Return the topic after work in flight is finished, and whether it is new.

    A new topic has the source's settings and no tables yet: a source that is entirely refused must
    not create any.
    """
    topic_ids = {d.topic_id for d in source.of(name) if d.topic_id is not None}
    if len(topic_ids) > 1:
        raise ForeignLogError(
            f"expected one topic id in the partition.metadata files of {name.topic}, found "
            f"{', '.join(sorted(topic_ids))}: the directory mixes partitions of different topics. "
            "Copy the broker's directory again, or delete the partitions of the other topic"
        )
    topic = find(spark, name)
    if topic is not None:
        topic = settle(topic, "ingest_segments", is_plan_only=is_plan_only)
        check_takes_ingests(topic)
        make_views(topic, is_plan_only=is_plan_only)
        return topic, False
    config = source.manifest.topic_configs.get(name.topic, {}) if source.manifest else {}
    properties = {f"kafka.{setting}": value for setting, value in config.items()}
    properties |= {**source.settings, **pinned(topic_ids)}
    return new_topic(spark, name, properties, is_plan_only=True), True


def _is_tiered(topic: Topic, source: Source) -> bool:
    """Return whether the log has a remote tier, by the source's or the topic's settings."""
    of_source = source.manifest.topic_configs.get(topic.name.topic, {}) if source.manifest else {}
    of_topic = topic.properties.get(f"kafka.{REMOTE_STORAGE}", "")
    return of_source.get(REMOTE_STORAGE, of_topic).lower() == "true"


def plan_ingest(
    topic: Topic,
    source: Source,
    refused: Mapping[str, SourceError],
    taken: Mapping[str, BatchAt],
) -> IngestPlan:
    """Read the source's batch headers, and decide up to where each partition is ingested."""
    config, states = topic.config, topic.partitions
    event_time = event_time_of(topic.spark, config.event_time)
    directories = {d.partition: d for d in source.of(topic.name)}
    for directory in directories.values():
        check_topic_id(topic, directory.topic_id, directory.path)
    unread = {p: unread_segments(d, states.get(p)) for p, d in directories.items()}
    ends = find_ends(topic, directories)
    held = ends.held
    files = [file for p in unread for file in files_to_walk(p, unread[p], held[p], taken)]
    walked = walk_slice(files, partial(walk_files, topic.spark, batch_limits(config), source.store))
    rule = GapRule(config.is_compacted, source.accept_gap, _is_tiered(topic, source))
    waiting = {file.path for file in walked.waiting}
    logs, walked_of = {}, by_partition(walked.rows)
    for partition, directory in directories.items():
        if directory.error is not None:
            logs[partition] = take_log(refused_whole(directory), held[partition], rule)
            continue
        rows = walked_of.get(partition, walked.rows.slice(0, 0))
        if partition in walked.unfinished and not has_new(rows, held[partition]):
            continue
        first_read = unread[partition][0].base_offset if unread[partition] else 0
        segments = tuple(each for each in directory.segments if each.path not in waiting)
        mine = read_back(replace(directory, segments=segments), first_read, rows, refused)
        logs[partition] = take_log(mine, held[partition], rule)
    refused_partitions = ends.left_behind & {p for p, log in logs.items() if log.errors}
    for partition in refused_partitions:  # the rows of a killed ingest may be the only copy
        logs[partition] = logs[partition].without_news()
    return IngestPlan(
        topic, source, ends.without(refused_partitions), logs, walked.unfinished, event_time
    )


def batch_limits(config: TopicConfig) -> BatchLimits:
    """Return the largest batch sizes that the topic's settings allow."""
    return BatchLimits(
        max(MAX_BATCH_BYTES, config.max_message_bytes), config.max_decompressed_batch_bytes
    )


def unread_segments(
    directory: PartitionDirectory, state: PartitionState | None
) -> Sequence[SegmentFile]:
    """Return the segment files from the one that has the table's last batch.

    A file that begins between the table's active segment and its end may overlap that batch.
    """
    segments = directory.segments
    if state is None:
        return segments
    newest = min(state.active_segment, max(state.log_end_offset, 1) - 1)
    starts = [i for i, file in enumerate(segments) if file.base_offset <= newest]
    return segments[starts[-1] if starts else 0 :]


def execute_ingest(plan: IngestPlan) -> IngestOutcome:
    """Append the planned records, then their batches, then move the state."""
    planned, topic, now = plan.outcome(), plan.topic, plan.source.now
    ranges = [r for p, source_log in plan.logs.items() for r in records_to_read(p, source_log)]
    log_partitions(log, {p: _to_take(numbers) for p, numbers in planned.partitions.items()})
    new = {p: source_log for p, source_log in plan.logs.items() if source_log.batches.num_rows}
    piece = new_slice(
        {
            p: Range(source_log.first_offset, source_log.log_end_offset)
            for p, source_log in new.items()
        },
        now,
    )
    if new:
        topic = claim(topic, Step.FILES_SLICE, FILES_SLICE, piece)
    appended = [_append(plan, ranges, piece)] if ranges else []
    topic_ids = {d.topic_id for d in plan.source.of(topic.name) if d.topic_id is not None}
    origin = {SOURCE: str(Upstream("segments", plan.source.uri)), **pinned(topic_ids)}

    def origin_of(current: Topic, changes: PropertyChanges) -> PropertyChanges:
        """Return the properties of the log's origin that the topic lacks, if there are changes."""
        unsaid = {name: text for name, text in origin.items() if name not in current.properties}
        return unsaid if changes else {}

    claimed = piece if new else None
    beyond, now_ms = plan.ends.batches, to_ms(now)
    _, outcome = end_slice(
        topic, FILES_SLICE, claimed, plan.logs, beyond, now_ms, plan.event_time, origin_of
    )
    outcome.snapshot_ids = appended + outcome.snapshot_ids
    outcome.error = planned.error
    return outcome


def _append(plan: IngestPlan, ranges: Sequence[RecordsToRead], piece: Slice) -> int:
    """Append the records, as Spark rows if an expression or header has the event time."""
    topic, store = plan.topic, plan.source.store
    append_time = pa.scalar(plan.source.now, pa.timestamp("us", tz="UTC"))
    read = partial(records_of, append_time, batch_limits(topic.config), store)
    if plan.event_time is not None:
        frame = records_frame(topic.spark, ranges, read)
        return append_records(topic, frame, plan.event_time, plan.ends.records, piece.id)
    rows = sum(source_log.records for source_log in plan.logs.values())
    return append_read(topic, ranges, read, rows, plan.ends.records, piece.id)


def _to_take(numbers: Mapping[str, Any]) -> str:
    return (
        f"ingesting {number(numbers['records'])} records in {number(numbers['batches'])} batches "
        f"of {size(numbers['bytes'])}, new log end offset {numbers['log_end_offset']}"
    )


def records_to_read(partition: int, log: SourceLog) -> list[RecordsToRead]:
    """Return one byte range per file with new records."""
    return [
        RecordsToRead(
            partition,
            path,
            pc.min(batches.column("position")).as_py(),
            pc.max(pc.add(batches.column("position"), batches.column("size_bytes"))).as_py(),
            log.visible_from,
            batches.column("segment")[0].as_py(),
            log_append_batches(batches),
        )
        for path, batches in log.by_file()
    ]


def _asked(args: Namespace) -> dict[TopicName, Parameters]:
    """List the log directory, and return the topics that the arguments name, or all of them."""
    args.listed = source = Source.of_uri(
        args.source,
        args.now,
        accept_gap=args.accept_gap,
        settings=dict(args.set),
        store=catalog_store(start_spark("ingest_segments")),
    )
    topics = [TopicName(args.cluster, topic) for topic in source.topics()]
    missing = [
        topic_name
        for topic_name in args.topic
        if topic_name.cluster != args.cluster or not source.of(topic_name)
    ]
    if missing:
        raise UnknownTopicError(
            f"expected {', '.join(map(str, missing))} in {source.uri}, found "
            f"{', '.join(map(str, topics)) or 'no topic'}. Check the cluster and the topics"
        )
    return {name: {} for name in sorted(set(args.topic)) or topics}


def _do(spark: SparkSession, name: TopicName, request: PlanRequest) -> JobOutcome:
    args = request.given
    return ingest_segments(spark, name, args.listed, is_plan_only=args.plan_only)


INGEST_SEGMENTS: Job[Any] = Job("ingest_segments", _do, asked=_asked, is_of_source=True)
