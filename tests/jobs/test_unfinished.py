"""Each kind of work that a killed job leaves behind, and each job that then comes by."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import UnfinishedWorkError
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.clean_log.segment_merge import AT_LEAST
from ebbtide.jobs.unfinished import duty, in_flight, settle
from ebbtide.ledger.own_tables import RUNS
from ebbtide.settings.names import TopicName
from ebbtide.specs.all_specs import SPECS
from ebbtide.specs.job_spec import Duty, Work
from ebbtide.state.topic_state import SLICE
from tests.jobs.ingest_topic.live import Writer, connect, create
from tests.jobs.ingest_topic.live import broker as broker
from tests.kafka.broker import KafkaBroker
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import Record, append, spark_table
from tests.tables.counted import assert_counted
from tests.tables.job_words import asked, hold, topics, words_of
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, HOUR_MS, at

pytestmark = pytest.mark.broker

JOBS = [job for job, spec in SPECS.items() if spec.duties is not None]
KEYS, AGAIN = 4, 2  # each record is a segment
# Fewer small segments are not merged.
MERGED_KEYS = AT_LEAST + 2
SMALL_SEGMENTS = (
    "kafka.cleanup.policy=compact,delete",
    f"kafka.segment.ms={HOUR_MS}",
    "kafka.min.cleanable.dirty.ratio=0.01",
)
# The commit points of each kind of work at which others see some of it.
POINTS = {
    Work.ROUND: (
        Step.ROUND_BATCHES,
        Step.ROUND_RECORDS,
        Step.ROUND_RECORDS_DONE,
        Step.ROUND_STATE,
    ),
    Work.MERGE: (Step.MERGE_BATCHES, Step.MERGE_RECORDS, Step.MERGE_STATE),
    Work.INGEST: (Step.INGEST_BATCHES, Step.INGEST_STATE),
    Work.APPEND: (Step.APPEND_BATCHES, Step.APPEND_RECORDS, Step.APPEND_STATE),
    Work.SLICE: (Step.INGEST_BATCHES, Step.INGEST_STATE),
    Work.COPY: (Step.INGEST_BATCHES, Step.INGEST_STATE),
    Work.REPLICATION: (
        Step.REPLICATE_LEFTOVERS,  # of a run that takes over
        Step.REPLICATE_RECORDS,
        Step.REPLICATE_BATCHES,
        Step.REPLICATE_STATE,
    ),
    Work.UNDO: (Step.UNDO_RECORDS, Step.UNDO_BATCHES, Step.UNDO_NOTED, Step.UNDO_STATE),
}
# A job that is killed at these leaves nothing that counts: a slice does once it has records.
UNSEEN = {
    Step.ROUND_STARTED,
    Step.MERGE_STARTED,
    Step.APPEND_STARTED,
    Step.REPLICATE_STARTED,
    Step.INGEST_RECORDS,
    Step.UNDO_POINT,
    Step.UNDO_STARTED,
    Step.UNDO_TAGGED,
    Step.UNDO_TOLD,
}
KINDS_OF_STEPS = ("round_", "merge_", "ingest_", "append_", "replicate_", "undo_")
# The job whose work it is, as one says that refuses to begin.
ENDED_BY = {
    Work.INGEST: "ingest_segments",
    Work.APPEND: "erase_keys",
    Work.SLICE: "ingest_topic",
    Work.COPY: "ingest_table",
    Work.REPLICATION: "replicate_log",
}
# ingest_topic takes offsets of the broker's, ingest_segments offsets beyond them and becomes the
# topic's source, which ingest_table then refuses.
BESIDE = sorted(JOBS, key=lambda job: job not in ("ingest_topic", "ingest_table"))
# The others are begun and ended as these are.
SOME = (Work.ROUND, Work.INGEST, Work.APPEND, Work.SLICE, Work.REPLICATION, Work.UNDO)
NOW = at(FIRST_MS + 10 * DAY_MS).isoformat()
PRIMARY, COPIES = "live", "copies"
# A hold beyond the log's end: one on its keys would forbid their erasure.
HELD = hold(1_000_000)


@pytest.fixture(scope="module")
def ready() -> list[TopicName]:
    """Topics that are filled at once for tests that take one each."""
    return []


class Bench:
    """Runs jobs on topics of the lake that a broker has written."""

    _tags = itertools.count()

    def __init__(
        self, sandbox: LakeSandbox, broker: KafkaBroker, folder: Path, kill_at: list[Step]
    ) -> None:
        self.spark = sandbox.session
        self._broker = broker
        self._folder = folder
        self._kill_at = kill_at

    def run(self, job: str, *names: TopicName) -> int:
        """Run a job's main on the topics; its exit code. Two jobs take a replica's primary."""
        if job == "ingest_table" and len(names) > 1:  # it takes a table for one topic
            return max(self.run(job, name) for name in names)
        if job in ("replicate_log", "hold_records"):
            names = tuple(name._replace(cluster=PRIMARY) for name in names)
        if job == "replicate_log":
            self._configure(names, "--set", f"ebbtide.replicas=lake.{COPIES}")
        main: Callable[[list[str]], int] = import_module(f"jobs.{job}").main
        return main([*self._arguments(job, names), "--now", NOW, "--run-id", job])

    def error_of(self, job: str) -> str:
        """What the rows in `runs` say of the job's failures since work was left."""
        rows = self.spark.table(RUNS.in_catalog()).where(f"job = '{job}'").collect()
        return "; ".join(str(row["error"]) for row in rows)

    def leave(self, work: Work, steps: Sequence[Step]) -> list[TopicName]:
        """New topics, and on each the work of a job that was killed at another of the steps."""
        keys = MERGED_KEYS if work is Work.MERGE else KEYS
        return self.leave_on(work, self.fill(work.name.lower(), len(steps), keys), list(steps))

    def fill(self, prefix: str, count: int, keys: int = KEYS) -> list[TopicName]:
        """New topics that were taken live and are marked, with records that a round cleans."""
        # The broker has those of this module's other tests.
        tag = next(self._tags)
        names = [TopicName(PRIMARY, f"{prefix}-{tag}-{i}") for i in range(count)]
        for name in names:
            create(self._broker, name.topic)
        self._succeed("ingest_topic", *names)
        self._configure(names, *words_of("--set", SMALL_SEGMENTS))
        self.write(names, keys)
        self._succeed("ingest_topic", *names)
        self._succeed("mark_tombstones", *names)
        self._configure(names, "--unset", "ebbtide.source")
        return names

    def leave_on(self, work: Work, names: list[TopicName], steps: list[Step]) -> list[TopicName]:
        """Leave on each of the topics the work of a job that was killed at another of the steps."""
        if work is Work.ROUND:
            self.kill("clean_log", names, steps)
        elif work is Work.MERGE:
            self._succeed("clean_log", *names)
            self.kill("expire_snapshots", names, steps)
        elif work is Work.INGEST:
            self.kill("ingest_segments", names, steps)
        elif work is Work.APPEND:
            for name, step in zip(names, steps, strict=True):
                self.kill("erase_keys", [name], [step])
        elif work is Work.SLICE:
            self.write(names)
            self.kill("ingest_topic", names, steps)
        elif work is Work.COPY:
            self.kill("ingest_table", names, steps)
        elif work is Work.UNDO:
            self._succeed("clean_log", *names)
            self.kill("undo_run", names, steps)
        else:
            self.kill("replicate_log", names[:1], [Step.REPLICATE_BATCHES])
            self.kill("replicate_log", names[:1], steps[:1])
            if names[1:]:
                self.kill("replicate_log", names[1:], steps[1:])
            return [name._replace(cluster=COPIES) for name in names]
        return names

    def _succeed(self, job: str, *names: TopicName) -> None:
        assert self.run(job, *names) == 0

    def kill(self, job: str, names: Sequence[TopicName], steps: Sequence[Step]) -> None:
        """Run the job on the topics; each step ends it on one of them that comes there."""
        self._kill_at += steps
        assert self.run(job, *names) != 0
        assert not self._kill_at
        self.spark.sql(f"DELETE FROM {RUNS.in_catalog()}")

    def write(self, names: Sequence[TopicName], keys: int = KEYS) -> None:
        for name in names:
            for first_ms, count in ((FIRST_MS, keys), (FIRST_MS + DAY_MS, AGAIN)):
                writer = Writer(self._broker, name.topic, first_ms=first_ms)
                writer.write(count, step_ms=2 * HOUR_MS)

    def _configure(self, names: Sequence[TopicName], *changes: str) -> None:
        arguments = [*topics(names), *changes, "--now", NOW, "--run-id", "configure"]
        assert import_module("jobs.configure_topic").main(arguments) == 0

    def _arguments(self, job: str, names: Sequence[TopicName]) -> list[str]:
        if job == "ingest_table":
            self._write_source(names[0])
        log = self._grown_log(names) if job == "ingest_segments" else ""
        more = ("--target", str(self._folder / "out")) if job == "export_segments" else ()
        return [*asked(job, names, log=log, held=HELD, undone="clean_log"), *more]

    def _write_source(self, name: TopicName) -> None:
        """A table that others write; of a topic that is to be copied, with what it lacks."""
        source = TopicName("source", name.topic)
        if not self.spark.catalog.tableExists(source.records_table):
            spark_table(self.spark, str(source))
            if name.topic.startswith(Work.COPY.name.lower()):
                (state,) = load(self.spark, name).partitions.values()
                first = state.log_end_offset
                append(self.spark, str(source), [Record(first + i, f"k{i}") for i in range(3)])

    def _grown_log(self, names: Sequence[TopicName]) -> Path:
        log = self._folder / "log"
        segments = [[Message(f"k{i}", f"v{i}")] for i in range(3 * KEYS)]
        for name in names:
            if not (log / f"{name.topic}-0").exists():
                write_log(log, name.topic, segments, {})
        return log


@pytest.fixture
def bench(
    sandbox: LakeSandbox,
    broker: KafkaBroker,
    tmp_path: Path,
    kill_at: list[Step],
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    connect(monkeypatch, broker)
    sandbox.take_jobs(monkeypatch, EBBTIDE_ERASE_KEYS="k3")
    return Bench(sandbox, broker, tmp_path, kill_at)


def test_every_job_has_its_duties() -> None:
    # These refuse a topic whose tables ebbtide writes, whatever is in flight on it.
    assert set(JOBS) == set(SPECS) - {"adopt_table", "abandon_table"}


def test_every_commit_point_of_every_kind_is_there() -> None:
    steps = {step for step in Step if step.startswith(KINDS_OF_STEPS)}
    assert {step for of_kind in POINTS.values() for step in of_kind} | UNSEEN == steps


@pytest.mark.parametrize(
    ("work", "is_each_run"),
    [
        *(pytest.param(work, False, id=f"{work}, some run") for work in SOME),
        *(
            pytest.param(work, True, id=f"{work}, each runs", marks=pytest.mark.long)
            for work in Work
        ),
    ],
)
def test_what_each_job_does_about_it(
    work: Work, is_each_run: bool, bench: Bench, ready: list[TopicName]
) -> None:
    """Those that end the work come last, each to a topic of its own.

    Each job settles it. Of those that do not run, another work's test runs each.
    """
    ends_it = [job for job in JOBS if duty(job, work) in (Duty.FINISH, Duty.RESUME)]
    jobs = BESIDE if is_each_run else BESIDE[SOME.index(work) :: len(SOME)]
    if "undo_run" in jobs and "clean_log" not in jobs:  # a run to undo
        jobs = ["clean_log", *jobs]
    if is_each_run:
        topics = max(len(ends_it), len(POINTS[work]))
        first, *others = bench.leave(work, list(islice(cycle(POINTS[work]), topics)))
    else:
        ready += () if ready else bench.fill("some", len(SOME))
        first, *others = bench.leave_on(work, [ready.pop()], list(POINTS[work][:1]))
    for job in jobs:
        if duty(job, work) is Duty.LEAVE:
            assert bench.run(job, first) == 0, (job, bench.error_of(job))
        elif duty(job, work) is Duty.REFUSE:
            assert bench.run(job, first) != 0, job
            assert f"expected no {work} in flight" in bench.error_of(job)
            assert f"{ENDED_BY[work]} is running or was killed" in bench.error_of(job)
        assert in_flight(load(bench.spark, first)) == {work}, job
    for job, name in zip(cycle(ends_it), [first, *others], strict=False):
        assert in_flight(load(bench.spark, name)) == {work}
        beside(bench.spark, name, work)
        assert bench.run(job, name) == 0, (job, bench.error_of(job))
        assert in_flight(load(bench.spark, name)) == set(), job
        assert_counted(bench.spark, name)


def beside(spark: SparkSession, name: TopicName, work: Work) -> None:
    """Let each job that leaves or refuses the work settle it: nothing moves."""
    before = load(spark, name)
    for job in JOBS:
        if duty(job, work) is Duty.REFUSE:
            with pytest.raises(UnfinishedWorkError, match=f"no {work} in flight"):
                settle(before, job)
        elif duty(job, work) is Duty.LEAVE:
            assert settle(before, job).properties == before.properties
    assert load(spark, name).properties == before.properties


@pytest.mark.long
def test_a_slice_without_records_is_in_nobodys_way(bench: Bench) -> None:
    names = bench.fill("empty-slice", 1)
    bench.write(names)
    bench.kill("ingest_topic", names, [Step.INGEST_RECORDS])
    topic = load(bench.spark, names[0])
    assert SLICE in topic.properties
    assert in_flight(topic) == set()
    for job in JOBS:
        settle(topic, job)
    assert bench.run("ingest_topic", *names) == 0
    assert SLICE not in load(bench.spark, names[0]).properties
