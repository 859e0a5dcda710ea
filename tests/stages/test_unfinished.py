"""Each kind of work that a killed job leaves behind, and each job that then comes by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.schema import RUNS_TABLE
from ebbtide.iceberg.topics import load
from ebbtide.log.results import BY_JOB
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.unfinished import JOBS, Duty, Work, duty, in_flight
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import SETTINGS
from tests.lake_sandbox import LakeSandbox
from tests.stages.ingest_topic.live import CONNECTION, Writer, connect, create
from tests.tables.counted import assert_counted
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at

pytestmark = pytest.mark.broker

KEYS, AGAIN = 10, 2  # each record is a segment
SMALL_SEGMENTS = (
    "kafka.cleanup.policy=compact,delete",
    f"kafka.segment.ms={HOUR_MS}",
    "kafka.min.cleanable.dirty.ratio=0.01",
)
# What one says that refuses to begin.
SAID = {
    Work.APPEND: "records were appended to the table directly|erase_keys was killed; run it again",
    Work.SLICE: "ingest_topic was killed; run it again|an ingest was killed; run it again",
    Work.REPLICATION: "no replica, found that .* (ingest into|erase the keys of) its primary",
}
# ingest_topic takes offsets of the broker's, ingest_segments offsets beyond them.
BESIDE = sorted(JOBS, key=lambda job: job != "ingest_topic")
NOW = at(FIRST_MS + 10 * DAY_MS).isoformat()
PRIMARY, COPIES = "live", "copies"
ASKED = ("--requested-by", "privacy office", "--reason", "17", "--append")


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_jars, tmp_path_factory.mktemp("broker"), **SETTINGS) as broker:
        yield broker


class Bench:
    """Runs jobs on topics of the lake that a broker has written."""

    def __init__(
        self, sandbox: LakeSandbox, broker: KafkaBroker, folder: Path, kill_at: list[Step]
    ) -> None:
        self.spark = sandbox.session
        self._broker = broker
        self._folder = folder
        self._kill_at = kill_at

    def run(self, job: str, *names: TopicName) -> int:
        """Run a job's main on the topics; its exit code."""
        if job == "replicate_log":
            names = tuple(name._replace(cluster=PRIMARY) for name in names)
            self._configure(names, "--set", f"ebbtide.replicas=lake.{COPIES}")
        main: Callable[[list[str]], int] = import_module(f"jobs.{job}").main
        return main([*self._arguments(job, names), "--now", NOW, "--run-id", job])

    def error_of(self, job: str) -> str:
        """What the rows in `runs` say of the job's failures since work was left."""
        rows = self.spark.table(RUNS_TABLE).where(f"job = '{job}'").collect()
        return "; ".join(str(row["error"]) for row in rows)

    def leave(self, work: Work, count: int) -> list[TopicName]:
        """New topics with unfinished work of that kind, made by one run for all."""
        names = [TopicName(PRIMARY, f"{work.name.lower()}-{i}") for i in range(count)]
        for name in names:
            create(self._broker, name.topic)
        self._succeed("ingest_topic", *names)
        settings = [word for setting in SMALL_SEGMENTS for word in ("--set", setting)]
        self._configure(names, *settings)
        self._write(names)
        self._succeed("ingest_topic", *names)
        self._succeed("mark_tombstones", *names)
        self._configure(names, "--unset", "ebbtide.source")
        return self._leave(work, names)

    def _leave(self, work: Work, names: list[TopicName]) -> list[TopicName]:
        if work is Work.ROUND:
            self._kill(Step.ROUND_BATCHES, "clean_log", *names)
        elif work is Work.MERGE:
            self._succeed("clean_log", *names)
            self._kill(Step.MERGE_BATCHES, "expire_snapshots", *names)
        elif work is Work.APPEND:
            for name in names:
                self._kill(Step.APPEND_BATCHES, "erase_keys", name)
        elif work is Work.SLICE:
            self._write(names)
            self._kill(Step.INGEST_BATCHES, "ingest_topic", *names)
        else:
            self._kill(Step.REPLICATE_BATCHES, "replicate_log", *names)
            return [name._replace(cluster=COPIES) for name in names]
        return names

    def _succeed(self, job: str, *names: TopicName) -> None:
        assert self.run(job, *names) == 0

    def _kill(self, step: Step, job: str, *names: TopicName) -> None:
        self._kill_at += [step] * len(names)
        assert self.run(job, *names) != 0
        assert not self._kill_at
        self.spark.sql(f"DELETE FROM {RUNS_TABLE}")

    def _write(self, names: Sequence[TopicName]) -> None:
        for name in names:
            for first_ms, count in ((FIRST_MS, KEYS), (FIRST_MS + DAY_MS, AGAIN)):
                writer = Writer(self._broker, name.topic, first_ms=first_ms)
                writer.write(count, step_ms=2 * HOUR_MS)

    def _configure(self, names: Sequence[TopicName], *changes: str) -> None:
        arguments = [*_topics(names), *changes, "--now", NOW, "--run-id", "configure"]
        assert import_module("jobs.configure_topic").main(arguments) == 0

    def _arguments(self, job: str, names: Sequence[TopicName]) -> list[str]:
        cluster = names[0].cluster
        if job == "ingest_segments":
            return ["--source", str(self._grown_log(names)), "--cluster", cluster]
        if job == "ingest_topic":
            return ["--connection", CONNECTION, "--cluster", cluster, *_topics(names)]
        if job == "delete_records":
            partitions = [{"partition": 0, "offset": 0}]
            topics = [{"topic": str(name), "partitions": partitions} for name in names]
            return ["--request", json.dumps({"topics": topics})]
        more = {
            "erase_keys": ASKED,
            "export_segments": ("--target", str(self._folder / "out")),
            "configure_topic": ("--set", "kafka.retention.ms=-1"),
        }
        return [*_topics(names), *more.get(job, ())]

    def _grown_log(self, names: Sequence[TopicName]) -> Path:
        log = self._folder / "log"
        segments = [[Message(f"k{i}", f"v{i}")] for i in range(3 * KEYS)]
        for name in names:
            write_log(log, name.topic, segments, {})
        return log


def _topics(names: Sequence[TopicName]) -> list[str]:
    return [word for name in names for word in ("--topic", str(name))]


@pytest.fixture
def bench(
    sandbox: LakeSandbox,
    broker: KafkaBroker,
    tmp_path: Path,
    kill_at: list[Step],
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    connect(monkeypatch, broker)
    session = sandbox.session
    monkeypatch.setattr(session, "newSession", lambda: session)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: session)
    monkeypatch.setenv("EBBTIDE_ERASE_KEYS", "k3")
    for name, value in sandbox.environment().items():
        monkeypatch.setenv(name, value)
    return Bench(sandbox, broker, tmp_path, kill_at)


def test_every_job_has_its_duties() -> None:
    assert set(JOBS) == set(BY_JOB)


@pytest.mark.parametrize("work", list(Work))
def test_what_each_job_does_about_it(work: Work, bench: Bench) -> None:
    """Those that end the work come last, each to a topic of its own."""
    ends_it = [job for job in JOBS if duty(job, work) in (Duty.FINISH, Duty.RESUME)]
    first, *others = bench.leave(work, len(ends_it))
    for job in BESIDE:
        if duty(job, work) is Duty.LEAVE:
            assert bench.run(job, first) == 0, (job, bench.error_of(job))
        elif duty(job, work) is Duty.REFUSE:
            assert bench.run(job, first) != 0, job
            assert re.search(SAID[work], bench.error_of(job)), (job, bench.error_of(job))
        assert in_flight(load(bench.spark, first)) == {work}, job
    for job, name in zip(ends_it, [first, *others], strict=True):
        assert in_flight(load(bench.spark, name)) == {work}
        assert bench.run(job, name) == 0, (job, bench.error_of(job))
        assert in_flight(load(bench.spark, name)) == set(), job
        assert_counted(bench.spark, name)
