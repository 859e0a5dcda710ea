from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.errors import RequestError, UnavailableError
from ebbtide.records.log_directory import (
    PartitionDirectory,
    SegmentFile,
    list_log_directory,
    read_manifest,
)
from ebbtide.records.log_directory_writer import (
    Epochs,
    begin_log_directory,
    check_target,
    epochs_from,
    finish_log_directory,
    next_epochs,
    open_segment,
    read_export,
    segment_name,
    unfinished,
    write_beside_segments,
)

TOPIC_ID = "Or5adsquR-mqGH_xuocipw"


@pytest.mark.parametrize(
    ("batches", "epochs"),
    [
        pytest.param([(3, 0), (3, 5), (4, 9)], ((3, 0), (4, 9)), id="where a larger one begins"),
        pytest.param([(4, 0), (3, 5), (4, 9)], ((4, 0),), id="a smaller one begins nothing"),
        pytest.param([(-1, 0), (-1, 5), (0, 9)], ((0, 9),), id="old formats name none"),
        pytest.param([], (), id="no batch"),
    ],
)
def test_leader_epochs_of_batches(batches: list[tuple[int, int]], epochs: Epochs) -> None:
    cached: Epochs = ()
    for epoch, base_offset in batches:
        cached = next_epochs(cached, epoch, base_offset)
    assert cached == epochs


@pytest.mark.parametrize(
    ("log_start_offset", "left"),
    [
        pytest.param(0, ((3, 0), (4, 9)), id="at the first"),
        pytest.param(5, ((3, 5), (4, 9)), id="inside an epoch"),
        pytest.param(9, ((4, 9),), id="at the second"),
        pytest.param(20, ((4, 20),), id="behind all"),
    ],
)
def test_leader_epochs_of_a_log_that_starts_later(log_start_offset: int, left: Epochs) -> None:
    assert epochs_from(((3, 0), (4, 9)), log_start_offset) == left


def test_the_first_epoch_may_begin_behind_the_log_start() -> None:
    assert epochs_from(((4, 9),), 3) == ((4, 9),)


def directory_of(target: str, *segments: tuple[int, bytes]) -> PartitionDirectory:
    """A partition with these segment files, written into the unfinished directory."""
    files = []
    for base_offset, data in segments:
        path = f"{unfinished(target)}/a.b-c-1/{segment_name(base_offset)}"
        with open_segment(path) as stream:
            stream.write(data)
        files.append(SegmentFile(path, base_offset, len(data), 1_234_567_890_123 + base_offset))
    return PartitionDirectory("a.b-c", 1, "", TOPIC_ID, 90, 33, tuple(files))


def write(target: str) -> PartitionDirectory:
    begin_log_directory(target, [("a.b-c", 1)])
    directory = directory_of(target, (20, b"twenty"), (40, b""))
    manifest = {
        "last_append_ms": 7,
        "topics": {"a.b-c": {"config": {"cleanup.policy": "compact"}}},
        "export": {"run_id": "run"},
    }
    write_beside_segments(unfinished(target), [directory], {1: ((2, 33),)}, manifest)
    return directory


@pytest.mark.parametrize("target", ["{}/out", "{}/out/", "file://{}/out"])
def test_what_is_written_is_read(tmp_path: Path, target: str) -> None:
    target = target.format(tmp_path)
    finish_log_directory(target, [write(target)])
    (partition,) = list_log_directory(str(tmp_path / "out"))
    assert (partition.topic, partition.partition, partition.topic_id) == ("a.b-c", 1, TOPIC_ID)
    assert (partition.high_watermark, partition.log_start_offset) == (90, 33)
    assert [(s.base_offset, s.size_bytes) for s in partition.segments] == [(20, 6), (40, 0)]
    assert partition.segments[1].modified_ms == 1_234_567_890_163
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest is not None
    assert manifest.last_append_ms == 7
    assert manifest.topic_configs == {"a.b-c": {"cleanup.policy": "compact"}}
    assert read_export(target) == {"run_id": "run"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_partition_that_starts_with_its_first_segment_has_no_checkpoint_row(
    tmp_path: Path,
) -> None:
    target = str(tmp_path / "out")
    begin_log_directory(target, [("a.b-c", 1)])
    directory = directory_of(target, (33, b""))
    write_beside_segments(unfinished(target), [directory], {1: ()}, {})
    text = (tmp_path / "out.unfinished" / "log-start-offset-checkpoint").read_text()
    assert text == "0\n0\n"


def test_a_file_that_is_not_as_it_was_written_stops_it(tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    directory = write(target)
    path = Path(directory.segments[0].path)
    path.write_bytes(b"shorter"[:3])
    with pytest.raises(UnavailableError, match="expected the 2 segment files that this job wrote"):
        finish_log_directory(target, [directory])
    assert not (tmp_path / "out").exists()


def test_a_target_that_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    directory = write(target)
    (tmp_path / "out" / "theirs").mkdir(parents=True)
    with pytest.raises(RequestError, match="found 1 entries, such as theirs"):
        finish_log_directory(target, [directory])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_what_no_export_wrote_is_no_export(tmp_path: Path) -> None:
    assert read_export(str(tmp_path / "none")) is None
    (tmp_path / "ebbtide-manifest.json").write_text("[]")
    assert read_export(str(tmp_path)) is None
    (tmp_path / "ebbtide-manifest.json").write_text("{")
    assert read_export(str(tmp_path)) is None
    assert read_export(str(tmp_path / "ebbtide-manifest.json")) is None


def test_an_empty_directory_is_a_target(tmp_path: Path) -> None:
    check_target(str(tmp_path))
    check_target(str(tmp_path / "not there yet"))
