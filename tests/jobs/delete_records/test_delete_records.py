"""delete_records on tables (KIP-107)."""

import pytest

from ebbtide.errors import RequestError
from ebbtide.iceberg import data_files
from ebbtide.iceberg.catalog import java_table
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import Topic
from ebbtide.jobs.delete_records.primary import execute_delete, plan_delete
from ebbtide.jobs.removed_rows import truncate_below_start
from tests.tables.bench import Bench
from tests.tables.counted import assert_counted
from tests.tables.fixtures import KilledError, Meanwhile
from tests.tables.kafka_view import offsets
from tests.tables.logs import FIRST_MS, Message, batch_of

MESSAGES = [[Message("a", "1"), Message("b", "1")] for _ in range(4)]
DELETE = {"cleanup.policy": "delete"}


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """Four segments of two records."""
    empty.log(MESSAGES, DELETE, FIRST_MS)
    return empty


def test_nothing_below_the_low_watermark_is_readable(bench: Bench) -> None:
    outcome = bench.delete({0: 5})
    assert (outcome.error, outcome.rows_removed) == (None, 5)
    assert outcome.partitions[0]["low_watermark"] == 5
    view = bench.view()
    assert (view.log_start_offset, offsets(view)) == (5, [5, 6, 7])
    # The batches stay until their segment leaves, as Kafka's bytes do.
    assert [batch["base_offset"] for batch in view.batches] == [0, 2, 4, 6]
    assert [batch["record_count"] for batch in view.batches] == [2, 2, 2, 2]
    bench.expire(FIRST_MS)
    view = bench.view()
    assert view.segments[0][0] == 4
    assert [batch["base_offset"] for batch in view.batches] == [4, 6]


def test_only_the_straddling_segment_gets_a_deletion_vector(bench: Bench) -> None:
    bench.delete({0: 5})
    table = java_table(bench.spark, bench.name.records_table)
    summaries = [dict(snapshot.summary()) for snapshot in table.snapshots()]
    assert [s.get("deleted-data-files") for s in summaries] == [None, "2", None]
    assert [s.get("added-dvs") for s in summaries] == [None, None, "1"]
    assert summaries[-1]["added-position-deletes"] == "1"


def test_no_file_is_opened_but_that_of_the_straddling_segment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    opened_file = data_files.opened_file
    monkeypatch.setattr(
        data_files,
        "opened_file",
        lambda store, path, size: (opened.append(path), opened_file(store, path, size))[1],
    )
    bench.delete({0: 4})
    assert opened == []
    bench.delete({0: 5})
    assert [path.partition("/segment=")[2][:2] for path in opened] == ["4/"]
    opened.clear()
    truncate_below_start(bench.load(), FIRST_MS)
    assert len(opened) == 1


def test_minus_one_is_the_high_watermark_and_lower_offsets_change_nothing(bench: Bench) -> None:
    assert bench.delete({0: -1}).partitions[0]["low_watermark"] == 8
    assert bench.delete({0: 3}).partitions[0]["low_watermark"] == 8
    assert bench.left() == []


def test_one_bad_partition_does_not_stop_the_others(bench: Bench) -> None:
    outcome = bench.delete({0: 2, 7: 0})
    assert isinstance(outcome.error, RequestError)
    assert "partition 7: UNKNOWN_TOPIC_OR_PARTITION" in str(outcome.error)
    assert outcome.partitions[7]["error_code"] == 3
    assert outcome.partitions[7]["low_watermark"] == -1
    assert outcome.partitions[0]["low_watermark"] == 2


def test_an_offset_beyond_the_high_watermark_moves_nothing(bench: Bench) -> None:
    outcome = bench.delete({0: 9})
    assert outcome.partitions[0]["error_name"] == "OFFSET_OUT_OF_RANGE"
    assert bench.load().partitions[0].log_start_offset == 0


def test_a_compact_only_topic_is_a_policy_violation(empty: Bench) -> None:
    empty.log(MESSAGES, {"cleanup.policy": "compact"}, FIRST_MS)
    outcome = empty.delete({0: 2})
    assert outcome.partitions[0]["error_name"] == "POLICY_VIOLATION"


def test_a_request_that_is_killed_at_each_commit_is_finished_when_it_is_asked_again(
    bench: Bench, kill_at: list[Step]
) -> None:
    kill_at += [Step.LOG_START_OFFSET, Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS]
    while kill_at:
        with pytest.raises(KilledError):
            bench.delete({0: 5})
    assert bench.delete({0: 5}).partitions[0]["low_watermark"] == 5
    assert bench.left() == [5, 6, 7]


@pytest.mark.long
@pytest.mark.parametrize("step", [Step.TRUNCATE_RECORD_SEGMENTS, Step.TRUNCATE_RECORDS])
def test_what_is_ingested_meanwhile_into_a_segment_that_leaves_stays(
    bench: Bench, meanwhile: Meanwhile, step: Step
) -> None:
    def append() -> None:
        active = bench.home / "log" / "t-0" / f"{6:020}.log"
        active.write_bytes(active.read_bytes() + batch_of([Message("c", "1")], 8))
        bench.ingest(bench.home / "log", FIRST_MS)

    meanwhile(step, append)
    requested = 8 if step is Step.TRUNCATE_RECORD_SEGMENTS else 7
    bench.delete({0: requested})
    view = bench.view()
    assert offsets(view) == list(range(requested, 9))
    assert view.batches[-1]["base_offset"] == 8


@pytest.mark.long
def test_no_vector_is_written_for_a_file_that_another_request_drops_meanwhile(
    bench: Bench, meanwhile: Meanwhile
) -> None:
    meanwhile(Step.TRUNCATE_RECORDS, lambda: bench.delete({0: 6}))
    assert bench.delete({0: 5}).rows_removed == 4  # of the third segment the other
    assert bench.delete({0: 5}).partitions[0]["low_watermark"] == 6
    assert bench.left() == [6, 7]
    assert_counted(bench.spark, bench.name)
    assert bench.spark.table(f"{bench.name.records_table}.delete_files").count() == 0


def test_a_vector_leaves_with_its_segment(bench: Bench) -> None:
    bench.delete({0: 5})
    bench.delete({0: 7})
    vectors = bench.spark.sql(
        f"SELECT referenced_data_file FROM {bench.name.records_table}.delete_files"
    ).collect()
    (file,) = bench.spark.sql(
        f"SELECT file_path FROM {bench.name.records_table}.data_files"
    ).collect()
    assert [vector["referenced_data_file"] for vector in vectors] == [file["file_path"]]


def test_a_state_read_too_early_does_not_move_the_start_back(bench: Bench) -> None:
    early: Topic = bench.load()
    bench.delete({0: 6})
    execute_delete(plan_delete(early, {0: 2}, FIRST_MS))
    assert bench.load().partitions[0].log_start_offset == 6
