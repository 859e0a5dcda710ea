"""What happens to a night: jobs die, tools work on the same tables, the disk is full."""

from __future__ import annotations

import os
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.settings.names import TopicName
from tests.tables.other_tools import REWRITE_ALL, tables_of

DISTURBED = 0.12  # of commit points
MOST_A_NIGHT = 3
FULL_DISK = "full disk"
_ORPHANS = "remove_orphan_files"
_EXPIRY = "expire_snapshots"
_REWRITING, _MANIFESTS = "rewrite_data_files", "rewrite_manifests"
TOOLS = (_REWRITING, _MANIFESTS, _EXPIRY, _ORPHANS, FULL_DISK)


class KilledError(Exception):
    """Stands for a process that ends at a commit point."""


class Tools:
    """Iceberg's own maintenance of a topic's data tables; counts what has changed something.

    A schedule has some of the tools, so that each of them comes by often and none always.
    """

    def __init__(
        self, spark: SparkSession, name: TopicName, rng: random.Random, changed: Counter[str]
    ) -> None:
        self._spark = spark
        self._name = name
        self._changed = changed
        self._tools: dict[str, Callable[[str], int]] = {
            _REWRITING: self._rewrite_data_files,
            _MANIFESTS: self._rewrite_manifests,
            _EXPIRY: self._expire_snapshots,
            _ORPHANS: self._remove_orphan_files,
        }
        self._rng = rng
        self._chosen = rng.sample([*self._tools, FULL_DISK], 3)
        self._spared: set[str] = set()

    @property
    def fill_disks(self) -> bool:
        """Whether the disk is full now and then."""
        return FULL_DISK in self._chosen

    @contextmanager
    def keeping_snapshots(self) -> Iterator[None]:
        """Nothing expires meanwhile: the way back from a change is the snapshot before it."""
        self._spared = {_EXPIRY}
        try:
            yield
        finally:
            self._spared = set()

    def run_one(self, *, is_between_jobs: bool) -> None:
        """One of the schedule's tools on both tables; orphans are removed between jobs only."""
        spared = self._spared if is_between_jobs else {_ORPHANS, *self._spared}
        fit = [what for what in self._chosen if what in self._tools and what not in spared]
        if not fit:
            return
        self._run(self._rng.choice(fit))

    def end_night(self) -> None:
        """Remove orphans, which kills have left by then, if the schedule has that tool."""
        if _ORPHANS in self._chosen:
            self._run(_ORPHANS)

    def _run(self, what: str) -> None:
        counts = [self._tools[what](table) for table in tables_of(self._name) if self._has(table)]
        if any(counts):
            self._changed[what] += 1

    def _has(self, table: str) -> bool:
        if not self._spark.catalog.tableExists(table):
            return False
        return java_table(self._spark, table).currentSnapshot() is not None

    def _rewrite_data_files(self, table: str) -> int:
        called = f"rewrite_data_files(table => '{table}', options => {REWRITE_ALL})"
        return int(self._call(called)["rewritten_data_files_count"])

    def _rewrite_manifests(self, table: str) -> int:
        return int(self._call(f"rewrite_manifests('{table}')")["rewritten_manifests_count"])

    def _expire_snapshots(self, table: str) -> int:
        now = f"TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}'"
        before = len(list(java_table(self._spark, table).snapshots()))
        self._call(f"expire_snapshots(table => '{table}', older_than => {now}, retain_last => 1)")
        return before - len(list(java_table(self._spark, table).snapshots()))

    def _remove_orphan_files(self, table: str) -> int:
        """Files of the last moment too, which its procedure refuses to look at."""
        actions = self._spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(  # type: ignore[union-attr]
            self._spark._jsparkSession
        )
        action = actions.deleteOrphanFiles(java_table(self._spark, table))
        removal = action.olderThan(int(datetime.now(UTC).timestamp() * 1000) + 1).execute()
        return len(list(removal.orphanFileLocations()))

    def _call(self, procedure: str) -> dict[str, int]:
        row = self._spark.sql(f"CALL lake.system.{procedure}").first()
        return {} if row is None else row.asDict()


class Disturbance:
    """Called before each commit of a schedule: lets it be, kills the job, or lets tools work."""

    def __init__(self, rng: random.Random, tools: Tools, happened: Counter[str]) -> None:
        self._rng = rng
        self._tools = tools
        self._happened = happened
        self.left = 0  # of this night
        self._is_working = False

    def before_commit(self, step: Step) -> None:
        """Stands in for `commits.before_commit`."""
        if self._is_working or not self.left or self._rng.random() >= DISTURBED:
            return
        self.left -= 1
        what = self._rng.choice(["kill", "tools", "tools and kill"])
        if "tools" in what:
            self._is_working = True
            try:
                self._tools.run_one(is_between_jobs=False)
            except Py4JJavaError:  # its own lost race is not ours
                self._happened["tools that failed"] += 1
            finally:
                self._is_working = False
        if "kill" in what:
            self._happened["kill"] += 1
            raise KilledError(step)


@contextmanager
def full_disk(spark: SparkSession, most_bytes: int) -> Iterator[None]:
    """No process of the job may write a file longer than that."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        _limit([os.getpid(), *_family(gateway.proc.pid)], (most_bytes, hard))
        yield
    finally:  # of Python workers too that began meanwhile
        _limit([os.getpid(), *_family(gateway.proc.pid)], (soft, hard))


def _limit(processes: list[int], limits: tuple[int, int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def _family(pid: int) -> list[int]:
    """A process and all that come of it."""
    pids = [pid]
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):
                for child in (thread / "children").read_text().split():
                    pids += _family(int(child))
    return pids
