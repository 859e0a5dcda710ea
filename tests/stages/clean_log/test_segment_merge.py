"""Small segments become one, and nobody who reads the tables sees a difference."""

from pathlib import Path

import pytest
from pyspark.sql import Row

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import load
from ebbtide.log.settings.names import TopicName
from ebbtide.stages.clean_log.segment_merge import AT_LEAST, merge_segments
from ebbtide.stages.clean_log.stage import execute_clean, plan_clean
from ebbtide.stages.unfinished import settle
from tests.lake_sandbox import LakeSandbox
from tests.stages.delete_records.test_delete_records import delete
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import View, offsets, view_of_table
from tests.tables.logs import FIRST_MS, Message, write_log
from tests.tables.nights import DAY_MS, clean, expire, ingest, mark

STEPS = (Step.MERGE_STARTED, Step.MERGE_RECORDS, Step.MERGE_BATCHES, Step.MERGE_STATE)
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Each night's key supersedes the one of the night before; one key stays; a tombstone waits.
NIGHTS = [[Message("a", str(n)), Message(f"k{n}", "1")] for n in range(AT_LEAST)]
MESSAGES = [*NIGHTS, [Message("k0", None), Message("a", "last")], [Message("z", "1")]]


@pytest.fixture
def name(sandbox: LakeSandbox, cluster: str, tmp_path: Path) -> TopicName:
    """A cleaned topic: nine small segments, merged by the round, and an active one."""
    write_log(tmp_path / "log", "t", MESSAGES, COMPACT)
    ingest(sandbox.session, f"{cluster}.t", tmp_path / "log", FIRST_MS)
    mark(sandbox.session, f"{cluster}.t")
    clean(sandbox.session, f"{cluster}.t", NIGHT_MS)
    return TopicName(cluster, "t")


def segments_of_files(sandbox: LakeSandbox, name: TopicName) -> list[list[int]]:
    """In which physical segments records and batches have a data file."""
    return [
        [
            row["segment"]
            for row in sandbox.session.sql(
                f"SELECT partition.segment FROM {table}.data_files ORDER BY 1"
            ).collect()
        ]
        for table in (name.records_table, name.batches_table)
    ]


def view_of(sandbox: LakeSandbox, name: TopicName) -> View:
    return view_of_table(sandbox.session, name, 0)


def ids_of_rows(sandbox: LakeSandbox, name: TopicName) -> list[list[Row]]:
    """By which others follow the rows of records and batches."""
    ids = "_row_id, _last_updated_sequence_number"
    return [
        sandbox.session.sql(f"SELECT {by}, {ids} FROM {table} ORDER BY 1").collect()
        for table, by in ((name.records_table, "offset"), (name.batches_table, "base_offset"))
    ]


def test_small_neighbours_become_one_file_and_nothing_else_changes(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    before, ids = view_of(sandbox, name), ids_of_rows(sandbox, name)
    assert merge_segments(load(sandbox.session, name)) == 8
    assert view_of(sandbox, name) == before
    assert ids_of_rows(sandbox, name) == ids
    assert segments_of_files(sandbox, name) == [[0, 18], [0, 18]]
    for table in (name.records_table, name.batches_table):
        assert sandbox.session.sql(f"SELECT * FROM {table}.delete_files").collect() == []
        # Whoever reads the changes of a table finds none here.
        assert java_table(sandbox.session, table).currentSnapshot().operation() == "replace"
    assert merge_segments(load(sandbox.session, name)) == 0


@pytest.mark.long
def test_a_night_after_a_merge_ends_as_one_without(sandbox: LakeSandbox, name: TopicName) -> None:
    merge_segments(load(sandbox.session, name))
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    view = view_of(sandbox, name)
    assert offsets(view) == [*range(3, 16, 2), 17, 18]
    delete(sandbox, name, {0: 9})
    assert offsets(view_of(sandbox, name)) == [9, 11, 13, 15, 17, 18]
    expire(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert offsets(view_of(sandbox, name)) == [9, 11, 13, 15, 17, 18]


def test_a_merge_that_is_killed_at_each_commit_is_finished_by_whoever_comes_next(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    before = view_of(sandbox, name)
    kill_at += STEPS
    while kill_at:
        with pytest.raises(KilledError):
            merge_segments(load(sandbox.session, name))
        assert view_of(sandbox, name) == before
    settle(load(sandbox.session, name), "expire_segments")
    merge_segments(load(sandbox.session, name))
    assert view_of(sandbox, name) == before
    assert segments_of_files(sandbox, name) == [[0, 18], [0, 18]]
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert offsets(view_of(sandbox, name)) == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
def test_a_round_is_not_planned_on_half_a_merge(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    kill_at.append(Step.MERGE_BATCHES)
    with pytest.raises(KilledError):
        merge_segments(load(sandbox.session, name))
    with pytest.raises(CommitConflictError, match="a merge of them in flight"):
        plan_clean(load(sandbox.session, name), NIGHT_MS + DAY_MS)


@pytest.mark.long
def test_a_round_planned_before_a_merge_is_planned_again(
    sandbox: LakeSandbox, name: TopicName
) -> None:
    plan = plan_clean(load(sandbox.session, name), NIGHT_MS + DAY_MS)
    merge_segments(load(sandbox.session, name))
    with pytest.raises(CommitConflictError):
        execute_clean(plan)
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert offsets(view_of(sandbox, name)) == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
def test_a_round_in_flight_is_not_disturbed(
    sandbox: LakeSandbox, name: TopicName, kill_at: list[Step]
) -> None:
    kill_at.append(Step.ROUND_BATCHES)
    with pytest.raises(KilledError):
        clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert merge_segments(load(sandbox.session, name)) == 0
    clean(sandbox.session, str(name), NIGHT_MS + DAY_MS)
    assert offsets(view_of(sandbox, name)) == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS])
def test_what_lies_below_the_log_start_goes_though_a_merge_moves_it(
    sandbox: LakeSandbox, name: TopicName, meanwhile: Meanwhile, step: Step
) -> None:
    meanwhile(step, lambda: merge_segments(load(sandbox.session, name)))
    assert delete(sandbox, name, {0: 17}).partitions[0]["low_watermark"] == 17
    assert offsets(view_of(sandbox, name)) == [17, 18]
