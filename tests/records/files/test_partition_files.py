"""A partition's directory as a broker that starts on it takes it; who serves it shows the same.

tests/jobs/ingest_segments/test_loaded_by_a_broker.py compares these cases with a real broker.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.errors import EbbtideError, SourceError, UnavailableError
from ebbtide.records import log_directory
from ebbtide.records.consumer_record import read_topic
from ebbtide.records.log_directory import (
    PartitionDirectory,
    list_log_directory,
    list_partition_files,
)
from ebbtide.stores.store import AMBIENT
from tests.records.files.loaded_logs import CASES, CASES_REFUSED, Case, write_case
from tests.tables.partition_log import batch, partition_path, segment_path, write_segments


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_is_read_is_what_a_broker_serves(tmp_path: Path, case: Case) -> None:
    write_case(tmp_path, case, topic="t")
    assert [record.offset for record in read_topic(str(tmp_path), "t")] == case.offsets


@pytest.mark.parametrize("case", CASES_REFUSED, ids=[case.name for case in CASES_REFUSED])
def test_what_no_copy_of_a_log_can_be_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    write_case(tmp_path, case, topic="t")
    with pytest.raises(SourceError, match=case.refusal):
        list(read_topic(str(tmp_path), "t"))


def listed(directory: Path) -> dict[str, PartitionDirectory]:
    return {
        Path(partition.path).name: partition for partition in list_log_directory(str(directory))
    }


def error_of(directory: Path, name: str = "t-0") -> str:
    error = listed(directory)[name].error
    assert isinstance(error, EbbtideError)
    return str(error)


@pytest.mark.parametrize("odd", ["a directory", "a FIFO"])
def test_what_is_no_file_is_passed_over_with_a_word(tmp_path: Path, odd: str) -> None:
    write_segments(tmp_path, {0: [batch(0)], 5: [batch(5)]})
    path = segment_path(tmp_path, 3)
    if odd == "a FIFO":
        os.mkfifo(path)
    else:
        path.mkdir()
    directory = listed(tmp_path)["t-0"]
    assert directory.passed_over == (f"{path.name} is {odd}, which a broker ignores",)
    assert [segment.base_offset for segment in directory.segments] == [0, 5]


def test_a_link_to_nothing_stops_its_partition_and_no_other(tmp_path: Path) -> None:
    for partition in (0, 1):
        write_segments(tmp_path, {0: [batch(0)], 5: [batch(5)]}, partition=partition)
    linked = segment_path(tmp_path, 0)
    linked.unlink()
    linked.symlink_to(tmp_path / "elsewhere")
    assert error_of(tmp_path).startswith(f"{linked}: expected a segment file, found a link to a")
    assert len(listed(tmp_path)["t-1"].segments) == 2


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    write_segments(tmp_path, {0: [batch(0)], 5: [batch(5)]})
    linked, elsewhere = segment_path(tmp_path, 0), tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    assert [record.offset for record in read_topic(str(tmp_path), "t")] == [0, 5]


def test_two_directories_of_a_partition_stop_it_and_no_other(tmp_path: Path) -> None:
    """LogManager.loadLog: a broker does not start."""
    for name in ("t-0", "t-00", "t-01"):
        (tmp_path / name).mkdir()
    assert "expected one directory of partition 0 of t, found t-0 and t-00" in error_of(tmp_path)
    assert listed(tmp_path)["t-01"].error is None


@pytest.mark.parametrize("name", ["partition.metadata", "00000000000000000000.log"])
def test_a_topics_own_fault_hinders_no_other(tmp_path: Path, name: str) -> None:
    for topic in ("t", "u"):
        write_segments(tmp_path, {0: [batch(0)]}, topic=topic)
    path = partition_path(tmp_path) / name
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    if name == "partition.metadata":
        path.unlink()
        os.mkfifo(path)
        assert error_of(tmp_path) == f"{path}: expected a file, found a FIFO. Copy the file again"
    with pytest.raises(SourceError, match=str(path)):
        list(read_topic(str(tmp_path), "t"))
    assert [record.offset for record in read_topic(str(tmp_path), "u")] == [0]


def test_a_directory_that_may_not_be_read_is_its_partitions_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stubbed, since tests may run as root, who may read all."""
    write_segments(tmp_path, {0: [batch(0)]})

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(log_directory.os, "listdir", refuse)
    assert "t-0: expected a readable directory, found: [Errno 13]" in error_of(tmp_path)


def test_a_files_time_is_one_of_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory file system keeps seconds of 64 bits; the state keeps milliseconds."""
    write_segments(tmp_path, {0: [batch(0)]})
    found = os.stat(segment_path(tmp_path, 0))
    facts = SimpleNamespace(st_mode=found.st_mode, st_size=found.st_size, st_mtime_ns=2**90)
    with monkeypatch.context() as stubbed:
        stubbed.setattr(log_directory.os, "stat", lambda *_, **__: facts)
        files = list_partition_files(AMBIENT, str(partition_path(tmp_path)))
    assert files is not None
    assert [file.modified_ms for file in files.segments] == [2**63 - 1]


class Vanishing:
    """Takes away a file between its listing and the question for its facts, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self._stat = os.stat

    def __call__(self, path: str) -> os.stat_result:
        if self.times:
            self.times -= 1
            os.rename(path, f"{path}.deleted")
        return self._stat(path)


@pytest.mark.parametrize("vanishing", [1, 4])
def test_a_file_that_vanishes_is_listed_again(
    tmp_path: Path, vanishing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(tmp_path, {offset: [batch(offset)] for offset in range(6)})
    monkeypatch.setattr(log_directory.os, "stat", Vanishing(vanishing))
    found = list_partition_files(AMBIENT, str(partition_path(tmp_path)))
    assert found is not None
    assert [segment.base_offset for segment in found.segments] == [*range(vanishing, 6)]


def test_a_directory_that_never_rests_is_a_passing_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segments(tmp_path, {offset: [batch(offset)] for offset in range(6)})
    monkeypatch.setattr(log_directory.os, "stat", Vanishing(5))
    with pytest.raises(UnavailableError, match=r"found none in 5 attempts\. Run again"):
        list_partition_files(AMBIENT, str(partition_path(tmp_path)))


def test_a_partition_that_vanishes_while_listed_is_left_out(tmp_path: Path) -> None:
    assert list_partition_files(AMBIENT, str(tmp_path / "t-0")) is None
