"""Checks of an installation. Each reports what it expected, what it found, and the remedy."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ebbtide import open_lake
from ebbtide.lake.catalog_settings import catalog_settings, defaults_path, read_defaults
from ebbtide.lake.reader import Lake, ProbedFile, probe_storage
from ebbtide.ledger.own_tables import Run
from ebbtide.moments import earlier, minute
from ebbtide.orchestration.deletions import HISTORY
from ebbtide.orchestration.driver_inputs import paths
from ebbtide.text import one_line, span

Adds = Callable[[Callable[[], str]], Callable[[], str]]


class Status(StrEnum):
    """The status of a check. A warning means that something works, but slowly or incompletely."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    name: str
    status: Status
    expected: str
    found: str
    remedy: str = ""  # empty if the check passed


class Checks:
    """Checks in order. Each relies on the earlier checks."""

    def __init__(self) -> None:
        self._made: list[Callable[[], Check]] = []
        self.remedies: dict[str, str] = {}

    def add(self, name: str, expected: str, remedy: str, *, is_needed: bool = True) -> Adds:
        """Add a check. The decorated function returns the state that it found, or raises."""

        def added(look: Callable[[], str]) -> Callable[[], str]:
            def check() -> Check:
                try:
                    return Check(name, Status.OK, expected, look())
                except Exception as error:  # a broken installation may raise anything
                    found = one_line(str(error)) or type(error).__name__
                status = Status.FAILED if is_needed else Status.WARNING
                return Check(name, status, expected, found, remedy)

            self._made.append(check)
            self.remedies[name] = remedy
            return look

        return added

    def make(self) -> list[Check]:
        """Make the checks in order."""
        return [check() for check in self._made]


def by_setup(*steps: str) -> str:
    """Return the remedy that installs a part: `make setup`, or steps of docs/deploy.md."""
    own = " and ".join(f"`{step}`" for step in steps)
    return f"run `make setup`, or in your own Airflow {own}"


class ProblemError(Exception):
    """A check has failed. The message says what it found."""


INSTALLATION_CHECKS = Checks()
JAVA = "17"
INSTALL = 'python -m pip install "$EBBTIDE_ROOT"'
FETCH = 'python "$EBBTIDE_ROOT/conf/ivy/resolve_jars.py" spark "$EBBTIDE_HOME/jars"'
PACK = 'python "$EBBTIDE_ROOT/conf/package.py" "$EBBTIDE_HOME/ebbtide.zip"'
RENDER = (
    'python "$EBBTIDE_ROOT/conf/render.py" "$EBBTIDE_ROOT/conf/spark-defaults.conf" '
    '"$EBBTIDE_HOME/conf"'
)
ARCHIVE = 'python "$EBBTIDE_ROOT/conf/class_archive.py"'


@INSTALLATION_CHECKS.add(
    "environment",
    "EBBTIDE_ROOT, EBBTIDE_HOME and SPARK_CONF_DIR",
    "run `make setup`, or in your own Airflow set these variables and follow docs/deploy.md",
)
def _environment() -> str:
    where, defaults = paths(), defaults_path()
    for folder in (where.jobs, where.home):
        if not folder.is_dir():
            raise ProblemError(f"no directory {folder}")
    read_defaults(defaults)
    return f"{where.home}, {defaults}"


@INSTALLATION_CHECKS.add(
    "java", f"Java {JAVA}", f"install a JDK or JRE {JAVA}, or set JAVA_HOME to one"
)
def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProblemError(f"{java} does not run: {error.strerror}") from None
    specified = re.search(r"java\.specification\.version = (\S+)", done.stderr)
    if specified is None:
        raise ProblemError(f"{java} does not run, exit code {done.returncode}")
    if specified[1] != JAVA:
        raise ProblemError(f"Java {specified[1]} ({java})")
    return f"Java {specified[1]} ({java})"


@INSTALLATION_CHECKS.add(
    "pyspark", "pyspark and pyspark-client of the same version", by_setup(INSTALL)
)
def _pyspark() -> str:
    try:
        server, client = version("pyspark"), version("pyspark-client")
    except PackageNotFoundError as error:
        raise ProblemError(f"no package {error.name}") from None
    if server != client:
        raise ProblemError(f"pyspark {server} and pyspark-client {client}, in one directory")
    return server


@INSTALLATION_CHECKS.add("jars", "every jar of spark.jars", by_setup(FETCH, RENDER))
def _jars() -> str:
    listed = read_defaults(defaults_path()).get("spark.jars", "")
    jars = [jar for jar in listed.split(",") if jar]
    missing = [jar for jar in jars if not Path(jar.removeprefix("file://")).is_file()]
    if missing or not jars:
        raise ProblemError(f"{len(missing)} of {len(jars)} missing: {', '.join(missing[:3])}")
    return f"{len(jars)} jars"


@INSTALLATION_CHECKS.add("package", "ebbtide.zip as new as the sources", by_setup(PACK))
def _package() -> str:
    zipped, sources = paths().package_zip, paths().root / "src" / "ebbtide"
    if not zipped.is_file():
        raise ProblemError(f"no {zipped}")
    written = zipped.stat().st_mtime
    newer = [file.name for file in sources.rglob("*.py") if file.stat().st_mtime > written]
    if newer:
        raise ProblemError(f"{len(newer)} newer source files, such as {newer[0]}")
    return str(zipped)


@INSTALLATION_CHECKS.add(
    "class archive",
    "an archive with all the bytes that were written",
    f"{by_setup(ARCHIVE)}; without it, jobs start some seconds later",
    is_needed=False,
)
def _archive() -> str:
    archive = paths().home / "classes.jsa"
    try:
        written = archive.with_name("classes.jsa.stamp").read_text().split()[0]
        size_bytes = archive.stat().st_size
    except (IndexError, OSError):
        raise ProblemError(f"no {archive} with its stamp") from None
    if str(size_bytes) != written:
        raise ProblemError(f"{size_bytes} bytes, but {written} were written")
    return f"{size_bytes:,} bytes"


LAKE_CHECKS = Checks()
MOST_SECONDS_APART = 60
INGESTS = ("ingest_segments", "ingest_topic", "ingest_table")
MANY = 3  # times retention.ms: the age at which something should have been removed
MOST_SHOWN = 5  # topics or partitions of a warning
DAY_MS = 86_400_000
SETTINGS = "the lines spark.sql.catalog.lake.* of conf/spark-defaults.conf"


@LAKE_CHECKS.add(
    "catalog",
    "a catalog that answers",
    f"start it, or correct {SETTINGS}, then {by_setup(RENDER)}",
)
def _catalog() -> str:
    settings = catalog_settings(read_defaults(defaults_path()))
    with open_lake() as lake:
        topics = lake.topic_names()
        is_new = lake.catalog is None
    if is_new:
        return f"{settings['type']}, still empty"
    return f"{settings['type']}, {len(topics)} topics"


@LAKE_CHECKS.add(
    "topics", "readable tables of every topic", "see docs/troubleshooting.md, UnreadableTableError"
)
def _topics() -> str:
    with open_lake() as lake:
        names = lake.topic_names()
        for name in names:
            lake.topic(name)
            lake.live_rows(name)
    return f"{len(names)} of {len(names)}"


@LAKE_CHECKS.add(
    "timestamps",
    "timestamps in milliseconds in the last ingest of each topic",
    "let the producers send milliseconds: all time limits use them",
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
    return "milliseconds in all topics"


@LAKE_CHECKS.add(
    "retention",
    f"no event older than {MANY} times retention.ms in a topic without removals",
    "see why on the topic's page, or in the report of its last nightly run",
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
    return f"no such event in {len(names)} topics without removals"


def _overdue(lake: Lake, name: str, clock: datetime, run: Run | None) -> str | None:
    """Return a warning with the topic's oldest event and its reason, or None if it is not late."""
    config, clock_ms = lake.topic(name).config, int(clock.timestamp() * 1000)
    limit_ms = config.retention_ms
    if not (config.is_enabled and config.is_deleted) or limit_ms is None or limit_ms < 0:
        return None
    oldest_ms = lake.summary(name).oldest_event_ms
    if oldest_ms is None or oldest_ms >= earlier(clock_ms, MANY * max(limit_ms, DAY_MS)):
        return None
    why = ": expire_segments has not run on it"
    if run is not None:
        notes = [f": {numbers['note']}" for numbers in run.partitions.values() if "note" in numbers]
        why = "".join(notes[:1])
    return (
        f"{name}: retention.ms is {span(limit_ms)}, the oldest event is from {minute(oldest_ms)} "
        f"UTC, and nothing was removed in {HISTORY.days} days{why}"
    )


@LAKE_CHECKS.add(
    "storage",
    "a file that can be written, read and deleted",
    f"grant these credentials read, write and delete, or correct {SETTINGS}",
)
def _storage() -> str:
    return _probed().folder


@LAKE_CHECKS.add(
    "clock",
    f"clocks of this machine and the storage at most {MOST_SECONDS_APART} s apart",
    "let both follow a time server: a snapshot's age is by the clock of the committing machine",
)
def _clock() -> str:
    apart = _probed().seconds_behind
    if apart is None:
        return "unknown: the storage reports no time of writing"
    if abs(apart) > MOST_SECONDS_APART:
        raise ProblemError(f"{apart:.0f} s apart")
    return f"{abs(apart):.0f} s apart"


def _probed() -> ProbedFile:
    with open_lake() as lake:
        return probe_storage(lake)
