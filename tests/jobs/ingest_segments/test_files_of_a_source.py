"""Files of a source that are damaged, too large, vanish, or are taken slice by slice."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ebbtide.errors import (
    CorruptSegmentError,
    OversizedBatchError,
    SourceError,
    UnavailableError,
)
from ebbtide.iceberg.topics import find
from ebbtide.jobs.ingest_segments import source, stage
from ebbtide.jobs.ingest_segments.source import WALK_SCHEMA, FileToWalk, WalkedFile
from ebbtide.jobs.ingest_segments.stage import LISTINGS, ingest_segments
from ebbtide.records.compression import Codec
from ebbtide.records.limits import MAX_DECOMPRESSED
from ebbtide.records.log_directory import PartitionDirectory
from ebbtide.records.log_directory_writer import BatchFields, Record, with_crc, write_batch
from ebbtide.spark.tasks import DRIVER_ROWS_SETTING
from ebbtide.stores.store import Store
from tests.jobs.ingest_segments.conftest import CLEANED, NOW_MS, SmallLog
from tests.lake_sandbox import LakeSandbox
from tests.tables.contents import Contents
from tests.tables.nights import source_of
from tests.tables.partition_log import (
    T0,
    batch,
    checkpoint,
    damage,
)

ZSTD_BOMB = write_batch(BatchFields(), [Record(1, T0, b"k", bytes(100_000))], Codec.ZSTD)


def malformed(first: int) -> bytes:
    """A batch whose CRC is right and whose only record claims to be longer than the batch."""
    data = bytearray(batch(first))
    data[61] = 0x7E
    return with_crc(bytes(data))


def test_a_new_topic_of_which_nothing_can_be_taken_leaves_no_table(log: SmallLog) -> None:
    for partition in (0, 1):
        damage(log.path(0, partition))
    outcome = log.outcome()
    assert isinstance(outcome.error, CorruptSegmentError)
    assert str(outcome.error).count("expected CRC-32C") == 2
    assert find(log.spark, log.name) is None
    log.write({0: [CLEANED], 10: []}, partition=1)
    outcome = log.outcome()
    assert isinstance(outcome.error, CorruptSegmentError)
    assert log.offsets(1)[-1] == 7


def test_damage_stops_its_partition_and_no_other(log: SmallLog) -> None:
    """A wrong CRC shows when files are walked, a malformed record when it is decoded."""
    whole = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
    for partition in (0, 2, 3):
        log.write(whole, partition=partition)
    damage(log.path(5))
    for partition in (2, 3):
        log.write({5: [batch(5, 4), malformed(9)]}, partition=partition)

    outcome = log.outcome()
    assert {p: log.offsets(p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 4}
    assert isinstance(outcome.error, CorruptSegmentError)
    first, *others = str(outcome.error).split("; /")
    assert first.startswith(f"{log.path(5)}: expected CRC-32C 0x")
    assert "at position 0, found 0x" in first
    position = len(batch(5, 4))
    for partition, line in zip((2, 3), others, strict=True):
        assert f"/{line}".startswith(f"{log.path(5, partition)}: expected 1 records in ")
        assert f"at position {position}, found 0 in 0. Copy" in line
        assert outcome.partitions[partition]["skipped"] == ["1 segments after an unreadable file"]

    for partition in (0, 2, 3):
        log.write(whole, partition=partition)
    log.ingest()
    assert {p: log.offsets(p) for p in (0, 2, 3)} == {p: [*range(11)] for p in (0, 2, 3)}
    assert log.topic().partitions[0].log_end_offset == 11


@pytest.fixture
def odd(log: SmallLog) -> SmallLog:
    """A file that overlaps in partition 0, a link to nothing in 2, a FIFO in 3."""
    log.write({8: [batch(8, 5)]})
    for partition in (2, 3):
        log.write({0: [batch(0, 5)], 5: [batch(5, 5)]}, partition=partition)
    linked = log.path(0, 2)
    linked.rename(log.source.parent / "elsewhere")
    linked.symlink_to(log.source / "nothing")
    os.mkfifo(log.path(3, 3))
    return log


def test_a_directory_that_cannot_be_taken_stops_its_partition_and_no_other(odd: SmallLog) -> None:
    outcome = odd.outcome()
    assert {p: odd.offsets(p) for p in range(4)} == {
        0: [*range(10)],
        1: [*range(8)],
        2: [],
        3: [*range(10)],
    }
    assert type(outcome.error) is SourceError
    overlapping, linked = str(outcome.error).split("; /")
    assert overlapping.startswith(f"{odd.path(8)}: expected offsets above 9, the last one of ")
    assert f"/{linked}".startswith(f"{odd.path(0, 2)}: expected a segment file, found a link to a")
    assert outcome.partitions[3]["skipped"] == [
        f"{odd.path(3, 3).name} is a FIFO, which a broker ignores"
    ]
    odd.path(8).unlink()
    odd.path(0, 2).unlink()
    (odd.source.parent / "elsewhere").rename(odd.path(0, 2))
    odd.ingest()
    assert {p: odd.offsets(p) for p in (0, 2)} == {0: [*range(10)], 2: [*range(10)]}


@pytest.mark.long
def test_files_that_overlap_are_found_slice_by_slice_too(
    odd: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_BATCHES", 1)
    monkeypatch.setattr(source, "FIRST_WALK_BYTES", 1)
    outcome = odd.outcome()
    assert odd.offsets() == [*range(10)]
    assert f"{odd.path(8)}: expected offsets above 9, the last one of " in str(outcome.error)


def old_bomb() -> bytes:
    """A batch of magic 1, which only decompressing tells the records of."""
    builder = LegacyRecordBatchBuilder(1, int(Codec.GZIP), 1 << 20)
    builder.append(0, T0, b"k", bytes(100_000))
    return (1).to_bytes(8, "big") + bytes(builder.build())[8:]


@pytest.fixture(params=["in threads", "in tasks"])
def anywhere(sandbox: LakeSandbox, request: pytest.FixtureRequest) -> Iterator[None]:
    """Wherever segments are worked on."""
    if request.param == "in tasks":
        sandbox.session.conf.set(DRIVER_ROWS_SETTING, 0)
    yield
    sandbox.session.conf.unset(DRIVER_ROWS_SETTING)


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
    empty: SmallLog, bomb: bytes, settings: dict[str, str]
) -> None:
    empty.write({0: [batch(0)], 1: [bomb]})
    empty.write({0: [batch(0, 2, codec=Codec.ZSTD)]}, partition=1)
    limited = {MAX_DECOMPRESSED: "1000", **settings}
    taken = replace(source_of(empty.source, NOW_MS), settings=limited)
    outcome = ingest_segments(empty.spark, empty.name, taken)
    assert [empty.offsets(partition) for partition in (0, 1)] == [[0], [0, 1]]
    assert type(outcome.error) is OversizedBatchError
    assert str(outcome.error).startswith(
        f"{empty.path(1)}: expected a batch of at most 1000 bytes decompressed at "
        f"position 0, found more. Set {MAX_DECOMPRESSED} higher"
    )

    empty.set({MAX_DECOMPRESSED: None})
    empty.ingest()
    assert empty.offsets() == [0, 1]


@pytest.mark.long
def test_slices_end_where_a_file_is_damaged_or_the_high_watermark_lies(
    log: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one new batch a slice."""
    monkeypatch.setattr(source, "MAX_BATCHES", 1)
    monkeypatch.setattr(source, "FIRST_WALK_BYTES", 1)
    files = {0: [batch(0, 5)], 5: [batch(5, 5)], 10: [batch(10)]}
    for partition in (0, 2, 3):
        log.write(files, partition=partition)
    damage(log.path(5))
    checkpoint(log.source, "replication-offset-checkpoint", {0: 11, 1: 10, 2: 7, 3: 11})
    outcome = log.outcome()
    assert {p: log.offsets(p)[-1] for p in range(4)} == {0: 4, 1: 7, 2: 4, 3: 10}
    assert str(outcome.error).count("expected CRC-32C") == 1


@pytest.mark.long
def test_a_slice_ends_after_so_many_files(
    log: SmallLog, unbroken: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_FILES", 2)
    log.grow()
    outcome = log.ingest()
    assert log.contents() == unbroken
    # Two files; the third, and the second to compare with what the table holds; the other
    # partition's.
    assert len(outcome.snapshot_ids) == 2 * 3


def test_a_slice_without_a_new_batch_goes_on_with_many_files_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "MAX_FILES", 3)
    monkeypatch.setattr(source, "FILES_AT_ONCE", 2)
    files = [FileToWalk(partition, f"{partition}", 0, 0, True) for partition in range(8)]
    walked: list[int] = []

    def walk(some: Sequence[FileToWalk]) -> list[WalkedFile]:
        walked.append(len(some))
        return [WalkedFile(WALK_SCHEMA.empty_table(), 0, False) for _ in some]

    assert source.walk_slice(files, walk).waiting == []
    assert walked == [2, 2, 2, 2]


class TestAFileThatVanishes:
    def test_before_it_is_walked_is_listed_again(self, log: SmallLog) -> None:
        listed = source_of(log.source, NOW_MS)
        log.path(0).unlink()
        assert ingest_segments(log.spark, log.name, listed).error is None
        assert log.offsets() == [5, 6, 7, 8, 9]
        assert log.topic().partitions[0].log_start_offset == 5

    @pytest.mark.long
    def test_between_walking_and_reading_too(
        self, log: SmallLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        walk_files = stage.walk_files

        def walk_and_remove(*arguments: Any) -> Any:
            walked = walk_files(*arguments)
            log.path(0).unlink(missing_ok=True)
            return walked

        monkeypatch.setattr(stage, "walk_files", walk_and_remove)
        assert log.outcome().error is None
        assert log.offsets() == [5, 6, 7, 8, 9]

    def test_for_good_is_given_up_as_transient(
        self, log: SmallLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed, listings = source_of(log.source, NOW_MS), list[str]()

        def list_the_same(uri: str, _: Store) -> Sequence[PartitionDirectory]:
            listings.append(uri)
            return listed.directories

        monkeypatch.setattr(stage, "list_log_directory", list_the_same)
        path = log.path(0)
        path.unlink()
        with pytest.raises(UnavailableError, match=f"^{path}: expected the file that was listed"):
            ingest_segments(log.spark, log.name, listed)
        assert len(listings) == LISTINGS - 1
        assert UnavailableError.transient
