"""The report of a run: removed and retained records by partition, and the seconds of stages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from textwrap import fill
from typing import Any, cast

from ebbtide.errors import EbbtideError
from ebbtide.kafka.low_watermarks import INVALID_LOW_WATERMARK
from ebbtide.lake.own_tables import read_all_holds, review_warnings
from ebbtide.lake.reader import Lake
from ebbtide.lake.runs import failed
from ebbtide.ledger.own_tables import Run
from ebbtide.ledger.results import (
    CleanedPartition,
    ConfiguredTopic,
    DeletedPartition,
    ExpiredPartition,
)
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.moments import minute, to_ms
from ebbtide.orchestration.deletions import HISTORY, DeletionDates, newest_deletion
from ebbtide.orchestration.erasures import late_replicas
from ebbtide.orchestration.outcome import cause_of
from ebbtide.text import (
    WIDTH,
    aligned,
    changes_in_words,
    in_ranges,
    number,
    seconds,
    size,
    without_empty,
)

log = logging.getLogger(__name__)

PARTITION_HEADER = (
    "topic",
    "part",
    "records\nbefore",
    "records\nafter",
    "bytes\nbefore",
    "bytes\nafter",
    "superseded",
    "aborted",
    "tombstones\nretained",
    "tombstones\nremoved",
    "next horizon\ndue (UTC)",
    "segments\nexpired",
    "records\nexpired",
    "records\ndeleted",
    "log start\noffset",
    "low\nwatermark",
)
ON_DISK = ("bytes_written", "bytes_freed", "bytes_kept")
NOTHING_CHANGED = "nothing to do: no record, segment or file was changed"


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic's current delete horizons and its newest removal."""

    topic: str
    horizons_ms: Mapping[int, int | None] = field(default_factory=dict)
    deletion: DeletionDates | None = None
    cleans_without_new_data: bool = False
    late_replicas: Sequence[str] = ()  # that may miss the deadline of erasure, or have missed it
    problem: str = ""  # why the other fields are unknown


def find_run(lake: Lake, run_id: str | None = None) -> list[Run]:
    """Return the rows of a run, or of the newest run without an id. Read the last week first."""
    chosen: dict[str, str] = {} if run_id is None else {"run_id": run_id}
    for days in (7, 60, 400, None):
        since = None if days is None else datetime.now(UTC) - timedelta(days=days)
        if runs := lake.runs(since, **chosen):
            # A run that began before that day has older rows.
            of_run = runs[-1].run_id
            return lake.runs(runs[0].started - timedelta(days=7), run_id=of_run)
    return []


def render_run(lake: Lake, run_id: str, runs: Sequence[Run]) -> str:
    """Return the report of a run, from its rows and the current state of its topics."""
    if not runs:
        return f"run {run_id or '(none)'}: nothing to do, no job was started"
    topics = topics_now(lake, run_id, runs)
    return "\n".join(
        [
            f"run {run_id}  now {runs[0].now:%Y-%m-%d %H:%M:%S} UTC",
            *([] if any(map(changed, runs)) else [NOTHING_CHANGED]),
            "",
            partition_table(runs, {now.topic: now.horizons_ms for now in topics}),
            "",
            topic_table(runs),
            "",
            *(f"{run.topic}: {line}" for run in runs for line in changes_in_words(_changes(run))),
            *(fill(f"{n.topic}: {n.deletion.in_words()}", WIDTH) for n in topics if n.deletion),
            *(fill(f"{now.topic}: {now.problem}.", WIDTH) for now in topics if now.problem),
            *(fill(line, WIDTH) for line in promises(topics)),
            *(fill(f"{now.topic}: {text}.", WIDTH) for now in topics for text in now.late_replicas),
            *(fill(line, WIDTH) for line in notes(runs)),
            *(fill(line, WIDTH) for line in held(lake, runs)),
            *(f"FAILED {run.topic} in {run.task}: {cause_of(run)}" for run in failed(runs)),
        ]
    ).rstrip()


def promises(topics: Iterable[TopicNow]) -> list[str]:
    """List each topic's next delete horizon, if its due records need no new data to be removed.

    Kafka would wait for new data.
    """
    return [
        f"{now.topic}: a delete horizon is due at {minute(min(dues))} UTC. The first run at or "
        "after that time removes its tombstones and markers, with or without new data."
        for now in topics
        if now.cleans_without_new_data
        and (dues := [horizon_ms for horizon_ms in now.horizons_ms.values() if horizon_ms])
    ]


def notes(runs: Iterable[Run]) -> list[str]:
    """List the notes of a run. A note that several partitions share is listed once."""
    lines = []
    for run in runs:
        if "note" in run.topic_result:
            lines.append(f"{run.topic}: {run.topic_result['note']}.")
        lines += [f"{run.topic} {where}: {note}." for where, note in notes_of_partitions(run)]
    return lines


def notes_of_partitions(run: Run) -> list[tuple[str, str]]:
    """Return each note of a run with its partitions in words, as (partitions, note)."""
    by_note: dict[str, list[int]] = {}
    for partition, numbers in run.partitions.items():
        if "note" in numbers:
            by_note.setdefault(str(numbers["note"]), []).append(partition)
    return [
        (f"{'partition' if len(partitions) == 1 else 'partitions'} {in_ranges(partitions)}", note)
        for note, partitions in by_note.items()
    ]


def held(lake: Lake, runs: Sequence[Run]) -> list[str]:
    """List the copies that a run made for holds, and the holds on its topics to review."""
    kept = [
        f"{run.topic}: {run.job} copied {number(records)} records for {hold}."
        for run in runs
        for hold, records in run.topic_result.get("copied_for_holds", {}).items()
    ]
    topics = {run.topic for run in runs}
    try:
        standings, problems = read_all_holds(lake, datetime.now(UTC))
    except EbbtideError as error:
        return [*kept, f"The holds cannot be read: {error}."]
    due = review_warnings(standing for standing in standings if standing.hold.topic in topics)
    unread = [f"{topic}: {problems[topic]}" for topic in sorted(topics & problems.keys())]
    return [*kept, *(f"{warning}." for warning in [*due, *unread])]


def changed(run: Run) -> bool:
    """Return whether an attempt committed, set or removed anything."""
    return bool(
        run.snapshot_ids
        or run.rows_removed
        or run.files_removed
        or run.bytes_removed
        or run.topic_result.get("bytes_freed")
        or any(before != after for before, after in _changes(run).values())
    )


def _changes(run: Run) -> Mapping[str, Sequence[str | None]]:
    """Return the settings that a run changed, as (before, after). Rows of old versions lack it."""
    changes = cast("ConfiguredTopic", run.topic_result).get("changes", {})
    return {name: pair for name, pair in changes.items() if isinstance(pair, list)}


def topics_now(lake: Lake, run_id: str, runs: Sequence[Run]) -> list[TopicNow]:
    """Return the current state of a run's topics, from the rows since `HISTORY` before the run."""
    topics = sorted({run.topic for run in runs})
    history = lake.runs(runs[0].started - HISTORY, topic=topics)
    return [
        topic_now(lake, topic, run_id, [run for run in history if run.topic == topic])
        for topic in topics
    ]


def topic_now(lake: Lake, topic: str, run_id: str, history: Sequence[Run]) -> TopicNow:
    """Return the topic's current state, empty if a later run worked on it or it is unreadable."""
    if history and history[-1].run_id != run_id:
        return TopicNow(topic)
    try:
        described = lake.topic(topic)
        horizons = {p: state.next_horizon_ms for p, state in described.partitions.items()}
        cleans_without_new_data = described.config.cleans_without_new_data
        clock = datetime.now(UTC)
        points = lake.own_rows(UNDO_POINTS, clock - HISTORY, topic=topic)
        deletion = newest_deletion(described, history, clock, points)
        late = [replica.text for replica in late_replicas(described, to_ms(clock))]
    except EbbtideError:
        return TopicNow(topic)
    except Exception as error:  # one topic's state must not hide the report of all other topics
        log.exception("ebbtide: %s: the report has no delete horizons and dates of it", topic)
        problem = f"its delete horizons and dates are unknown: {type(error).__name__}: {error}"
        return TopicNow(topic, problem=problem)
    return TopicNow(topic, horizons, deletion, cleans_without_new_data, late)


def partition_table(
    runs: Sequence[Run], horizons_ms: Mapping[str, Mapping[int, int | None]]
) -> str:
    """Format one line for each topic and partition, with the numbers of the run's jobs."""
    rows = []
    for topic in sorted({run.topic for run in runs}):
        topic_runs = [run for run in runs if run.topic == topic and run.succeeded]
        partitions = sorted({partition for run in topic_runs for partition in run.partitions})
        for partition in partitions:
            by_job = {
                run.job: _numbers_of_partition(run, partition)
                for run in topic_runs
                if partition in run.partitions
            }
            cells = _partition_cells(by_job, horizons_ms.get(topic, {}).get(partition))
            rows.append([topic, str(partition), *cells])
    return aligned(*without_empty(PARTITION_HEADER, rows))


def topic_table(runs: Sequence[Run]) -> str:
    """Format one line per topic: bytes rewritten, freed and on disk, and each stage's seconds."""
    tasks = list(dict.fromkeys(run.task or run.job for run in runs))
    header = (
        "topic",
        "bytes\nrewritten",
        "bytes\nfreed",
        "bytes\non disk",
        *(f"{task}\nseconds" for task in tasks),
    )
    rows = []
    for topic in sorted({run.topic for run in runs}):
        topic_runs = {run.task or run.job: run for run in runs if run.topic == topic}
        disk = {
            k: v for run in topic_runs.values() for k, v in run.topic_result.items() if k in ON_DISK
        }
        cells = [size(disk.get(key)) for key in ON_DISK]
        took = (topic_runs[task].seconds if task in topic_runs else None for task in tasks)
        rows.append([topic, *cells, *map(seconds, took)])
    return aligned(*without_empty(header, rows))


def _numbers_of_partition(run: Run, partition: int) -> Mapping[str, Any]:
    """Return a job's numbers for a partition. If it is the only one, include the topic's."""
    numbers = run.partitions[partition]
    return {**run.topic_result, **numbers} if len(run.partitions) == 1 else numbers


def _partition_cells(
    by_job: Mapping[str, Mapping[str, Any]], next_horizon_ms: int | None
) -> list[str]:
    clean = cast("CleanedPartition", by_job.get("clean_log", {}))
    expired = cast("ExpiredPartition", by_job.get("expire_segments", {}))
    deleted = cast("DeletedPartition", by_job.get("delete_records", {}))
    newest = list(by_job.values())[-1]
    records = _before_after("records", by_job.values())
    log_bytes = _before_after("bytes", by_job.values())
    return [
        *map(number, records),
        *map(number, log_bytes),
        number(clean.get("superseded")),
        number(clean.get("aborted")),
        number(clean.get("tombstones_kept")),
        number(clean.get("tombstones_removed")),
        minute(clean.get("next_horizon_ms", next_horizon_ms)),
        number(expired.get("segments_expired")),
        number(expired.get("records_expired") or None),
        number(deleted.get("records_removed") or None),
        number(newest.get("log_start_offset")),
        _before_to_after(_low_watermark_before(by_job.values()), _low_watermark(by_job.values())),
    ]


def _low_watermark(by_job: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the newest low watermark that a job recorded. Most jobs do not ask the replicas."""
    known = [numbers.get("low_watermark", INVALID_LOW_WATERMARK) for numbers in by_job]
    return next((mark for mark in reversed(known) if mark != INVALID_LOW_WATERMARK), None)


def _low_watermark_before(by_job: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the low watermark before the first job that recorded it."""
    known = (numbers.get("low_watermark_before", INVALID_LOW_WATERMARK) for numbers in by_job)
    return next((mark for mark in known if mark != INVALID_LOW_WATERMARK), None)


def _before_to_after(before: int | None, after: int | None) -> str:
    """Return `before → after` if both are known and differ, or else the number after."""
    if before is None or after is None or before == after:
        return number(after)
    return f"{number(before)} → {number(after)}"


def _before_after(what: str, by_job: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """Return the count before the first job and the count after the last job."""
    counted = [numbers for numbers in by_job if f"{what}_before" in numbers]
    if not counted:
        return None, None
    return counted[0][f"{what}_before"], counted[-1][f"{what}_after"]
