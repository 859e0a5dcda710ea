"""Files with more batches than a slice takes: the tables become those of one slice."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import CorruptSegmentError
from ebbtide.iceberg import commits
from ebbtide.iceberg.commits import Step
from ebbtide.iceberg.topics import exists
from ebbtide.jobs.ingest_segments import source as walk_slice
from ebbtide.jobs.ingest_segments import stage
from ebbtide.jobs.ingest_segments.source import BatchAt, FileToWalk, WalkedSlice, walk_file
from ebbtide.jobs.ingest_segments.stage import ingest_segments
from ebbtide.records.attributes import TRANSACTIONAL
from ebbtide.records.compression import Codec
from ebbtide.records.log_directory_writer import with_crc
from ebbtide.records.segment_reader import BatchLimits
from ebbtide.settings.names import TopicName
from ebbtide.stores.store import AMBIENT
from tests.jobs.ingest_segments.conftest import NOW_MS, SmallLog
from tests.lake_sandbox import LakeSandbox
from tests.log.log_files import marker
from tests.tables.contents import Contents, contents
from tests.tables.fixtures import KilledError, kill
from tests.tables.nights import source_of
from tests.tables.partition_log import T0, batch, damage

MOST = 7
OF_TRANSACTION = {"attributes": TRANSACTIONAL, "producer_id": 9, "producer_epoch": 0}


def write_source(log: SmallLog) -> SmallLog:
    """Three files and one, in which slices end within runs of batches and between single ones."""
    log.write(
        {
            0: [batch(i) for i in range(20)],
            20: [
                *(batch(i, 2, codec=Codec.ZSTD) for i in range(20, 32, 2)),
                batch(32, 2, base_sequence=0, **OF_TRANSACTION),
                *(batch(i) for i in range(34, 54)),
                marker(54, "COMMIT", producer=9, at_ms=T0),
            ],
            55: [batch(i) for i in range(55, 58)],
        }
    )
    log.write({0: [batch(i) for i in range(16)]}, partition=1)
    return log


@pytest.fixture
def log(empty: SmallLog) -> SmallLog:
    return write_source(empty)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[WalkedSlice]:
    """Slices of MOST batches, as they are walked."""
    slices: list[WalkedSlice] = []

    def walk(*arguments: Any) -> WalkedSlice:
        slices.append(walk_slice.walk_slice(*arguments))
        return slices[-1]

    monkeypatch.setattr(walk_slice, "MAX_BATCHES", MOST)
    monkeypatch.setattr(stage, "walk_slice", walk)
    return slices


@pytest.fixture(scope="module")
def unbroken(sandbox: LakeSandbox, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The tables after one slice."""
    source = tmp_path_factory.mktemp("unbroken") / "source"
    log = write_source(SmallLog(sandbox.session, TopicName("unbroken", "t"), source))
    assert len(log.outcome().snapshot_ids) == 2
    return log.contents()


@pytest.mark.long
def test_files_are_cut_where_a_slice_ends(
    log: SmallLog, unbroken: Contents, walked: list[WalkedSlice]
) -> None:
    outcome = log.outcome()
    assert log.contents() == unbroken
    # Each slice has the last batch of the one before too, to compare.
    assert max(piece.rows.num_rows for piece in walked) <= MOST + 1
    assert sum(bool(piece.cut) for piece in walked) >= 6
    assert [outcome.partitions[p]["batches"] for p in (0, 1)] == [20 + 28 + 3, 16]
    assert [outcome.partitions[p]["records"] for p in (0, 1)] == [57, 16]
    assert [outcome.partitions[p]["segments"] for p in (0, 1)] == [3, 1]


def test_killed_at_any_commit_of_any_slice_they_are_finished_by_the_next_ingest(
    log: SmallLog, unbroken: Contents, walked: list[WalkedSlice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run comes one commit further than the one before, so slices are killed anywhere."""
    for survived in range(100):
        steps: list[Step] = []

        def stop(step: Step, steps: list[Step] = steps, survived: int = survived) -> None:
            steps.append(step)
            if len(steps) > survived:
                kill(step)

        monkeypatch.setattr(commits, "before_commit", stop)
        try:
            log.outcome()
        except KilledError:
            # What the killed slice has appended comes beside the new batches, at least one.
            continue
        break
    assert survived > 6
    assert log.contents() == unbroken
    assert max(piece.rows.num_rows for piece in walked) <= 2 * MOST + 1


@pytest.mark.long
def test_what_a_killed_slice_has_appended_comes_whole_also_in_smaller_slices(
    log: SmallLog, unbroken: Contents, kill_at: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its end would seem to lie beyond the source's."""
    monkeypatch.setattr(walk_slice, "MAX_BATCHES", 30)
    log.killed(kill_at, Step.INGEST_STATE)
    monkeypatch.setattr(walk_slice, "MAX_BATCHES", MOST)
    monkeypatch.setattr(walk_slice, "FIRST_WALK_BYTES", 1)
    log.outcome()
    assert log.contents() == unbroken


@pytest.mark.long
def test_a_slice_that_reads_only_what_a_partition_holds_leaves_the_rest_to_the_next(
    empty: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_slice, "MAX_BATCHES", 2)
    for partition in (0, 1):
        empty.write({0: [batch(0)]}, partition=partition)
    empty.outcome()
    # The first slice reads two files: the first partition's new batch, and what the other holds.
    empty.append(0, batch(1))
    empty.write({1: [batch(1, 9)], 10: [batch(10, 500)]}, partition=1)
    held = empty.path(0, 1).stat().st_size
    new = empty.path(0).stat().st_size
    monkeypatch.setattr(walk_slice, "FIRST_WALK_BYTES", held + new)
    empty.outcome()
    states = empty.contents().states
    assert [states[p].log_end_offset for p in (0, 1)] == [2, 510]


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["crc", "torn tail", "torn middle"])
def test_what_is_wrong_behind_a_slice_is_refused_as_in_one(
    log: SmallLog, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong == "crc":
        damage(log.path(20))
    elif wrong == "torn tail":
        log.append(55, *(batch(i) for i in range(58, 70)), batch(70)[:-3])
    else:
        log.append(0, batch(20)[:-3])
    whole = TopicName(log.name.cluster, "whole")
    (log.source / "t-0").rename(log.source / "whole-0")
    of_one_slice = ingest_segments(log.spark, whole, source_of(log.source, NOW_MS))
    (log.source / "whole-0").rename(log.source / "t-0")
    (log.source / "t-1").rename(log.source / "other-1")
    monkeypatch.setattr(walk_slice, "MAX_BATCHES", MOST)
    outcome = log.outcome()
    # A topic of which nothing could be taken has no tables.
    assert exists(log.spark, log.name) == exists(log.spark, whole)
    if exists(log.spark, whole):
        assert log.contents() == contents(log.spark, whole)
    assert str(outcome.error) == str(of_one_slice.error).replace("whole-0", "t-0")
    assert [text for text in outcome.partitions[0]["skipped"] if "torn" in text] == [
        text.replace("whole-0", "t-0")
        for text in of_one_slice.partitions[0]["skipped"]
        if "torn" in text
    ]


@pytest.mark.long
def test_a_record_that_does_not_decode_stops_its_slice_and_names_its_place(
    log: SmallLog, walked: list[WalkedSlice]
) -> None:
    good = b"".join(batch(i) for i in range(58, 70))
    bad = bytearray(batch(70))
    bad[61] = 0x7E
    position = log.path(55).stat().st_size + len(good)
    log.append(55, good, with_crc(bytes(bad)))
    outcome = log.outcome()
    assert isinstance(outcome.error, CorruptSegmentError)
    assert str(outcome.error).startswith(f"{log.path(55)}: expected 1 records in ")
    assert f"at position {position}, found 0 in 0" in str(outcome.error)
    ends = [log.contents().states[p].log_end_offset for p in (0, 1)]
    assert 58 <= ends[0] <= 70
    assert ends[1] == 16


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(BatchAt(3, 1), id="no batch begins there"),
        pytest.param(BatchAt(len(batch(0)), 5), id="another batch begins there"),
        pytest.param(BatchAt(10**6, 1), id="the file is shorter"),
    ],
)
def test_a_file_that_was_replaced_since_its_last_slice_is_walked_from_its_beginning(
    log: SmallLog, taken: BatchAt
) -> None:
    path = log.path(0)
    file = FileToWalk(0, str(path), 0, path.stat().st_size, is_last=True)
    whole, again = (
        walk_file(BatchLimits(), AMBIENT, file_to_walk)
        for file_to_walk in (file, file._replace(taken=taken))
    )
    assert again == whole
