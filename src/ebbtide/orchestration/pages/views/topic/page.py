"""A topic's page: its partitions, what was removed and when more goes, settings, runs, replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from ebbtide.lake.contents import (
    PartitionContents,
    summarize_contents,
)
from ebbtide.lake.holds import HoldStanding, read_holds
from ebbtide.lake.reader import Lake, LakeTopic, read_replica
from ebbtide.lake.runs import count_removals, low_watermarks
from ebbtide.log.adopted.missing import in_words
from ebbtide.log.attempts import Run
from ebbtide.log.replica_lag import is_behind
from ebbtide.log.state.topic_state import PartitionState
from ebbtide.log.undo.points import UNDO_POINTS
from ebbtide.moments import to_datetime
from ebbtide.orchestration.deletions import HISTORY, newest_deletion
from ebbtide.orchestration.pages.charts import bar
from ebbtide.orchestration.pages.views.adopted import adopted, possible
from ebbtide.orchestration.pages.views.holds import held_offsets
from ebbtide.orchestration.pages.views.topic.queries import queries
from ebbtide.orchestration.pages.views.topic.settings import setting_rows
from ebbtide.orchestration.pages.views.topic.trends import trends
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


class ReplicaRow(NamedTuple):
    """A replica; None where it cannot be read from here."""

    name: str
    topic: LakeTopic | None
    is_behind: bool | None


class DueHorizon(NamedTuple):
    """The time from which on a round removes tombstones or markers of these partitions."""

    at_ms: int
    partitions: Sequence[int]


def topic_page(lake: Lake, name: str, page: int) -> dict[str, Any]:
    """Return the page of a topic; `partitions` are those of the page asked for."""
    topic, clock = lake.topic(name), datetime.now(UTC)
    runs = lake.runs(clock - HISTORY, topic=name)
    contents = lake.contents(name)
    replicas = [_replica(topic, str(of), read_replica(topic, of)) for of in topic.config.replicas]
    settings = setting_rows(topic, runs)
    holds = read_holds(lake, clock, name)
    points = lake.own_rows(UNDO_POINTS, clock - HISTORY, topic=name)
    deletion = newest_deletion(topic, runs, clock, points)
    pages = max(-(-len(topic.partitions) // PARTITIONS_A_PAGE), 1)
    page = min(max(page, 1), pages)
    horizons, forms = due_horizons(topic.partitions), possible(topic, FORMS)
    missing = [
        in_words(state.missing, partition)
        for partition, state in topic.partitions.items()
        if state.missing
    ]
    return {
        "topic": topic,
        "summary": summarize_contents(topic.config, topic.partitions, contents),
        "partitions": _partitions(topic, contents, replicas, holds, runs, page),
        "page": page,
        "pages": pages,
        "horizons": horizons,
        "days": due_days(horizons, clock.date()),
        "deletion": deletion.in_words()
        if deletion
        else f"Nothing was deleted in the last {HISTORY.days} days.",
        "held_back": held_back(runs),
        "missing": [f"{text[0].upper()}{text[1:]}." for text in missing[:NOTES_SHOWN]],
        "charts": trends(runs),
        "removals": count_removals(runs).most_common(),
        "settings": settings,
        "has_drift": any(row.broker is not None for row in settings),
        "runs": runs[: -RUNS_SHOWN - 1 : -1],
        "replicas": replicas,
        "holds": holds,
        "queries": queries(name, lake.records(name).metadata_location, is_adopted=topic.is_adopted),
        "adopted": adopted(topic),
        "forms": {dag: FORMS[dag] for dag in forms},
        "can_configure": "configure_topic" in forms,
        "is_compacted": topic.config.is_compacted,
    }


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
    by_minute: dict[int, DueHorizon] = {}
    for partition, state in states.items():
        if (at_ms := state.next_horizon_ms) is not None:
            due = by_minute.get(at_ms // 60_000, DueHorizon(at_ms, ()))
            by_minute[at_ms // 60_000] = DueHorizon(
                max(at_ms, due.at_ms), (*due.partitions, partition)
            )
    return [due for _, due in sorted(by_minute.items())]


def due_days(horizons: Sequence[DueHorizon], today: date) -> list[tuple[date, int]]:
    """Return the partitions due on each of the next `DAYS` days; today has what is overdue too."""
    counts: Counter[date] = Counter()
    for due in horizons:
        counts[max(to_datetime(due.at_ms).date(), today)] += len(due.partitions)
    days = (today + timedelta(days=number) for number in range(DAYS))
    return [(day, counts[day]) for day in days]


def _partitions(
    topic: LakeTopic,
    contents: Mapping[int, PartitionContents],
    replicas: Sequence[ReplicaRow],
    holds: Sequence[HoldStanding],
    runs: Sequence[Run],
    page: int,
) -> list[dict[str, Any]]:
    """Return the rows; a low watermark is None until a job has asked the replicas."""
    watermarks, is_compacted = low_watermarks(runs), topic.config.is_compacted
    start = (page - 1) * PARTITIONS_A_PAGE
    return [
        {
            "partition": partition,
            "state": state,
            "contents": contents.get(partition, PartitionContents()),
            "low_watermark": watermarks.get(
                partition, None if topic.has_replicas else state.log_start_offset
            ),
            "waits_for_round": is_compacted and state.next_clean_ms == 0,
            "bar": bar(
                state,
                _starts(replicas, partition),
                _held(holds, partition, state),
                is_compacted=is_compacted,
            ),
        }
        for partition, state in list(topic.partitions.items())[start : start + PARTITIONS_A_PAGE]
    ]


def _held(
    holds: Sequence[HoldStanding], partition: int, state: PartitionState
) -> list[tuple[int, int, str]]:
    """Return what is held of a partition's log, and by which hold."""
    first = min(state.log_start_offset, state.first_segment)
    ranges = held_offsets(holds, partition, first, state.log_end_offset)
    return [(a, b, f"{hold} from {number(a)} to {number(b)}") for hold, a, b in ranges]


def _starts(replicas: Sequence[ReplicaRow], partition: int) -> dict[str, int]:
    return {
        replica.name: replica.topic.partitions[partition].log_start_offset
        for replica in replicas
        if replica.topic is not None and partition in replica.topic.partitions
    }


def _replica(topic: LakeTopic, name: str, replica: LakeTopic | None) -> ReplicaRow:
    behind = None if replica is None else is_behind(topic.properties, replica.properties)
    return ReplicaRow(name, replica, behind)
