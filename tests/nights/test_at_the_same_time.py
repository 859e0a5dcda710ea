"""What the night and a manual request do at the same time to the same tables, and who reads them.

Real threads, each in a Spark session of its own, as in one application; and two real processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg import file_commits
from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import compare_and_set, load
from ebbtide.iceberg.work_tags import WorkTag, tagging
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.expire_segments import execute_expire, plan_expire
from ebbtide.jobs.expire_snapshots import execute_expire_snapshots
from ebbtide.jobs.replicate_log import execute_replicate, plan_replicate
from ebbtide.jobs.unfinished import settle
from ebbtide.runner.application import ATTEMPTS_ON_CONFLICT
from ebbtide.runner.runs_table import JobOutcome
from ebbtide.settings.names import TopicName
from tests.jobs.replicate_log.replicas import assert_sound, replica_of, sandbox, set_replicas
from tests.lake_sandbox import LakeSandbox
from tests.runner.submit import submit
from tests.tables.fixtures import Meanwhile
from tests.tables.kafka_view import offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, at, ingest, mark
from tests.tables.other_tools import tables_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.long

__all__ = ["sandbox"]

NIGHT_MS = FIRST_MS + 10 * DAY_MS
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
SEGMENTS = 12
# Each segment writes the three keys of the one before again, and one of its own.
MESSAGES = [
    [*(Message(key, str(n)) for key in "abc"), Message(f"k{n}", "1")] for n in range(SEGMENTS)
]
END = 4 * SEGMENTS
ACTIVE = END - 4
_NEWEST = {message.key: offset for offset, message in enumerate(chain(*MESSAGES[:-1]))}
# What is left of a key is its newest, and no key written from there on is missing.
CLEANED = {*_NEWEST.values(), *range(ACTIVE, END)}
Job = Callable[[SparkSession, TopicName], object]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    name = TopicName(cluster, "t")
    write_log(tmp_path / "log", "t", MESSAGES, CONFIG)
    ingest(sandbox.session, str(name), tmp_path / "log", FIRST_MS)
    mark(sandbox.session, str(name))
    return name


def session_of(sandbox: LakeSandbox) -> SparkSession:
    """One more session, with the sandbox's catalogs."""
    session = sandbox.session.newSession()
    for key, value in sandbox.catalogs().items():
        session.conf.set(key, value)
    return session


def together(sandbox: LakeSandbox, name: TopicName, *jobs: Job | list[Job]) -> list[object]:
    """Run the jobs at the same time, those of a list one after the other; what each returns last.

    Each is tried again as run_topics does.
    """

    def run(job: Job | list[Job]) -> object:
        session = session_of(sandbox)
        if isinstance(job, list):
            return [attempt(session, one) for one in job][-1]
        return attempt(session, job)

    def attempt(session: SparkSession, job: Job) -> object:
        for number in range(1, ATTEMPTS_ON_CONFLICT):
            try:
                return job(session, name)
            except CommitConflictError:
                time.sleep(number)
        return job(session, name)

    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(run, job) for job in jobs]
        return [future.result(timeout=PATIENCE_S) for future in futures]


def clean(session: SparkSession, name: TopicName) -> JobOutcome:
    return execute_clean(plan_clean(settle(load(session, name), "expire_segments"), NIGHT_MS))


def expire(session: SparkSession, name: TopicName) -> JobOutcome:
    return execute_expire(plan_expire(settle(load(session, name), "expire_segments"), NIGHT_MS))


def expire_snapshots(session: SparkSession, name: TopicName) -> JobOutcome:
    return execute_expire_snapshots(settle(load(session, name), "expire_snapshots"))


def replicate(session: SparkSession, name: TopicName) -> JobOutcome:
    return execute_replicate(plan_replicate(load(session, name)), NIGHT_MS)


def delete_to(offset: int, timeout_ms: int = 1) -> Job:
    def delete(session: SparkSession, name: TopicName) -> JobOutcome:
        topic = settle(load(session, name), "expire_segments")
        return execute_delete(plan_delete(topic, {0: offset}, NIGHT_MS, timeout_ms))

    return delete


def test_a_request_beside_the_night_loses_nothing_and_goes_not_back(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    topic = load(sandbox.session, name)
    compare_and_set(topic, Step.CONFIGURE_TOPIC, lambda _: {"kafka.retention.bytes": "900"})
    night: list[Job] = [clean, expire, expire_snapshots]
    together(sandbox, name, night, delete_to(14), delete_to(9))
    together(sandbox, name, night)
    view = view_of_table(sandbox.session, name, 0)
    assert view.log_start_offset >= 14
    records = {record[0]: (record[3], record[4]) for record in view.records}
    assert min(records) >= view.log_start_offset
    assert set(records) == {o for o in CLEANED if o >= view.log_start_offset}
    assert_sound(sandbox, name)


def test_a_replica_is_fed_while_it_is_asked_to_delete_and_cleaned(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    set_replicas(sandbox, name, f"other.{name.cluster}")
    outcomes = together(sandbox, name, replicate, delete_to(21, 200_000), clean)
    deleted = outcomes[1]
    assert isinstance(deleted, JobOutcome)
    assert deleted.partitions[0]["low_watermark"] == 21
    replica = replica_of(name)
    together(
        sandbox, name, replicate, lambda s, n: clean(s, replica), lambda s, n: expire(s, replica)
    )
    together(sandbox, name, replicate, clean)
    for topic in (name, replica):
        view = view_of_table(sandbox.session, topic, 0)
        assert (view.log_start_offset, view.log_end_offset) == (21, END)
        assert min(offsets(view)) >= 21
        assert_sound(sandbox, topic)
    newest = {record[3]: record[4] for record in view_of_table(sandbox.session, name, 0).records}
    copied = {record[3]: record[4] for record in view_of_table(sandbox.session, replica, 0).records}
    assert copied == newest


ROUND_STEPS = [
    Step.ROUND_STARTED,
    Step.ROUND_RECORDS,
    Step.ROUND_RECORDS_DONE,
    Step.ROUND_BATCHES,
    Step.ROUND_STATE,
]


@pytest.mark.parametrize("step", ROUND_STEPS)
@pytest.mark.parametrize("offset", [20, 21, END])
def test_a_request_removes_what_a_round_has_judged(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile, step: Step, offset: int
) -> None:
    # It was planned before the round began, so that it does not finish the round first.
    request = plan_delete(load(sandbox.session, name), {0: offset}, NIGHT_MS)
    meanwhile(step, lambda: execute_delete(request))
    together(sandbox, name, clean)
    assert_cleaned_from(sandbox, name, offset)


@pytest.mark.parametrize("step", ROUND_STEPS)
@pytest.mark.parametrize("offset", [2, 20, 21, 23])
def test_an_expiry_removes_segments_that_a_round_has_judged(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile, step: Step, offset: int
) -> None:
    """A request leaves headers of whole segments to the expiry, and the round removes them too."""
    delete_to(offset)(sandbox.session, name)
    expiry = plan_expire(load(sandbox.session, name), NIGHT_MS)
    meanwhile(step, lambda: execute_expire(expiry))
    together(sandbox, name, clean)
    assert_cleaned_from(sandbox, name, offset)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("offset", [20, 21, END])
def test_a_request_removes_files_that_a_round_has_written_deletions_for(
    sandbox: LakeSandbox,
    name: TopicName,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    offset: int,
) -> None:
    request = plan_delete(load(sandbox.session, name), {0: offset}, NIGHT_MS)
    table = tables_of(name)[number]
    waiting = [lambda: execute_delete(request)]

    def after_the_request(loaded: Table, tag: WorkTag, before: int) -> object:
        if waiting and loaded.name == table:
            waiting.pop()()
        return tagging(loaded, tag, before)

    monkeypatch.setattr(file_commits, "tagging", after_the_request)
    together(sandbox, name, clean)
    assert not waiting
    assert_cleaned_from(sandbox, name, offset)


def assert_cleaned_from(sandbox: LakeSandbox, name: TopicName, offset: int) -> None:
    """The log begins there, one more round finds nothing, and no vector is for a file that left."""
    together(sandbox, name, clean)
    view = view_of_table(sandbox.session, name, 0)
    assert (view.log_start_offset, view.log_end_offset) == (offset, END)
    assert set(offsets(view)) == {o for o in CLEANED if o >= offset}
    assert_sound(sandbox, name)
    for table in tables_of(name):
        vectors = sandbox.session.sql(f"SELECT referenced_data_file FROM {table}.delete_files")
        files = sandbox.session.sql(f"SELECT file_path FROM {table}.data_files")
        assert set(vectors.collect()) <= set(files.collect())


def test_of_two_requests_that_read_the_same_state_the_later_offset_stays(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile
) -> None:
    early = plan_delete(load(sandbox.session, name), {0: 5}, NIGHT_MS)
    late = plan_delete(load(sandbox.session, name), {0: 30}, NIGHT_MS)
    meanwhile(Step.LOG_START_OFFSET, lambda: execute_delete(late))
    # Its log start is where the other put it, which its answer may not deny.
    assert execute_delete(early).partitions[0]["low_watermark"] == 30
    assert load(sandbox.session, name).partitions[0].log_start_offset == 30
    assert min(offsets(view_of_table(sandbox.session, name, 0))) == 30


def test_two_processes_at_a_time_end_at_the_larger_offset(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    request = '{{"topics":[{{"topic":"{0}","partitions":[{{"partition":0,"offset":{1}}}]}}]}}'
    with ThreadPoolExecutor() as pool:
        done = [
            pool.submit(
                submit,
                sandbox,
                "delete_records",
                "--request",
                request.format(name, offset),
                "--now",
                at(NIGHT_MS).isoformat(),
            )
            for offset in (10, 25)
        ]
        ended = [future.result() for future in done]
    for process in ended:  # pytest shows it if one fails, and would cut it in a message
        print(process.stdout, process.stderr)
    assert [process.returncode for process in ended] == [0, 0]
    view = view_of_table(sandbox.session, name, 0)
    assert (view.log_start_offset, offsets(view)) == (25, list(range(25, END)))


def test_a_reader_sees_nothing_below_an_answered_low_watermark_and_no_hole_above(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    stopped = Event()
    answered: list[int] = [0]
    # What was answered before each read began, and the offsets that it found.
    reads: list[tuple[int, list[int]]] = []

    def read(session: SparkSession) -> None:
        while not stopped.is_set():
            low_watermark = answered[-1]
            query = f"SELECT offset FROM {name.records_table} ORDER BY offset"
            rows = session.sql(query).collect()
            reads.append((low_watermark, [row["offset"] for row in rows]))

    with ThreadPoolExecutor() as pool:
        reader = pool.submit(read, session_of(sandbox))
        try:
            for offset in (6, 17, 33, 46):
                outcome = delete_to(offset)(sandbox.session, name)
                assert isinstance(outcome, JobOutcome)
                answered.append(outcome.partitions[0]["low_watermark"])
                while reads[-1:] == [] or reads[-1][0] != offset:  # a read that began since
                    assert not reader.done()
                    time.sleep(0.1)
        finally:
            stopped.set()
        reader.result(timeout=PATIENCE_S)
    assert answered == [0, 6, 17, 33, 46]
    for low_watermark, seen in reads:
        assert seen == list(range(seen[0], END)), "a hole"
        assert seen[0] >= low_watermark
