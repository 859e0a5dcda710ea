"""Erasures that are killed, or meet other work on the topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ebbtide.errors import (
    CommitConflictError,
    ForeignLogError,
    UnfinishedWorkError,
)
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.jobs.erase_keys.stage import execute_erase, prepare_and_plan
from ebbtide.settings.names import TopicName
from ebbtide.state.topic_state import APPEND, to_properties
from tests.jobs.erase_keys.closed_archive import (
    ERASED_MS,
    batch,
    batches,
    configure,
    erase,
    erased,
    erasure_of,
    records,
)
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.nights import ingest, mark
from tests.tables.partition_log import write_segments

APPEND_STEPS = [step for step in Step if step.name.startswith("APPEND_")]


def test_an_erasure_that_is_killed_at_one_commit_after_the_other_is_finished_by_its_request(
    spark: SparkSession, name: TopicName, kill_at: list[Step]
) -> None:
    mark(spark, str(name))
    kill_at += [*APPEND_STEPS, Step.ERASURE_ROWS, Step.MARK_STATE]
    while kill_at:
        with pytest.raises(KilledError):
            erase(spark, name, erasure_of("a", "c", "x"))
    erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)


@pytest.mark.long
@pytest.mark.parametrize("step", APPEND_STEPS)
def test_a_killed_erasure_is_finished_by_another_request(
    spark: SparkSession, name: TopicName, kill_at: list[Step], step: Step
) -> None:
    kill_at.append(step)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a"))
    erase(spark, name, erasure_of("b", run_id="erase-2", now_ms=ERASED_MS + 1))
    keys = [key for _, _, key, value in records(spark, name) if value is None]
    was_appended = step in (Step.APPEND_BATCHES, Step.APPEND_STATE)
    assert sorted(keys) == (["a", "a", "b", "c"] if was_appended else ["b", "c"])
    state = load(spark, name).partitions[1]
    assert state.first_appended_offset == (1 if was_appended else -1)
    assert APPEND not in load(spark, name).properties


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.APPEND_STARTED, Step.APPEND_RECORDS])
def test_of_two_at_a_time_each_key_gets_one_tombstone(
    spark: SparkSession, name: TopicName, meanwhile: Meanwhile, step: Step
) -> None:
    other = erasure_of("a", "b", run_id="erase-2")
    meanwhile(step, lambda: erase(spark, name, other))
    with pytest.raises(CommitConflictError):
        erase(spark, name, erasure_of("a"))
    erase(spark, name, erasure_of("a"))
    tombstones = [(p, key) for p, _, key, value in records(spark, name) if value is None]
    assert tombstones == [(0, "c"), (0, "a"), (0, "b"), (1, "a")]
    counts = [b["record_count"] for b in batches(spark, name) if b["base_offset"] >= 6]
    assert counts == [2]


@pytest.mark.long
def test_an_ingest_takes_no_offsets_that_were_appended(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    ingest(spark, str(name), source, ERASED_MS)
    erase(spark, name, erasure_of("a"))
    ingest(spark, str(name), source, ERASED_MS + 1)
    write_segments(source, {6: [batch(6, ("e", "1"))], 7: []})
    with pytest.raises(ForeignLogError, match="where direct appends to the table begin"):
        ingest(spark, str(name), source, ERASED_MS + 2)
    erased_keys = [key for _, _, key, value in records(spark, name) if value is None]
    assert erased_keys == ["c", "a", "a"]


def test_what_a_killed_ingest_left_is_not_passed_over(
    spark: SparkSession, name: TopicName, source: Path, kill_at: list[Step]
) -> None:
    write_segments(source, {6: [batch(6, ("e", "1"))], 7: []})
    kill_at.append(Step.INGEST_BATCHES)
    with pytest.raises(KilledError):
        ingest(spark, str(name), source, ERASED_MS)
    with pytest.raises(UnfinishedWorkError, match="ingest_segments is running or was killed"):
        erase(spark, name, erasure_of("a"))


@pytest.mark.long
def test_what_another_erasure_left_beyond_the_end_is_taken_in(
    spark: SparkSession, name: TopicName, kill_at: list[Step]
) -> None:
    """Nothing says any more that it was in flight: its tombstones do."""
    kill_at.append(Step.APPEND_BATCHES)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a", "c", "x"))
    before = {p: s.moved(first_appended_offset=-1) for p, s in load(spark, name).partitions.items()}
    changes: dict[str, str | None] = {APPEND: None}
    for partition, state in before.items():
        changes |= to_properties(partition, state)
    configure(spark, name, changes)
    erase(spark, name, erasure_of("a", "c", "x"))
    erased(spark, name)


@pytest.mark.long
def test_a_plan_made_before_another_appended_is_made_again(
    spark: SparkSession, name: TopicName, kill_at: list[Step]
) -> None:
    mine = erasure_of("a", "b")
    plan = prepare_and_plan(spark, name, mine)
    kill_at.append(Step.APPEND_STATE)
    with pytest.raises(KilledError):
        erase(spark, name, erasure_of("a", run_id="erase-2"))
    with pytest.raises(CommitConflictError, match="found rows that another job appended"):
        execute_erase(plan)
    erase(spark, name, mine)
    tombstones = [(p, key) for p, _, key, value in records(spark, name) if value is None]
    assert tombstones == [(0, "c"), (0, "a"), (0, "b"), (1, "a")]
