"""An adopted table that has another log by now: each job says so and leaves its rows as they are.

How the log was made anew decides which error says it. The advice of each leads out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import EbbtideError, ExitCode, ForeignChangeError, ForeignLogError
from ebbtide.iceberg.topics import current_snapshot
from ebbtide.ledger.plans import Plan
from ebbtide.settings.names import TopicName
from ebbtide.specs.erase_request import KEYS
from jobs import (
    abandon_table,
    adopt_table,
    clean_log,
    delete_records,
    erase_keys,
    expire_segments,
    undo_run,
)
from tests.jobs.undo_run.bench import SETTINGS, AdoptedBench
from tests.jobs.undo_run.twins import of_request
from tests.lake_sandbox import LakeSandbox
from tests.tables.adopted import SPARK_COLUMNS, Record, append, spark_table
from tests.tables.job_words import settings_of
from tests.tables.planned import Jobs

KEY = "x"
# A round that took these for rows of the old log would remove the first two.
NEW = [0, 1, 2]
NEWER_MS, NOW_MS, LATER_MS = 25_000, 40_000, 50_000
WORKING: dict[str, ModuleType] = {
    "clean_log": clean_log,
    "expire_segments": expire_segments,
    "delete_records": delete_records,
    "erase_keys": erase_keys,
    "undo_run": undo_run,
}


def truncate(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"TRUNCATE TABLE {name.records_table}")


def drop_and_create(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DROP TABLE {name.records_table}")
    spark_table(spark, str(name))


def replace(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"CREATE OR REPLACE TABLE {name.records_table} ({SPARK_COLUMNS}) USING iceberg")


def leave(_: SparkSession, __: TopicName) -> None:
    """The live topic was made anew, and its sink goes on in the same table."""


def take_old_rows_out(spark: SparkSession, name: TopicName) -> None:
    spark.sql(f"DELETE FROM {name.records_table} WHERE offset > 2")


@dataclass(frozen=True)
class Case:
    """How a log was made anew, the error that says so, and what leads out."""

    make_anew: Callable[[SparkSession, TopicName], None]
    error: type[EbbtideError] = ForeignLogError
    advice: str = "then run abandon_table and adopt_table"
    way_out: tuple[ModuleType, ...] = (abandon_table, adopt_table)
    start: int = 4  # of the five offsets of the old log, which has its last row still
    by_hand: Callable[[SparkSession, TopicName], None] = leave

    @property
    def left(self) -> list[int]:
        """The offsets in each partition: of the new log, and what is left of the old one."""
        is_left = self.make_anew is leave
        return [*NEW, *range(self.start, 5)] if is_left else NEW


CASES = {
    "truncated": Case(truncate),
    "created anew": Case(drop_and_create, ForeignChangeError, "run adopt_table", (adopt_table,)),
    "replaced": Case(replace),
    "appended to": Case(leave, by_hand=take_old_rows_out),
    "appended to what was empty": Case(leave, start=5),
}


@dataclass
class BegunAgain:
    """A topic whose log began again, a run on the old one, and plans from before, by job."""

    bench: AdoptedBench
    case: Case
    undone: str = ""
    plans: dict[str, Plan] = field(default_factory=dict)

    def begin(self) -> None:
        """Let the log begin again."""
        self.case.make_anew(self.bench.spark, self.bench.name)
        records = [Record(n, KEY, "v", p, NEWER_MS) for p in (0, 1) for n in NEW]
        append(self.bench.spark, str(self.bench.name), records)

    def asked(self, job: str, offset: int = 5) -> tuple[str, ...]:
        """What the job is asked; one of them for partition 0 alone."""
        if job == "delete_records":
            return of_request(self.bench.name, [{"partition": 0, "offset": offset}])
        more = {
            "undo_run": ("--run", self.undone),
            "erase_keys": ("--requested-by", "ann", "--reason", "7"),
        }
        return (*self.bench.of_topic, *more.get(job, ()))

    def assert_refused(self, job: str, *words: str) -> None:
        """Run the job, which says that it is another log and commits nothing to the table."""
        table = self.bench.name.records_table
        before = current_snapshot(self.bench.spark, table)
        assert self.bench.jobs.run(WORKING[job], *words) == ExitCode.FAILED
        row = self.bench.jobs.last_run()
        assert (row.error_class, row.rows_removed) == (self.case.error.__name__, 0), row.error
        assert self.case.advice in row.error
        assert current_snapshot(self.bench.spark, table) == before
        assert [self.bench.left(p) for p in (0, 1)] == [self.case.left] * 2


@pytest.fixture(scope="module")
def topics() -> dict[tuple[str, ...], BegunAgain]:
    """Topics by their fixtures' parameters: what is refused changes none."""
    return {}


@pytest.fixture
def begun(
    request: pytest.FixtureRequest,
    sandbox: LakeSandbox,
    jobs: Jobs,
    topics: dict[tuple[str, ...], BegunAgain],
    monkeypatch: pytest.MonkeyPatch,
) -> BegunAgain:
    """The topic of a case; each job has planned on the old log if that is asked for."""
    monkeypatch.setenv(KEYS, KEY)
    case, *planning = request.param
    name = TopicName("another_log", f"t{len(topics)}")
    if request.param not in topics:
        topic = BegunAgain(AdoptedBench(sandbox.session, jobs, name), CASES[case])
        topic.undone = topic.bench.delete(10_000, p0=topic.case.start, p1=topic.case.start)
        for job in planning:
            topic.plans[job] = jobs.plan(WORKING[job], NOW_MS, *topic.asked(job))
        topic.begin()
        topics[request.param] = topic
    topics[request.param].bench.jobs = jobs
    return topics[request.param]


def _each(*planning: str) -> list[object]:
    """Each case, of which one is short."""
    short = "truncated"
    return [
        pytest.param((c, *planning), id=c, marks=() if c == short else pytest.mark.long)
        for c in CASES
    ]


@pytest.mark.parametrize("begun", _each(), indirect=True)
@pytest.mark.parametrize("job", WORKING)
def test_no_job_takes_another_log_for_the_one_it_knew(begun: BegunAgain, job: str) -> None:
    begun.assert_refused(job, *begun.asked(job), *begun.bench.now(NOW_MS))


@pytest.mark.long
@pytest.mark.parametrize("begun", [("truncated", *WORKING)], ids=["planned"], indirect=True)
@pytest.mark.parametrize("job", WORKING)
def test_no_plan_of_the_old_log_is_executed_on_another(begun: BegunAgain, job: str) -> None:
    begun.assert_refused(job, "--plan", begun.plans[job].plan_id)


@pytest.mark.long
@pytest.mark.parametrize("begun", _each(), indirect=True)
def test_the_advice_leads_out(begun: BegunAgain) -> None:
    """Afterwards each job works on the new log alone, and no run on the old one is undone."""
    bench = begun.bench
    begun.case.by_hand(bench.spark, bench.name)
    for job in begun.case.way_out:
        more = settings_of(SETTINGS) if job is adopt_table else ()
        bench.run(job, NOW_MS, *more)
    assert [bench.left(p) for p in (0, 1)] == [NEW, NEW]
    assert "the table was adopted by run" in bench.refused(begun.undone, NOW_MS)
    bench.run(expire_segments, NOW_MS)
    assert [bench.left(p) for p in (0, 1)] == [NEW, NEW]
    cleaned = bench.run(clean_log, LATER_MS)
    assert [bench.left(p) for p in (0, 1)] == [[2], [2]]
    bench.undo(cleaned, LATER_MS)
    assert [bench.left(p) for p in (0, 1)] == [NEW, NEW]
