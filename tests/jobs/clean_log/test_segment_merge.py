"""Small segments become one, and nobody who reads the tables sees a difference."""

import pytest
from pyspark.sql import Row

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.jobs.clean_log.segment_merge import AT_LEAST, merge_segments
from ebbtide.jobs.clean_log.stage import execute_clean, plan_clean
from ebbtide.jobs.unfinished import settle
from tests.tables.bench import Bench
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import offsets
from tests.tables.logs import FIRST_MS, Message
from tests.tables.nights import DAY_MS

STEPS = (Step.MERGE_STARTED, Step.MERGE_RECORDS, Step.MERGE_BATCHES, Step.MERGE_STATE)
COMPACT = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}
NIGHT_MS = FIRST_MS + 10 * DAY_MS
# Each night's key supersedes the one of the night before; one key stays; a tombstone waits.
NIGHTS = [[Message("a", str(n)), Message(f"k{n}", "1")] for n in range(AT_LEAST)]
MESSAGES = [*NIGHTS, [Message("k0", None), Message("a", "last")], [Message("z", "1")]]


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """A cleaned topic: nine small segments, merged by the round, and an active one."""
    empty.log(MESSAGES, COMPACT, FIRST_MS)
    empty.mark()
    empty.clean(NIGHT_MS)
    return empty


def segments_of_files(bench: Bench) -> list[list[int]]:
    """In which physical segments records and batches have a data file."""
    return [
        [
            row["segment"]
            for row in bench.spark.sql(
                f"SELECT partition.segment FROM {table}.data_files ORDER BY 1"
            ).collect()
        ]
        for table in bench.tables
    ]


def ids_of_rows(bench: Bench) -> list[list[Row]]:
    """By which others follow the rows of records and batches."""
    ids = "_row_id, _last_updated_sequence_number"
    return [
        bench.spark.sql(f"SELECT {by}, {ids} FROM {table} ORDER BY 1").collect()
        for table, by in (
            (bench.name.records_table, "offset"),
            (bench.name.batches_table, "base_offset"),
        )
    ]


def test_small_neighbours_become_one_file_and_nothing_else_changes(bench: Bench) -> None:
    before, ids = bench.view(), ids_of_rows(bench)
    assert merge_segments(bench.load()) == 8
    assert bench.view() == before
    assert ids_of_rows(bench) == ids
    assert segments_of_files(bench) == [[0, 18], [0, 18]]
    for table in bench.tables:
        assert bench.spark.sql(f"SELECT * FROM {table}.delete_files").collect() == []
        # Whoever reads the changes of a table finds none here.
        assert java_table(bench.spark, table).currentSnapshot().operation() == "replace"
    assert merge_segments(bench.load()) == 0


@pytest.mark.long
def test_a_night_after_a_merge_ends_as_one_without(bench: Bench) -> None:
    merge_segments(bench.load())
    bench.clean(NIGHT_MS + DAY_MS)
    view = bench.view()
    assert offsets(view) == [*range(3, 16, 2), 17, 18]
    bench.delete({0: 9})
    assert bench.left() == [9, 11, 13, 15, 17, 18]
    bench.expire(NIGHT_MS + DAY_MS)
    assert bench.left() == [9, 11, 13, 15, 17, 18]


def test_a_merge_that_is_killed_at_each_commit_is_finished_by_whoever_comes_next(
    bench: Bench, kill_at: list[Step]
) -> None:
    before = bench.view()
    kill_at += STEPS
    while kill_at:
        with pytest.raises(KilledError):
            merge_segments(bench.load())
        assert bench.view() == before
    settle(bench.load(), "expire_segments")
    merge_segments(bench.load())
    assert bench.view() == before
    assert segments_of_files(bench) == [[0, 18], [0, 18]]
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
def test_a_round_is_not_planned_on_half_a_merge(bench: Bench, kill_at: list[Step]) -> None:
    kill_at.append(Step.MERGE_BATCHES)
    with pytest.raises(KilledError):
        merge_segments(bench.load())
    with pytest.raises(
        CommitConflictError, match=r"expected no merge of segments of .* found that one has begun"
    ):
        plan_clean(bench.load(), NIGHT_MS + DAY_MS)


@pytest.mark.long
def test_a_round_planned_before_a_merge_is_planned_again(bench: Bench) -> None:
    plan = plan_clean(bench.load(), NIGHT_MS + DAY_MS)
    merge_segments(bench.load())
    with pytest.raises(CommitConflictError):
        execute_clean(plan)
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
def test_a_round_in_flight_is_not_disturbed(bench: Bench, kill_at: list[Step]) -> None:
    kill_at.append(Step.ROUND_BATCHES)
    with pytest.raises(KilledError):
        bench.clean(NIGHT_MS + DAY_MS)
    assert merge_segments(bench.load()) == 0
    bench.clean(NIGHT_MS + DAY_MS)
    assert bench.left() == [*range(3, 16, 2), 17, 18]


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS])
def test_what_lies_below_the_log_start_goes_though_a_merge_moves_it(
    bench: Bench, meanwhile: Meanwhile, step: Step
) -> None:
    meanwhile(step, lambda: merge_segments(bench.load()))
    assert bench.delete({0: 17}).partitions[0]["low_watermark"] == 17
    assert bench.left() == [17, 18]
