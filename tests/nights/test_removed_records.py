"""Each record that left a topic is in the row of one run, whatever became of the runs."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import Row, SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.ledger.own_tables import RUNS
from ebbtide.runner import application
from ebbtide.settings.names import TopicName
from tests.commit_points import record_hit
from tests.fresh_seed import seeds
from tests.kafka.scenarios import Topic
from tests.lake_sandbox import LakeSandbox
from tests.nights.spark_replay import TOPIC, configure, grow_source
from tests.nights.test_reported_numbers import PARTITIONS, other_settings, topic_of
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import ANY_SHARE, DAY_MS, at, set_properties

FIXED_SEED = 56
DISTURBED_SHARE = 0.7
CONFIG = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}
SEGMENTS = [[Message("a", "1")], [Message("a", "2")], [Message("b", "1")]]
LEFT_BEHIND = "by a cleaner round of a killed job, which this run finished first"
KILLED = "by a run of clean_log that was killed before it wrote its row"
ERASURE = ("--requested-by", "a", "--reason", "b", "--append")


class KilledError(BaseException):
    """Stands for a process that ends by SIGKILL: nothing of it writes a row."""


def kill(step: Step) -> None:
    record_hit(step)
    raise KilledError(step)


def conflict(step: Step) -> None:
    raise CommitConflictError(f"another writer was faster at {step}")


def fail(step: Step) -> None:
    raise ValueError(f"a bug at {step}")


Ending = Callable[[Step], None]


@dataclass(slots=True)
class Disturbances:
    """Ends a job at one of its commits: the next of a step, or after so many of any."""

    rng: random.Random | None = None  # ends jobs at random
    end: Ending | None = None
    step: Step | None = None
    left: int = -1
    happened: Counter[str] = field(default_factory=Counter)

    def next_job(self) -> None:
        """Choose how the next job ends, where chance has to."""
        if self.rng is not None and self.rng.random() < DISTURBED_SHARE:
            self.left = self.rng.randrange(8)
            self.end = self.rng.choice([kill, conflict, fail])

    def before_commit(self, step: Step) -> None:
        """End the job if this is the commit."""
        if self.end is None:
            return
        self.left -= 1
        if step is self.step or self.left == -1:
            end, self.end = self.end, None
            self.happened[f"{end.__name__} at {step}"] += 1
            end(step)


@dataclass(slots=True)
class Lake:
    """A topic whose jobs are disturbed, and the records that were gone after any of them."""

    spark: SparkSession
    name: TopicName
    disturbances: Disturbances = field(default_factory=Disturbances)
    held: set[tuple[int, int]] = field(default_factory=set)
    gone: set[tuple[int, int]] = field(default_factory=set)

    def run(self, job: str, now_ms: int, *arguments: str, tries: int = 2) -> None:
        """Run the job, of which only the first try is disturbed; a second has to succeed."""
        main: Callable[[Sequence[str]], int] = import_module(f"jobs.{job}").main
        words = [*arguments, "--now", at(now_ms).isoformat(), "--run-id", f"{job}-{now_ms}"]
        if job not in ("ingest_segments", "delete_records"):
            words += ["--topic", str(self.name)]
        self.disturbances.next_job()
        code = 1
        with suppress(KilledError):
            code = main(words)
        self._look()
        self.disturbances.end = None
        if code and tries > 1:
            assert main(words) == 0
            self._look()

    def reported(self) -> int:
        """The records that the rows in `runs` say were removed."""
        return sum(row["rows_removed"] for row in self._rows())

    def notes(self) -> list[str]:
        """The notes of all runs on the topic."""
        results = [json.loads(row["result"])["topic"] for row in self._rows()]
        return [result["note"] for result in results if "note" in result]

    def _rows(self) -> list[Row]:
        return self.spark.table(RUNS.in_catalog()).where(f"topic = '{self.name}'").collect()

    def _look(self) -> None:
        if not self.spark.catalog.tableExists(self.name.records_table):
            return
        rows = self.spark.table(self.name.records_table).select("partition", "offset").collect()
        now = {(row["partition"], row["offset"]) for row in rows}
        self.gone |= self.held - now
        self.held = now


def run_nights(lake: Lake, topic: Topic, directory: Path, rng: random.Random) -> None:
    """Let the topic grow and go through all jobs, then erase keys of it."""
    source = ("--source", str(directory), "--cluster", lake.name.cluster, "--accept-gap")
    now_ms = 0
    for number, a_round in enumerate(topic.rounds):
        now_ms = a_round.now_ms
        grow_source(directory, topic, number, range(PARTITIONS))
        lake.run("ingest_segments", now_ms, *source)
        configure(lake.spark, lake.name, topic.config_at(number))
        set_properties(lake.spark, str(lake.name), {**other_settings(rng), **ANY_SHARE})
        lake.run("mark_tombstones", now_ms)
        asked = {
            p: partition.delete_records[number] for p, partition in enumerate(topic.partitions)
        }
        partitions = [{"partition": p, "offset": o} for p, o in asked.items() if o is not None]
        if partitions:
            request = {"topics": [{"topic": str(lake.name), "partitions": partitions}]}
            lake.run("delete_records", now_ms, "--request", json.dumps(request))
        lake.run("clean_log", now_ms)
        lake.run("expire_segments", now_ms)
        lake.run("expire_snapshots", now_ms)
    set_properties(lake.spark, str(lake.name), {"ebbtide.source": ""})
    lake.run("erase_keys", now_ms + 1, *ERASURE)
    lake.run("clean_log", now_ms + 10 * DAY_MS)
    lake.run("expire_segments", now_ms + 10 * DAY_MS)


@pytest.fixture
def lake(sandbox: LakeSandbox, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A topic to be; nothing disturbs its jobs yet."""
    sandbox.take_jobs(monkeypatch, EBBTIDE_ERASE_KEYS="key-0\nkey-1\nkey-2\nkey-3")
    monkeypatch.setattr(application, "time", SimpleNamespace(sleep=lambda _: None))
    lake = Lake(sandbox.session, TopicName(cluster, TOPIC))
    monkeypatch.setattr(commits, "before_commit", lake.disturbances.before_commit)
    return lake


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(__file__, FIXED_SEED))
def test_each_record_that_left_is_in_the_row_of_one_run(
    seed: int, lake: Lake, tmp_path: Path
) -> None:
    """Jobs are killed, lose races and fail at random commits, and are run again."""
    rng = random.Random(seed)
    lake.disturbances.rng = rng
    run_nights(lake, topic_of(rng.randrange(10**6)), tmp_path / "log", rng)
    assert lake.gone
    assert lake.reported() == len(lake.gone), dict(lake.disturbances.happened)


@pytest.mark.long(but="killed before its row")
@pytest.mark.parametrize(
    ("step", "end", "then", "note"),
    [
        (Step.ROUND_RECORDS, kill, "expire_segments", LEFT_BEHIND),
        (Step.ROUND_BATCHES, kill, "clean_log", None),
        (Step.ROUND_BATCHES, fail, "clean_log", "before the run failed"),
        pytest.param(Step.RUN_ROW, kill, "clean_log", KILLED, id="killed before its row"),
    ],
)
def test_a_note_says_how_records_left_that_the_numbers_do_not_hold(
    step: Step,
    end: Ending,
    then: str,
    note: str | None,
    lake: Lake,
    tmp_path: Path,
) -> None:
    write_log(tmp_path, TOPIC, SEGMENTS, CONFIG)
    source = ("--source", str(tmp_path), "--cluster", lake.name.cluster)
    lake.run("ingest_segments", FIRST_MS, *source)
    lake.run("mark_tombstones", FIRST_MS)
    lake.disturbances.step, lake.disturbances.end = step, end
    lake.run("clean_log", FIRST_MS + DAY_MS, tries=1)
    lake.run(then, FIRST_MS + 2 * DAY_MS)
    assert lake.reported() == len(lake.gone) == 1
    assert [re.sub(" at .* UTC", "", text) for text in lake.notes()] == (
        [f"1 records were removed {note}"] if note else []
    )
