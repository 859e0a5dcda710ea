"""A topic's page: its partitions, what was removed and when more goes, settings, runs, replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ebbtide.lake.contents import PartitionContents, read_contents
from ebbtide.lake.reader import Lake, LakeTopic, Run, read_replica
from ebbtide.log.delete_answers import INVALID_LOW_WATERMARK
from ebbtide.log.replica_lag import is_behind
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.orchestration.deletions import HISTORY, newest_deletion
from ebbtide.orchestration.pages.charts import Bar, Chart, bar
from ebbtide.orchestration.pages.views.topic.queries import Query, queries
from ebbtide.orchestration.pages.views.topic.settings import SettingRow, form_of, setting_rows
from ebbtide.orchestration.pages.views.topic.trends import Removal, removals, trends

PARTITIONS_A_PAGE = 50
RUNS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition with its bar; a low watermark is None until a job has asked the replicas."""

    partition: int
    state: PartitionState
    contents: PartitionContents
    low_watermark: int | None
    waits_for_round: bool
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A replica; None where it cannot be read from here."""

    name: str
    topic: LakeTopic | None
    is_behind: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHorizon:
    """The time from which on a round removes tombstones or markers of these partitions."""

    at_ms: int
    partitions: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """The page of one topic; partitions are those of the page asked for, totals are of all."""

    topic: LakeTopic
    records: int
    file_bytes: int
    oldest_event_ms: int | None
    partitions: Sequence[PartitionRow]
    partition_count: int
    page: int
    pages: int
    horizons: Sequence[DueHorizon]
    deletion: str
    charts: Sequence[Chart]
    removals: Sequence[Removal]
    settings: Sequence[SettingRow]
    form: str
    runs: Sequence[Run]
    replicas: Sequence[ReplicaRow]
    queries: Sequence[Query]

    @property
    def has_drift(self) -> bool:
        """Whether the brokers have a setting differently."""
        return any(row.broker is not None for row in self.settings)


def topic_page(lake: Lake, name: str, page: int) -> TopicPage:
    """Read a topic for its page; UnknownTopicError where there is none."""
    topic = lake.topic(name)
    clock = datetime.now(UTC)
    runs = lake.runs(clock - HISTORY, topic=name)
    contents = read_contents(lake, name)
    replicas = [_replica(topic, str(of), read_replica(topic, of)) for of in topic.config.replicas]
    rows = setting_rows(topic, runs)
    deletion = newest_deletion(topic, runs, clock)
    pages = max(-(-len(topic.partitions) // PARTITIONS_A_PAGE), 1)
    page = min(max(page, 1), pages)
    return TopicPage(
        topic=topic,
        records=sum(of.records for of in contents.values()),
        file_bytes=sum(of.file_bytes for of in contents.values()),
        oldest_event_ms=_oldest_event(contents.values()),
        partitions=_partitions(topic, contents, replicas, runs, page),
        partition_count=len(topic.partitions),
        page=page,
        pages=pages,
        horizons=due_horizons(topic.partitions),
        deletion=deletion.in_words()
        if deletion
        else f"Nothing was deleted in the last {HISTORY.days} days.",
        charts=trends(runs),
        removals=removals(runs),
        settings=rows,
        form=form_of(name, any(row.broker is not None for row in rows)),
        runs=runs[: -RUNS_SHOWN - 1 : -1],
        replicas=replicas,
        queries=queries(name, lake.records(name).metadata_location),
    )


def low_watermarks(runs: Iterable[Run]) -> dict[int, int]:
    """Return the newest low watermark of each partition that a job reported."""
    return {
        partition: numbers["low_watermark"]
        for run in runs
        for partition, numbers in run.partitions.items()
        if numbers.get("low_watermark", INVALID_LOW_WATERMARK) != INVALID_LOW_WATERMARK
    }


def due_horizons(states: Mapping[int, PartitionState]) -> list[DueHorizon]:
    """Return the next horizon of each partition, soonest first, with those of the same minute."""
    by_minute: dict[int, list[int]] = {}
    for partition, state in states.items():
        if (at_ms := state.next_horizon_ms) is not None:
            by_minute.setdefault(at_ms // 60_000, []).append(partition)
    return [
        DueHorizon(
            at_ms=max(states[p].next_horizon_ms or 0 for p in partitions), partitions=partitions
        )
        for _, partitions in sorted(by_minute.items())
    ]


def _partitions(
    topic: LakeTopic,
    contents: Mapping[int, PartitionContents],
    replicas: Sequence[ReplicaRow],
    runs: Sequence[Run],
    page: int,
) -> list[PartitionRow]:
    watermarks = low_watermarks(runs)
    start = (page - 1) * PARTITIONS_A_PAGE
    return [
        PartitionRow(
            partition=partition,
            state=state,
            contents=contents.get(partition, PartitionContents()),
            low_watermark=watermarks.get(
                partition, None if topic.has_replicas else state.log_start_offset
            ),
            waits_for_round=topic.config.is_compacted and state.next_clean_ms == 0,
            bar=bar(state, _starts(replicas, partition)),
        )
        for partition, state in list(topic.partitions.items())[start : start + PARTITIONS_A_PAGE]
    ]


def _starts(replicas: Sequence[ReplicaRow], partition: int) -> dict[str, int]:
    return {
        replica.name: replica.topic.partitions[partition].log_start_offset
        for replica in replicas
        if replica.topic is not None and partition in replica.topic.partitions
    }


def _replica(topic: LakeTopic, name: str, replica: LakeTopic | None) -> ReplicaRow:
    behind = None if replica is None else is_behind(topic.properties, replica.properties)
    return ReplicaRow(name=name, topic=replica, is_behind=behind)


def _oldest_event(contents: Iterable[PartitionContents]) -> int | None:
    oldest = [of.oldest_event_ms for of in contents if of.oldest_event_ms is not None]
    return min(oldest, default=None)
