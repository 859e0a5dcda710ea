"""A schedule: some nights of a random topic, disturbed, that must end as undisturbed ones do.

Every fourth schedule has a stranger that changes rows: each time the next job must notice, and the
topic goes on once the change is taken back. Two of three have the company of another process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, ForeignChangeError
from ebbtide.iceberg import commits
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.foreign_changes import count_own
from ebbtide.iceberg.in_flight import open_merge
from ebbtide.iceberg.topics import exists, load
from ebbtide.jobs.clean_log.segment_merge import merge_segments
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.repair_state import execute_repair, plan_repair
from ebbtide.jobs.unfinished import settle
from ebbtide.settings.names import TopicName
from ebbtide.state.rebuilding import RepairInput
from ebbtide.state.topic_state import MERGE, REMOVING, ROUND
from tests.chaos.company import Company
from tests.chaos.disturbance import (
    FULL_DISK,
    MOST_A_NIGHT,
    Disturbance,
    KilledError,
    Tools,
    full_disk,
)
from tests.kafka.random_logs import random_topic
from tests.kafka.scenarios import Topic
from tests.lake_sandbox import LakeSandbox
from tests.nights.spark_replay import TOPIC, configure, grow_source
from tests.pairs.two_processes import OtherProcess
from tests.runner.submit import submit
from tests.tables.counted import assert_counted
from tests.tables.kafka_view import View, view_of_table
from tests.tables.nights import clean, expire, ingest, mark
from tests.tables.other_tools import tables_of

PARTITIONS = 2
NIGHTS = (3, 2, 2)  # of a log, by its number
SCHEDULES_A_LOG = 5
KILL_9 = "kill -9"
SEEDS_APART = 10**6
# More often than this no job fails by what a schedule does to it.
MOST_TRIES = 25

Job = tuple[str, Callable[[], object]]


@dataclass(slots=True)
class Told:
    """What happened in a schedule, and what went wrong; nothing where all is well."""

    happened: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)  # by tool
    problems: list[str] = field(default_factory=list)


def log_of(seed: int, number: int) -> Topic:
    """The random topic of a schedule; some schedules share one."""
    log = number // SCHEDULES_A_LOG
    nights = NIGHTS[log % len(NIGHTS)]
    return random_topic(seed * SEEDS_APART + log, PARTITIONS, rounds=nights, merges_by_size=False)


def undisturbed(sandbox: LakeSandbox, topic: Topic, home: Path) -> dict[int, View]:
    """How the nights end where nothing happens."""
    name = TopicName(home.name, TOPIC)
    for number in range(len(topic.rounds)):
        for _, job in _night(sandbox.session, name, topic, number, home):
            job()
    return _views(sandbox.session, name)


def disturbed(
    sandbox: LakeSandbox,
    topic: Topic,
    home: Path,
    expected: dict[int, View],
    seed: tuple[int, int],
    other: OtherProcess,
) -> Told:
    """The same nights with all that a schedule brings; compared with how they end without."""
    rng, told = random.Random(f"schedule {seed}"), Told()
    name, company = TopicName(home.name, TOPIC), None
    if seed[1] % 3:
        of_company = random.Random(f"company {seed}")
        log = home / "log"
        company = Company(other, sandbox.session, name, log, of_company, told.happened)
    schedule = _Schedule(sandbox, name, rng, told, seed[1], company)
    try:
        for number, a_round in enumerate(topic.rounds):
            jobs = _night(sandbox.session, schedule.name, topic, number, home)
            if company is not None:
                company.begin_night(a_round.now_ms, _requested(topic, number))
            schedule.night(jobs, number, a_round.now_ms)
        schedule.check_end(expected)
    except Exception as error:
        told.problems.append(f"{type(error).__name__}: {str(error)[:2000]}")
    return told


class _Schedule:
    def __init__(
        self,
        sandbox: LakeSandbox,
        name: TopicName,
        rng: random.Random,
        told: Told,
        number: int,
        company: Company | None,
    ) -> None:
        self.name = name
        self._company = company
        self._kills = number % 8 == 0  # by a real kill -9
        self._is_visited = number % 4 == 3
        self._sandbox = sandbox
        self._spark = sandbox.session
        self._rng = rng
        self._told = told
        self._tools = Tools(self._spark, name, rng, told.changed)
        self._disturbance = Disturbance(rng, self._tools, told.happened)

    def night(self, jobs: Iterator[Job], number: int, now_ms: int) -> None:
        """All jobs of a night, each tried until it is done."""
        self._disturbance.left = MOST_A_NIGHT
        with patch.object(commits, "before_commit", self._before_commit):
            for what, job in jobs:
                if self._kills and number < 2 and what == "clean":
                    self._kill_9(now_ms)
                self._do(what, job)
                if self._rng.random() < 0.4:
                    self._tools.run_one(is_between_jobs=True)
                if self._is_visited and number and self._rng.random() < 0.3:
                    self._visit()
        self._tools.end_night()

    def _do(self, what: str, job: Callable[[], object]) -> None:
        """Do a job until it is done, and once more if it had company that may have undone it."""
        if self._company is None:
            self._until_done(what, job)
            return
        self._company.begin_job(what)
        try:
            self._until_done(what, job)
        finally:
            self._company.end_job()
        self._until_done(what, job)

    def _before_commit(self, step: Step) -> None:
        if self._company is not None:
            self._company.at_commit()
        self._disturbance.before_commit(step)

    def _kill_9(self, now_ms: int) -> None:
        """The round begins in a process of its own, which is killed."""
        step = self._rng.choice([Step.ROUND_STATE, Step.ROUND_BATCHES, Step.ROUND_RECORDS_DONE])
        now = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
        arguments = ("--topic", str(self.name), "--now", now)
        done = submit(self._sandbox, "clean_log", *arguments, kill_at=step)
        if done.returncode not in (0, -9, 137):
            self._told.problems.append(f"kill -9 at {step}: {done.stderr[-1000:]}")
        self._told.happened[KILL_9 if done.returncode else "kill -9 came too late"] += 1

    def check_end(self, expected: dict[int, View]) -> None:
        """The log is the undisturbed one; nothing is held, announced or in flight any more."""
        topic = settle(load(self._spark, self.name), "expire_segments")
        assert_counted(self._spark, self.name)
        topic = load(self._spark, self.name)
        problems = self._told.problems
        problems += [f"{left} is left" for left in (ROUND, REMOVING) if left in topic.properties]
        problems += [f"{MERGE} is left"] if open_merge(topic) is not None else []
        for table in tables_of(self.name):
            tags = {str(ref) for ref in java_table(self._spark, table).refs()} - {"main"}
            problems += [f"{table} has tags: {sorted(tags)}"] if tags else []
        views = _views(self._spark, self.name)
        for partition, view in expected.items():
            for part in View._fields:
                ours, theirs = getattr(views[partition], part), getattr(view, part)
                if ours != theirs:
                    problems.append(f"partition {partition}: {part} {ours} != {theirs}"[:3000])

    def _until_done(self, what: str, job: Callable[[], object]) -> None:
        for _ in range(MOST_TRIES):
            is_full = self._tools.fill_disks and self._rng.random() < 0.15
            try:
                with self._full_disk() if is_full else nullcontext():
                    self._look_and_do(job)
            except KilledError:
                continue
            except ForeignChangeError:
                raise
            except Exception as error:
                self._told.changed[FULL_DISK] += is_full
                self._told.happened[f"{what}: {type(error).__name__}"] += 1
                last = error
                continue
            return
        raise EbbtideError(f"{what} is stuck: {last}")

    def _full_disk(self) -> AbstractContextManager[None]:
        self._told.happened[FULL_DISK] += 1
        return full_disk(self._spark, self._rng.choice([0, 500, 2_000, 6_000]))

    def _look_and_do(self, job: Callable[[], object]) -> None:
        if exists(self._spark, self.name):
            count_own(load(self._spark, self.name))
        job()
        count_own(load(self._spark, self.name))

    def _visit(self) -> None:
        """A stranger changes rows: that is noticed, and taken back."""
        self._again(self._count)
        with self._tools.keeping_snapshots():
            self._be_changed()

    def _be_changed(self) -> None:
        what = self._rng.choice(["append", "delete", "roll back"])
        table = self._rng.choice(tables_of(self.name))
        if not self._change(what, table):
            return
        self._told.happened[f"stranger: {what}"] += 1
        try:
            self._again(self._count)
        except ForeignChangeError:
            self._again(self._take_back)
            self._again(self._count)
        else:
            self._told.problems.append(f"nobody noticed: {what} of {table}")

    def _again(self, work: Callable[[], object]) -> None:
        """Do work that is no job, again where it is killed."""
        for _ in range(MOST_TRIES):
            with suppress(KilledError):
                work()
                return

    def _count(self) -> None:
        count_own(load(self._spark, self.name))

    def _take_back(self) -> None:
        execute_repair(plan_repair(self._spark, self.name, 0, RepairInput(), keeps=False))

    def _change(self, what: str, table: str) -> bool:
        """Whether the stranger found anything to change."""
        before = java_table(self._spark, table).currentSnapshot()
        if before is None or not self._spark.table(table).limit(1).count():
            return False
        offset = "offset" if table == self.name.records_table else "base_offset"
        if what == "append":
            self._spark.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 3")
        elif what == "delete":
            self._spark.sql(
                f"DELETE FROM {table} WHERE {offset} = (SELECT max({offset}) FROM {table})"
            )
        elif before.parentId() is None or self._snapshot(table, before.parentId()) is None:
            return False
        else:
            self._spark.sql(
                f"CALL lake.system.rollback_to_snapshot('{table}', {before.parentId()})"
            )
        return True

    def _snapshot(self, table: str, snapshot: int) -> object | None:
        return java_table(self._spark, table).snapshot(snapshot)


def _night(
    spark: SparkSession, name: TopicName, topic: Topic, number: int, home: Path
) -> Iterator[Job]:
    """The jobs of a night, in their order, once the log has grown."""
    a_round = topic.rounds[number]
    now_ms = a_round.now_ms
    grow_source(home / "log", topic, number, range(PARTITIONS))
    yield "ingest", lambda: ingest(spark, str(name), home / "log", now_ms, accept_gap=True)
    configure(spark, name, topic.config_at(number))
    for table in tables_of(name):  # so that ours expire, too
        spark.sql(
            f"ALTER TABLE {table} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')"
        )
    yield "mark", lambda: mark(spark, str(name))
    if requested := _requested(topic, number):
        yield (
            "delete",
            lambda: execute_delete(plan_delete(load(spark, name), requested, now_ms)),
        )
    yield "clean", lambda: clean(spark, str(name), now_ms)
    if a_round.retention:
        yield "expire", lambda: expire(spark, str(name), now_ms)
    yield "merge", lambda: merge_segments(settle(load(spark, name), "expire_segments"), at_least=2)
    yield (
        "expire_snapshots",
        lambda: execute_expire_snapshots(settle(load(spark, name), "expire_snapshots")),
    )


def _requested(topic: Topic, number: int) -> dict[int, int]:
    """What is to be deleted in a night, by partition."""
    return {
        partition: offset
        for partition, log in enumerate(topic.partitions)
        if (offset := log.delete_records[number]) is not None
    }


def _views(spark: SparkSession, name: TopicName) -> dict[int, View]:
    return {p: view_of_table(spark, name, p) for p in load(spark, name).partitions}
