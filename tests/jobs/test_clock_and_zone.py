"""Neither a clock that goes back between two jobs nor the zone of the environment changes a night.

The jobs of a night and an undo work on a topic of each kind, and on one copied from a table. Each
is compared with the night of a clock that goes on, in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from ebbtide.errors import ExitCode
from ebbtide.iceberg.catalog import find_table
from ebbtide.iceberg.topics import load
from ebbtide.lake.reader import open_lake
from ebbtide.ledger.holds import HOLDS
from ebbtide.ledger.own_tables import RUNS
from ebbtide.ledger.undo_points import UNDO_POINTS
from ebbtide.settings.names import TopicName
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import SPARK_COLUMNS, Record, source_frame, spark_table
from tests.tables.clocks import in_zone, let_newest_be_ahead, turn_back
from tests.tables.job_words import settings_of, topics
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import HOUR_MS, at

pytestmark = pytest.mark.long

FIRST = 1_767_337_200_000  # 2026-01-02 07:00 UTC
# One record an hour. 1 and 3 are superseded, 0 is past the limit of event times, and those below 4
# are older than a request asks for.
RECORDS = (("z", "1"), ("a", "1"), ("t", None), ("a", "2"), ("c", "1"), ("a", "3"), ("n", "1"))
NOW = at(FIRST + 7 * HOUR_MS).isoformat()
LATER = at(FIRST + 8 * HOUR_MS).isoformat()
SETTINGS = {
    "kafka.cleanup.policy": "compact,delete",
    "kafka.min.cleanable.dirty.ratio": "0.01",
    "kafka.segment.ms": "1",
    "kafka.retention.max.eventtime.ms": str(5 * HOUR_MS + HOUR_MS // 2),
    "ebbtide.retention.granularity": "record",
    "ebbtide.max.delete.ratio": "1",
}
# What is left of the topics of both kinds after each job.
LEFT = {
    "mark_tombstones": [0, 1, 2, 3, 4, 5, 6],
    "clean_log": [0, 2, 4, 5, 6],
    "expire_segments": [2, 4, 5, 6],
    "delete_records": [4, 5, 6],
    "expire_snapshots": [4, 5, 6],
    "undo_run": [2, 4, 5, 6],
}
NIGHT = tuple(LEFT)
KINDS = ("own", "adopted", "copied")
Outcome = dict[str, Any]


class Night:
    """A night on an own and an adopted topic, and what each job of it came to."""

    def __init__(self, sandbox: LakeSandbox, cluster: str, home: Path) -> None:
        self.sandbox, self.spark, self.cluster = sandbox, sandbox.session, cluster
        self.own, self.adopted, self.copied = (TopicName(cluster, topic) for topic in KINDS)
        self.names = (self.own, self.adopted, self.copied)
        self.log = home / cluster
        messages = [
            [Message(key, value, FIRST - FIRST_MS + n * HOUR_MS)]
            for n, (key, value) in enumerate(RECORDS)
        ]
        write_log(self.log, "own", messages, {})
        self.source = TopicName(f"{cluster}_source", "t")
        for name in (self.adopted, self.source):
            self._create_zoneless(name)
        self.outcomes: dict[str, Outcome] = {}

    def _create_zoneless(self, name: TopicName) -> None:
        """Create a table as another tool does, whose timestamps have no zone."""
        columns = SPARK_COLUMNS.replace("timestamp timestamp,", "timestamp timestamp_ntz,")
        spark_table(self.spark, str(name), columns=columns)
        records = [
            Record(n, key, value, timestamp_ms=FIRST + n * HOUR_MS)
            for n, (key, value) in enumerate(RECORDS)
        ]
        frame = source_frame(self.spark, records, "t")
        frame = frame.withColumn("timestamp", F.col("timestamp").cast("timestamp_ntz"))
        frame.coalesce(1).writeTo(name.records_table).append()

    def begin(self) -> None:
        """Let the topics be, by the jobs that make them."""
        settings = settings_of(SETTINGS)
        where = ("--source", str(self.log), "--cluster", self.cluster)
        for job, name, words in (
            ("ingest_segments", self.own, (*where, *settings)),
            ("adopt_table", self.adopted, settings),
            ("ingest_table", self.copied, ("--source", str(self.source))),
            ("configure_topic", self.copied, settings),
        ):
            asked = ["--topic", str(name), *words, "--now", NOW, "--run-id", self._run_id(job)]
            assert import_module(f"jobs.{job}").main(asked) == ExitCode.DONE, job

    def run(self, job: str) -> None:
        """Run a job of the night on both topics, and note what it came to."""
        assert self.attempt(job, self._run_id(job)) == ExitCode.DONE, job
        with open_lake() as lake:
            rows = {row.topic: row for row in lake.runs(run_id=self._run_id(job))}
        self.outcomes[job] = {
            name.topic: {
                "error": rows[str(name)].error,
                "rows_removed": rows[str(name)].rows_removed,
                "partitions": self._nameless(rows[str(name)].partitions),
                "states": dict(load(self.spark, name).partitions),
                "left": self.left(name),
            }
            for name in self.names
        }

    def attempt(self, job: str, run_id: str) -> int:
        """Run a job of the night on both topics; its exit code."""
        now = LATER if job == "undo_run" else NOW
        words = [*self._asked(job), "--now", now, "--run-id", run_id]
        code: int = import_module(f"jobs.{job}").main(words)
        return code

    def left(self, name: TopicName) -> list[int]:
        """The offsets in the topic's table."""
        rows = self.spark.table(name.records_table).select("offset").collect()
        return sorted(row["offset"] for row in rows)

    def _run_id(self, job: str) -> str:
        return f"{self.cluster}-{job}"

    def _asked(self, job: str) -> list[str]:
        if job == "delete_records":
            age = {"partitions": [{"partition": 0, "age": "PT3H30M"}]}
            asked = [{"topic": str(name), **age} for name in self.names]
            return ["--request", json.dumps({"topics": asked})]
        more = ("--run", self._run_id("delete_records")) if job == "undo_run" else ()
        return [*topics(self.names), *more]

    def _nameless(self, partitions: Any) -> Any:
        return json.loads(json.dumps(partitions).replace(self.cluster, "CLUSTER"))

    def tables(self) -> Iterator[str]:
        """Each table that a job commits to, as far as it is there."""
        names = [table.in_catalog() for table in (RUNS, UNDO_POINTS, HOLDS)]
        for name in self.names:
            names += [name.records_table, name.batches_table, name.state_table]
        for table in names:
            if find_table(self.spark, table) is not None:
                yield table


Around = Callable[[Night, str, pytest.MonkeyPatch], AbstractContextManager[None]]


@contextmanager
def clock_goes_on(_: Night, __: str, ___: pytest.MonkeyPatch) -> Iterator[None]:
    yield


@contextmanager
def clock_goes_back(night: Night, _: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each job begins by clocks that are behind those of the one before it.

    Iceberg takes a commit that is at most a minute before the newest one.
    """
    for table in night.tables():
        let_newest_be_ahead(night.spark, table, timedelta(seconds=50))
    with monkeypatch.context() as patched:
        turn_back(patched, timedelta(hours=len(night.outcomes)))
        yield


@contextmanager
def clock_is_set_right(night: Night, job: str, _: pytest.MonkeyPatch) -> Iterator[None]:
    """Each job that commits fails once by a clock that is an hour behind, and removes nothing."""
    if job:
        before = [night.left(name) for name in night.names]
        for table in night.tables():
            let_newest_be_ahead(night.spark, table, timedelta(hours=1))
        assert night.attempt(job, f"{night.cluster}-first-{job}") == ExitCode.TRANSIENT
        assert [night.left(name) for name in night.names] == before
        for table in night.tables():
            let_newest_be_ahead(night.spark, table, timedelta())
    yield


def zone(name: str) -> Around:
    def around(night: Night, _: str, patch: pytest.MonkeyPatch) -> AbstractContextManager[None]:
        return in_zone(night.sandbox, patch, name)

    return around


USUAL = "UTC"
ENVIRONMENTS: dict[str, Around] = {
    USUAL: clock_goes_on,
    "clock": clock_goes_back,
    "east": zone("Asia/Kolkata"),
    "west": zone("America/Los_Angeles"),
    "hour": clock_is_set_right,
}


@pytest.fixture(scope="module")
def nights() -> dict[str, Night]:
    """The nights that were, by their environment."""
    return {}


@pytest.fixture
def outcomes(
    sandbox: LakeSandbox,
    nights: dict[str, Night],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, Outcome]]:
    """What each job of a night in some environment came to."""
    sandbox.take_jobs(monkeypatch)

    def of_night(environment: str) -> dict[str, Outcome]:
        if environment not in nights:
            cluster, home = f"night_{environment.lower()}", tmp_path_factory.mktemp("log")
            night = nights[environment] = Night(sandbox, cluster, home)
            around = ENVIRONMENTS[environment]
            with around(night, "", monkeypatch):
                night.begin()
            for job in NIGHT:
                with around(night, job, monkeypatch):
                    night.run(job)
        return nights[environment].outcomes

    return of_night


@pytest.mark.parametrize("job", NIGHT)
def test_a_night_removes_what_the_rules_say(
    outcomes: Callable[[str], dict[str, Outcome]], job: str
) -> None:
    outcome = outcomes(USUAL)[job]
    assert [outcome[topic]["error"] for topic in KINDS] == [None] * 3
    for topic in ("own", "adopted"):
        assert outcome[topic]["left"] == LEFT[job]


@pytest.mark.parametrize("environment", [name for name in ENVIRONMENTS if name != USUAL])
@pytest.mark.parametrize("job", NIGHT)
def test_each_job_comes_to_the_same_whatever_the_clock_and_the_zone(
    outcomes: Callable[[str], dict[str, Outcome]], job: str, environment: str
) -> None:
    usual, other = outcomes(USUAL)[job], outcomes(environment)[job]
    for topic in KINDS:
        assert other[topic] == usual[topic]
