"""Files of a source that are damaged, too large, vanish, or are taken slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from ebbtide.errors import (
    CorruptSegmentError,
    UnavailableError,
)
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.schema import RUNS_TABLE, create_runs
from ebbtide.iceberg.topics import compare_and_set, find, load
from ebbtide.log.settings.names import TopicName
from ebbtide.records.compression import Codec
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.records.v2_writer import BatchFields, Record, with_crc, write_batch
from ebbtide.runs.runs_table import EndedAttempt, JobAttempt, JobOutcome, append_runs
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from ebbtide.stages.ingest_segments import stage, walk_slice
from ebbtide.stages.ingest_segments.segment_source import WALK_SCHEMA, FileToWalk, WalkedFile
from ebbtide.stages.ingest_segments.stage import LISTINGS, Source, ingest_segments
from tests.stages.ingest_segments.small_sources import (
    CLEANED,
    NOW_MS,
    grow,
    name,
    offsets,
    source,
    spark,
    unbroken,
)
from tests.tables.contents import Contents, contents
from tests.tables.fixtures import KilledError, kill
from tests.tables.nights import at, ingest, source_of
from tests.tables.partition_log import (
    T0,
    batch,
    checkpoint,
    damage,
    segment_path,
    write_segments,
)

__all__ = ["name", "source", "spark", "unbroken"]

ZSTD_BOMB = write_batch(BatchFields(), [Record(1, T0, b"k", bytes(100_000))], Codec.ZSTD)


def row_in_runs(spark: SparkSession, name: TopicName, outcome: JobOutcome) -> Row:
    """The row that a job with this outcome writes."""
    now = at(NOW_MS)
    attempt = JobAttempt(
        run_id="run",
        dag=None,
        task=None,
        job="ingest_segments",
        topic=name,
        started=now,
        ended=now,
        now=now,
    )
    create_runs(spark)
    append_runs(spark, [EndedAttempt(attempt, outcome, outcome.error)])
    (row,) = spark.table(RUNS_TABLE).where(F.col("topic") == str(name)).collect()
    return row


def malformed(first: int) -> bytes:
    """A batch whose CRC is right and whose only record claims to be longer than the batch."""
    data = bytearray(batch(first))
    data[61] = 0x7E
    return with_crc(bytes(data))


def test_a_new_topic_of_which_nothing_can_be_taken_leaves_no_table(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    for partition in (0, 1):
        damage(segment_path(source, 0, partition))
    outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
    assert isinstance(outcome.error, CorruptSegmentError)
    assert str(outcome.error).count("expected CRC-32C") == 2
    assert find(spark, name) is None
    write_segments(source, {0: [CLEANED], 10: []}, partition=1)
    outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
    assert isinstance(outcome.error, CorruptSegmentError)
    assert offsets(contents(spark, name), 1)[-1] == 7


def test_damage_stops_its_partition_and_no_other(
    spark: SparkSession, name: TopicName, source: Path
) -> None:
    """A wrong CRC shows when files are walked, a malformed record when it is decoded."""
    whole = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
    for partition in (0, 2, 3):
        write_segments(source, whole, partition=partition)
    damage(segment_path(source, 5))
    for partition in (2, 3):
        write_segments(source, {5: [batch(5, 4), malformed(9)]}, partition=partition)

    outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
    tables = contents(spark, name)
    assert {p: offsets(tables, p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 4}
    assert isinstance(outcome.error, CorruptSegmentError)
    first, *others = str(outcome.error).split("; /")
    assert first.startswith(f"{segment_path(source, 5)}: expected CRC-32C 0x")
    assert "at position 0, found 0x" in first
    position = len(batch(5, 4))
    for partition, line in zip((2, 3), others, strict=True):
        assert f"/{line}".startswith(
            f"{segment_path(source, 5, partition)}: expected 1 records in "
        )
        assert f"at position {position}, found 0 in 0;" in line
        assert outcome.partitions[partition]["skipped"] == [
            "1 segments behind a file that cannot be read"
        ]

    for partition in (0, 2, 3):
        write_segments(source, whole, partition=partition)
    ingest(spark, str(name), source, NOW_MS)
    repaired = contents(spark, name)
    assert {p: offsets(repaired, p) for p in (0, 2, 3)} == {p: [*range(11)] for p in (0, 2, 3)}
    assert repaired.states[0].log_end_offset == 11


def old_bomb() -> bytes:
    """A batch of magic 1, which only decompressing tells the records of."""
    builder = LegacyRecordBatchBuilder(1, int(Codec.GZIP), 1 << 20)
    builder.append(0, T0, b"k", bytes(100_000))
    return (1).to_bytes(8, "big") + bytes(builder.build())[8:]


@pytest.fixture(params=["in threads", "in tasks"])
def anywhere(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Wherever segments are worked on."""
    if request.param == "in tasks":
        spark.conf.set(DRIVER_ROWS_SETTING, 0)
    yield
    spark.conf.unset(DRIVER_ROWS_SETTING)


@pytest.mark.long
@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize(
    ("bomb", "settings"),
    [
        pytest.param(ZSTD_BOMB, {}, id="shown by its records"),
        pytest.param(ZSTD_BOMB, {"ebbtide.event.time": "header:at"}, id="shown by rows of Spark"),
        pytest.param(old_bomb(), {}, id="shown by the walk"),
    ],
)
def test_a_batch_that_is_too_large_in_memory_stops_its_partition_and_no_other(
    spark: SparkSession, name: TopicName, tmp_path: Path, bomb: bytes, settings: dict[str, str]
) -> None:
    source = write_segments(tmp_path / "source", {0: [batch(0)], 1: [bomb]})
    write_segments(source, {0: [batch(0, 2, codec=Codec.ZSTD)]}, partition=1)
    limited = {MAX_DECOMPRESSED: "1000", **settings}
    taken = replace(source_of(source, NOW_MS), settings=limited)
    outcome = ingest_segments(spark, name, taken)
    tables = contents(spark, name)
    assert [offsets(tables, partition) for partition in (0, 1)] == [[0], [0, 1]]
    assert row_in_runs(spark, name, outcome)["error_class"] == "OversizedBatchError"
    assert str(outcome.error).startswith(
        f"{segment_path(source, 1)}: expected a batch of at most 1000 bytes decompressed at "
        f"position 0, found more; set {MAX_DECOMPRESSED} higher"
    )

    compare_and_set(load(spark, name), Step.CONFIGURE_TOPIC, lambda _: {MAX_DECOMPRESSED: None})
    ingest(spark, str(name), source, NOW_MS)
    assert offsets(contents(spark, name)) == [0, 1]


class TestSlices:
    """One new batch a slice: what many batches do, whose rows the driver cannot hold at once."""

    @pytest.fixture(autouse=True)
    def of_one_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walk_slice, "MAX_BATCHES", 1)
        monkeypatch.setattr(walk_slice, "FIRST_WALK_BYTES", 1)

    @pytest.mark.long
    def test_leave_the_same_as_one(
        self, spark: SparkSession, name: TopicName, source: Path, unbroken: Contents
    ) -> None:
        grow(source)
        outcome = ingest(spark, str(name), source, NOW_MS)
        assert contents(spark, name) == unbroken
        assert len(outcome.snapshot_ids) == 2 * 6
        numbers = outcome.partitions[0]
        assert [numbers[n] for n in ("records", "batches", "segments")] == [15, 5, 3]
        assert numbers["log_end_offset"] == 15

    @pytest.mark.long(but="6")
    @pytest.mark.parametrize("commit", [4, 5, 6, 7, 12])
    def test_killed_in_a_later_one_are_finished_by_the_next_ingest(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        unbroken: Contents,
        commit: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        steps: list[Step] = []

        def stop(step: Step) -> None:
            steps.append(step)
            if len(steps) == commit + 1:
                kill(step)

        monkeypatch.setattr(commits, "before_commit", stop)
        grow(source)
        with pytest.raises(KilledError):
            ingest(spark, str(name), source, NOW_MS)
        ingest(spark, str(name), source, NOW_MS)
        assert contents(spark, name) == unbroken

    @pytest.mark.long
    def test_end_where_a_file_is_damaged_or_the_high_watermark_lies(
        self, spark: SparkSession, name: TopicName, source: Path
    ) -> None:
        files = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
        for partition in (0, 2, 3):
            write_segments(source, files, partition=partition)
        damage(segment_path(source, 5))
        checkpoint(source, "replication-offset-checkpoint", {0: 11, 1: 10, 2: 7, 3: 11})
        outcome = ingest_segments(spark, name, source_of(source, NOW_MS))
        tables = contents(spark, name)
        assert {p: offsets(tables, p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 10}
        assert str(outcome.error).count("expected CRC-32C") == 1


@pytest.mark.long
def test_a_slice_ends_after_so_many_files(
    spark: SparkSession,
    name: TopicName,
    source: Path,
    unbroken: Contents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_slice, "MAX_FILES", 2)
    grow(source)
    outcome = ingest(spark, str(name), source, NOW_MS)
    assert contents(spark, name) == unbroken
    # Two files; the third, and the second to compare with what the table holds; the other
    # partition's.
    assert len(outcome.snapshot_ids) == 2 * 3


def test_a_slice_without_a_new_batch_goes_on_with_many_files_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_slice, "MAX_FILES", 3)
    monkeypatch.setattr(walk_slice, "FILES_AT_ONCE", 2)
    files = [FileToWalk(partition, f"{partition}", 0, 0, True) for partition in range(8)]
    walked: list[int] = []

    def walk(some: Sequence[FileToWalk]) -> list[WalkedFile]:
        walked.append(len(some))
        return [WalkedFile(WALK_SCHEMA.empty_table(), 0, False) for _ in some]

    assert walk_slice.walk_slice(files, walk).waiting == []
    assert walked == [2, 2, 2, 2]


class TestAFileThatVanishes:
    def test_before_it_is_walked_is_listed_again(
        self, spark: SparkSession, name: TopicName, source: Path
    ) -> None:
        listed = source_of(source, NOW_MS)
        segment_path(source, 0).unlink()
        assert ingest_segments(spark, name, listed).error is None
        tables = contents(spark, name)
        assert offsets(tables) == [5, 6, 7, 8, 9]
        assert tables.states[0].log_start_offset == 5

    @pytest.mark.long
    def test_between_walking_and_reading_too(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        walk_files = stage.walk_files

        def walk_and_remove(*arguments: Any) -> Any:
            walked = walk_files(*arguments)
            segment_path(source, 0).unlink(missing_ok=True)
            return walked

        monkeypatch.setattr(stage, "walk_files", walk_and_remove)
        assert ingest_segments(spark, name, source_of(source, NOW_MS)).error is None
        assert offsets(contents(spark, name)) == [5, 6, 7, 8, 9]

    def test_for_good_is_given_up_as_transient(
        self,
        spark: SparkSession,
        name: TopicName,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        listings: list[Source] = []

        def list_the_same(listed: Source) -> Source:
            listings.append(listed)
            return listed

        monkeypatch.setattr(Source, "listed_again", list_the_same)
        listed = source_of(source, NOW_MS)
        path = segment_path(source, 0)
        path.unlink()
        with pytest.raises(UnavailableError, match=f"^{path}: expected the file that was listed"):
            ingest_segments(spark, name, listed)
        assert len(listings) == LISTINGS - 1
        assert UnavailableError.transient
