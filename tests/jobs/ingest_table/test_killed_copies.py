"""Copies of tables that are killed at each of their commits, while the table grows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import COPIED_SLICE
from tests.fresh_seed import seeds
from tests.jobs.ingest_table.copying import as_held, copied, copy, ends, held, rewrite
from tests.tables.adopted import Record, append
from tests.tables.contents import contents
from tests.tables.fixtures import KilledError, Meanwhile

OF_SLICE = (Step.COPY_SLICE, Step.INGEST_RECORDS, Step.INGEST_BATCHES, Step.INGEST_STATE)
OF_LATE_ROWS = (Step.QUARANTINE_TABLE, Step.QUARANTINE_RECORDS)
FIXED_SEED = 7


def test_a_run_that_is_killed_at_each_commit_is_finished_without_a_duplicate_or_a_hole(
    spark: SparkSession, name: TopicName, source: str, kill_at: list[Step]
) -> None:
    """In three slices; a later snapshot is not begun before the one that was."""
    append(spark, source, [Record(4, "a"), Record(6, "b"), Record(0, "c", None, 1)])
    unbroken = TopicName(name.cluster, "unbroken")
    copy(spark, unbroken, source, max_rows=1)
    kill_at += [Step.CREATE_TOPIC, *OF_SLICE]
    while kill_at:
        with pytest.raises(KilledError):
            copy(spark, name, max_rows=1)
    copy(spark, name, max_rows=1)
    assert contents(spark, name) == contents(spark, unbroken)
    assert copied(spark, name) == copied(spark, unbroken)
    assert COPIED_SLICE not in load(spark, name).properties


@pytest.mark.long
def test_late_rows_are_kept_once_whenever_a_run_is_killed(
    spark: SparkSession, name: TopicName, source: str, kill_at: list[Step]
) -> None:
    records = [Record(4, "a"), Record(6, "b")]
    append(spark, source, records)
    copy(spark, name)
    late = [Record(2, "x"), Record(5, "y")]
    append(spark, source, [late[0], Record(7, "c"), Record(8, "d")])
    for step in (*OF_LATE_ROWS, *OF_SLICE):
        kill_at.append(step)
        with pytest.raises(KilledError):
            copy(spark, name, max_rows=1)
    append(spark, source, [late[1], Record(8, "d"), Record(9, "e")])  # beside what is unfinished
    outcome = copy(spark, name, max_rows=1)
    assert outcome.partitions[0]["late"] == 2
    assert held(spark, name, name.quarantine_table) == as_held(late)
    new = [Record(7, "c"), Record(8, "d"), Record(9, "e")]
    assert held(spark, name) == as_held([*records, *new])
    append(spark, source, [late[1]])
    assert copy(spark, name).partitions[0]["repeated"] == 1
    assert len(held(spark, name, name.quarantine_table)) == 2


def test_a_row_that_came_before_is_seen_once_more_by_the_run_after_a_killed_one(
    spark: SparkSession, name: TopicName, source: str, kill_at: list[Step]
) -> None:
    append(spark, source, [Record(4, "a")])
    copy(spark, name)
    append(spark, source, [Record(4, "a")])
    kill_at.append(Step.COPY_SEEN)
    with pytest.raises(KilledError):
        copy(spark, name)
    assert copy(spark, name).partitions[0]["repeated"] == 1
    assert held(spark, name) == as_held([Record(4, "a")])
    assert copy(spark, name).partitions[0]["repeated"] == 0


def test_these_are_all_steps_of_a_run(
    spark: SparkSession, name: TopicName, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Step] = []
    monkeypatch.setattr(commits, "before_commit", steps.append)
    append(spark, source, [Record(4, "a")])
    copy(spark, name)
    mine = [step for step in steps if step is not Step.ROWS_COUNTED]
    assert mine == [Step.CREATE_TOPIC, *OF_SLICE]
    assert {step for step in Step if step.startswith("copy")} == {Step.COPY_SLICE, Step.COPY_SEEN}


@pytest.mark.long(but="ingest_batches")
@pytest.mark.parametrize("step", OF_SLICE)
def test_two_runs_at_a_time_copy_each_row_once(
    spark: SparkSession, name: TopicName, source: str, meanwhile: Meanwhile, step: Step
) -> None:
    append(spark, source, [Record(0, "a")])
    copy(spark, name)
    append(spark, source, [Record(1, "b"), Record(2, "c")])
    meanwhile(step, lambda: copy(spark, name))
    with pytest.raises(CommitConflictError):
        copy(spark, name)
    copy(spark, name)
    assert [record.offset for record in held(spark, name)] == [0, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(__file__, FIXED_SEED))
def test_each_row_is_copied_or_late_whatever_happens(
    spark: SparkSession, name: TopicName, source: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come in any order, some twice; runs are killed anywhere, and files are rewritten."""
    rng = random.Random(seed)
    killing = _Killing(rng)
    monkeypatch.setattr(commits, "before_commit", killing)
    arriving = _arriving(rng)
    for _ in range(4):
        arrived = [arriving.pop(0) for _ in range(min(len(arriving), rng.randrange(3, 12)))]
        append(spark, source, [*arrived, *rng.sample(arrived, len(arrived) // 3)])
        if rng.random() < 0.3:
            rewrite(spark, source)
        killing.is_at_work = rng.random() < 0.6
        with suppress(KilledError):
            copy(spark, name, max_rows=rng.randrange(1, 9))
    killing.is_at_work = False
    append(spark, source, arriving)
    copy(spark, name)
    found = held(spark, name)
    if spark.catalog.tableExists(name.quarantine_table):
        found += held(spark, name, name.quarantine_table)
    everything = as_held(_records(range(3), range(16)))
    assert sorted(found, key=lambda row: row[:2]) == everything
    assert {end for _, end in ends(spark, name).values()} == {16}


class _Killing:
    """Ends a run before some commit, now and then."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_at_work = False

    def __call__(self, step: Step) -> None:
        if self.is_at_work and self._rng.random() < 0.25:
            raise KilledError(step)


def _records(partitions: Sequence[int], offsets: Sequence[int]) -> list[Record]:
    return [
        Record(offset, f"k{offset % 5}", f"v{p}-{offset}", p)
        for p in partitions
        for offset in offsets
    ]


def _arriving(rng: random.Random) -> list[Record]:
    """Records in about the order of their offsets, a few of them much later."""
    records = _records(range(3), range(16))
    late = {id(record): rng.choice((0, 0, 0, 0, 6)) for record in records}
    return sorted(records, key=lambda row: row.offset + late[id(row)] + rng.random() * 3)
