"""Checks of the lake: catalog, rights in its storage, and the two clocks."""

from __future__ import annotations

from datetime import UTC, datetime

from ebbtide import open_lake
from ebbtide.commands.checks.check import Checks, ProblemError, by_setup
from ebbtide.commands.checks.installation import RENDER
from ebbtide.lake.catalog_settings import catalog_settings, defaults_path, read_defaults
from ebbtide.lake.reader import Lake
from ebbtide.lake.storage import ProbedFile, probe_storage
from ebbtide.log.attempts import Run
from ebbtide.moments import earlier, minute
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.text import span

CHECKS = Checks()
MOST_SECONDS_APART = 60
INGESTS = ("ingest_segments", "ingest_topic", "ingest_table")
MANY = 3  # limits after which something should have been removed
MOST_SHOWN = 5  # topics or partitions of a warning
DAY_MS = 86_400_000
SETTINGS = "the lines spark.sql.catalog.lake.* of conf/spark-defaults.conf"


@CHECKS.add(
    "catalog",
    "a catalog that answers",
    f"bring it up, or correct {SETTINGS}, then {by_setup(RENDER)}",
)
def _catalog() -> str:
    settings = catalog_settings(read_defaults(defaults_path()))
    with open_lake() as lake:
        topics = lake.topic_names()
        is_new = lake.catalog is None
    if is_new:
        return f"{settings['type']}, to which nothing was written yet"
    return f"{settings['type']}, {len(topics)} topics"


@CHECKS.add(
    "topics", "tables of every topic that open", "see docs/operations.md, UnreadableTableError"
)
def _topics() -> str:
    with open_lake() as lake:
        names = lake.topic_names()
        for name in names:
            lake.topic(name)
            lake.live_rows(name)
    return f"{len(names)} of {len(names)}"


@CHECKS.add(
    "timestamps",
    "timestamps in milliseconds, by the last ingest of each topic",
    "let the producers send milliseconds: every limit of time goes by them",
    is_needed=False,
)
def _timestamps() -> str:
    with open_lake() as lake:
        ingests = lake.runs(datetime.now(UTC) - HISTORY, job=INGESTS)
    odd = [
        f"{run.topic} partition {partition}: {numbers['note']}"
        for run in {run.topic: run for run in ingests}.values()
        for partition, numbers in sorted(run.partitions.items())
        if "timestamp_unit" in numbers
    ]
    if odd:
        raise ProblemError("; ".join(odd[:MOST_SHOWN]))
    return "no topic with another unit"


@CHECKS.add(
    "retention",
    f"no event {MANY} times as old as retention.ms in a topic that lost nothing",
    "see what holds it back on the topic's page, or in the report of its last night",
    is_needed=False,
)
def _retention() -> str:
    clock = datetime.now(UTC)
    with open_lake() as lake:
        expiries = lake.runs(clock - HISTORY, job="expire_segments")
        removing = {run.topic for run in expiries if run.rows_removed or run.bytes_removed}
        newest = {run.topic: run for run in expiries if run.succeeded}
        names = [name for name in lake.topic_names() if name not in removing]
        stuck = [
            found
            for name in names
            if not lake.is_adopted(name)
            and (found := _overdue(lake, name, clock, newest.get(name))) is not None
        ]
    if stuck:
        raise ProblemError("; ".join(stuck[:MOST_SHOWN]))
    return f"{len(names)} topics lost nothing, and hold nothing so old"


def _overdue(lake: Lake, name: str, clock: datetime, run: Run | None) -> str | None:
    """Return how old a topic is beyond its limit and what holds it back; None if it is not."""
    config, clock_ms = lake.topic(name).config, int(clock.timestamp() * 1000)
    limit_ms = config.retention_ms
    if not (config.is_enabled and config.is_deleted) or limit_ms is None or limit_ms < 0:
        return None
    oldest_ms = lake.summary(name).oldest_event_ms
    if oldest_ms is None or oldest_ms >= earlier(clock_ms, MANY * max(limit_ms, DAY_MS)):
        return None
    why = ": no expire_segments has run on it"
    if run is not None:
        notes = [f": {of['note']}" for of in run.partitions.values() if "note" in of]
        why = "".join(notes[:1])
    return (
        f"{name}: retention.ms is {span(limit_ms)}, its oldest event is of {minute(oldest_ms)} "
        f"UTC, and nothing was removed in {HISTORY.days} days{why}"
    )


@CHECKS.add(
    "storage",
    "a file can be written, read and deleted",
    f"grant these credentials read, write and delete there, or correct {SETTINGS}",
)
def _storage() -> str:
    return _probed().folder


@CHECKS.add(
    "clock",
    f"this machine and the storage at most {MOST_SECONDS_APART} s apart",
    "let both follow a time server: snapshots are aged on the clock of who commits",
)
def _clock() -> str:
    apart = _probed().seconds_behind
    if apart is None:
        return "the storage does not tell when a file was written"
    if abs(apart) > MOST_SECONDS_APART:
        raise ProblemError(f"{apart:.0f} s apart")
    return f"{abs(apart):.0f} s apart"


def _probed() -> ProbedFile:
    with open_lake() as lake:
        return probe_storage(lake)
