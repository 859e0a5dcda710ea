"""Checks of the lake: catalog, rights in its storage, and the two clocks."""

from __future__ import annotations

from ebbtide.commands.checks.check import Probe, ProblemError
from ebbtide.lake.catalog_settings import catalog_settings, defaults_path, read_defaults
from ebbtide.lake.reader import open_lake
from ebbtide.lake.storage import ProbedFile, probe_storage

MOST_SECONDS_APART = 60
SETTINGS = "the lines spark.sql.catalog.lake.* of conf/spark-defaults.conf"


def probes() -> list[Probe]:
    """Return the checks, each of which needs those before it."""
    return [
        Probe(
            "catalog",
            "a catalog that answers",
            f"bring it up, or correct {SETTINGS}, then `make setup`",
            _catalog,
        ),
        Probe(
            "topics",
            "tables of every topic that open",
            "see docs/operations.md, UnreadableTableError",
            _topics,
        ),
        Probe(
            "storage",
            "a file can be written, read and deleted",
            f"grant these credentials read, write and delete there, or correct {SETTINGS}",
            _storage,
        ),
        Probe(
            "clock",
            f"this machine and the storage at most {MOST_SECONDS_APART} s apart",
            "let both follow a time server: snapshots are aged on the clock of who commits",
            _clock,
        ),
    ]


def _catalog() -> str:
    settings = catalog_settings(read_defaults(defaults_path()))
    with open_lake() as lake:
        topics = lake.topic_names()
        is_new = lake.catalog is None
    if is_new:
        return f"{settings['type']}, to which nothing was written yet"
    return f"{settings['type']}, {len(topics)} topics"


def _topics() -> str:
    with open_lake() as lake:
        names = lake.topic_names()
        for name in names:
            lake.topic(name)
            lake.live_rows(name)
    return f"{len(names)} of {len(names)}"


def _storage() -> str:
    return _probed().folder


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
