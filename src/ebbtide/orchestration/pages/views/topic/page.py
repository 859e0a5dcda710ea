"""A topic's page: its partitions, what was removed and when more goes, settings, runs, replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from ebbtide.lake.contents import PartitionContents, oldest_event_ms, read_contents
from ebbtide.lake.reader import Lake, LakeTopic, Run, read_replica
from ebbtide.lake.undo_points import read_undo_points
from ebbtide.log.adopted.missing import in_words
from ebbtide.log.replica_lag import is_behind
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.moments import to_datetime
from ebbtide.orchestration.deletions import HISTORY, newest_deletion
from ebbtide.orchestration.pages.charts import Bar, Chart, bar
from ebbtide.orchestration.pages.views.adopted import Adopted, adopted, possible
from ebbtide.orchestration.pages.views.holds import HoldRow, held_offsets, standing_holds
from ebbtide.orchestration.pages.views.low_watermarks import low_watermarks
from ebbtide.orchestration.pages.views.topic.queries import Query, queries
from ebbtide.orchestration.pages.views.topic.settings import SettingRow, setting_rows
from ebbtide.orchestration.pages.views.topic.trends import Removal, removals, trends
from ebbtide.orchestration.report import notes_of_partitions
from ebbtide.text import number

PARTITIONS_A_PAGE = 50
RUNS_SHOWN = 20
DAYS = 14  # of horizons that are due
NOTES_SHOWN = 10
# The jobs whose notes on partitions name what holds records back.
HOLDING_BACK = ("clean_log", "expire_segments")
# The forms that a topic's page leads to, and the text of each link.
FORMS: Mapping[str, str] = {
    "delete_records": "Delete records",
    "configure_topic": "Change settings",
    "erase_keys": "Erase keys",
    "hold_records": "Hold records",
}


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
class DueDay:
    """A day from today on, and how many partitions have their next horizon on it."""

    day: date
    partitions: int


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
    days: Sequence[DueDay]
    deletion: str
    held_back: Sequence[str]  # what keeps records that a rule would remove, by partition
    missing: Sequence[str]  # the offsets that never arrived, by partition
    charts: Sequence[Chart]
    removals: Sequence[Removal]
    settings: Sequence[SettingRow]
    runs: Sequence[Run]
    replicas: Sequence[ReplicaRow]
    holds: Sequence[HoldRow]
    queries: Sequence[Query]
    adopted: Adopted | None

    @property
    def forms(self) -> Mapping[str, str]:
        """The forms of jobs that work on the topic, and the text of each link."""
        return {dag: FORMS[dag] for dag in possible(self.topic, FORMS)}

    @property
    def is_compacted(self) -> bool:
        """Whether rounds clean the topic, so that a part of it may be dirty."""
        return self.topic.config.is_compacted

    @property
    def can_configure(self) -> bool:
        """Whether configure_topic works on the topic."""
        return "configure_topic" in self.forms

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
    holds = standing_holds(lake, clock, name)
    points = read_undo_points(lake, name, clock - HISTORY)
    deletion = newest_deletion(topic, runs, clock, points)
    pages = max(-(-len(topic.partitions) // PARTITIONS_A_PAGE), 1)
    page = min(max(page, 1), pages)
    return TopicPage(
        topic=topic,
        records=sum(of.records for of in contents.values()),
        file_bytes=sum(of.file_bytes for of in contents.values()),
        oldest_event_ms=oldest_event_ms(contents.values()),
        partitions=_partitions(topic, contents, replicas, holds, runs, page),
        partition_count=len(topic.partitions),
        page=page,
        pages=pages,
        horizons=(horizons := due_horizons(topic.partitions)),
        days=due_days(horizons, clock.date()),
        deletion=deletion.in_words()
        if deletion
        else f"Nothing was deleted in the last {HISTORY.days} days.",
        held_back=held_back(runs),
        missing=[
            f"{text[0].upper()}{text[1:]}."
            for partition, state in topic.partitions.items()
            if state.missing
            for text in [in_words(state.missing, partition)]
        ][:NOTES_SHOWN],
        charts=trends(runs),
        removals=removals(runs),
        settings=rows,
        runs=runs[: -RUNS_SHOWN - 1 : -1],
        replicas=replicas,
        holds=holds,
        queries=queries(
            name, lake.records(name).metadata_location, is_adopted=lake.is_adopted(name)
        ),
        adopted=adopted(topic),
    )


def held_back(runs: Sequence[Run]) -> list[str]:
    """Return what the newest round and the newest expiry say keeps records from being removed.

    A reason is one line, with its partitions.
    """
    newest = {run.job: run for run in runs if run.succeeded and run.job in HOLDING_BACK}
    lines = [
        f"{where.capitalize()}: {note}."
        for job in HOLDING_BACK
        if job in newest
        for where, note in notes_of_partitions(newest[job])
    ]
    return lines[:NOTES_SHOWN]


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


def due_days(horizons: Sequence[DueHorizon], today: date) -> list[DueDay]:
    """Return the next `DAYS` days, of which today has what is overdue too."""
    counts: Counter[date] = Counter()
    for due in horizons:
        day = to_datetime(due.at_ms).date()
        counts[max(day, today)] += len(due.partitions)
    days = (today + timedelta(days=number) for number in range(DAYS))
    return [DueDay(day=day, partitions=counts[day]) for day in days]


def _partitions(
    topic: LakeTopic,
    contents: Mapping[int, PartitionContents],
    replicas: Sequence[ReplicaRow],
    holds: Sequence[HoldRow],
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
            bar=bar(
                state,
                _starts(replicas, partition),
                _held(holds, partition, state),
                is_compacted=topic.config.is_compacted,
            ),
        )
        for partition, state in list(topic.partitions.items())[start : start + PARTITIONS_A_PAGE]
    ]


def _held(
    holds: Sequence[HoldRow], partition: int, state: PartitionState
) -> list[tuple[int, int, str]]:
    """Return what is held of a partition's log, and by which hold."""
    first = min(state.log_start_offset, state.first_segment)
    ranges = held_offsets(holds, partition, first, state.log_end_offset)
    return [
        (start, end, f"{of.hold} from {number(start)} to {number(end)}")
        for of, start, end in ranges
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
