"""Write what lies around the segment files of a log directory, as a broker reads it.

Source: Kafka's `CheckpointFile`, `LeaderEpochCheckpointFile`, `PartitionMetadataFile` and
`LogManager`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow.fs

from ebbtide.errors import RequestError, UnavailableError
from ebbtide.json_text import parse_json
from ebbtide.records.files.log_directory import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    MANIFEST,
    PARTITION_METADATA,
    PartitionDirectory,
)
from ebbtide.records.files.segment_reader import SEGMENT_NAME
from ebbtide.stores.store import AMBIENT, is_object_store
from ebbtide.stores.uris import file_name, join, split_query

LEADER_EPOCHS = "leader-epoch-checkpoint"
# Beside the target, so that one renaming makes it whole.
UNFINISHED = ".unfinished"
BUFFER_BYTES = 1024 * 1024

Epochs = tuple[tuple[int, int], ...]  # (leader epoch, start offset)


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def segment_name(base_offset: int) -> str:
    """Return the name of the segment file that begins at an offset."""
    return f"{base_offset:020}.log"


def next_epochs(epochs: Epochs, epoch: int, base_offset: int) -> Epochs:
    """Return where leader epochs begin, after one more batch: the first of each larger epoch.

    A broker finds them in the same way when it recovers a log.
    """
    if epoch < 0 or (epochs and epoch <= epochs[-1][0]):
        return epochs
    return (*epochs, (epoch, base_offset))


def epochs_from(epochs: Epochs, log_start_offset: int) -> Epochs:
    """Return the epochs of a log that starts at an offset; the one it starts in begins there."""
    before = [epoch for epoch, start in epochs if start <= log_start_offset]
    after = tuple((epoch, start) for epoch, start in epochs if start > log_start_offset)
    return ((before[-1], log_start_offset), *after) if before else after


def read_export(uri: str) -> dict[str, Any] | None:
    """Read the export's description from the manifest at `uri`; None where it is no export."""
    file_system, path = _resolve_target(join(uri, MANIFEST))
    try:
        with file_system.open_input_stream(path, compression=None) as stream:
            export = parse_json(stream.read()).get("export")
    except (FileNotFoundError, NotADirectoryError, AttributeError, ValueError):
        return None
    return export if isinstance(export, dict) else None


def _resolve_target(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    file_system, path = AMBIENT.resolve(uri)
    if is_object_store(file_system):
        raise RequestError(
            "expected a target on a file system that renames a directory in one step, found "
            f"{file_system.type_name} for {uri}; export to a local or HDFS directory and copy it"
        )
    return file_system, path


def check_target(uri: str) -> None:
    """Raise RequestError where no log directory can be put at `uri` as a whole."""
    file_system, path = _resolve_target(uri)
    file_info = file_system.get_file_info(path)
    if file_info.type is pyarrow.fs.FileType.NotFound:
        return
    names: list[str] = []
    if file_info.type is pyarrow.fs.FileType.Directory:
        names = _names(file_system, path)
        if not names:
            return
    what = f"{len(names)} entries, such as {sorted(names)[0]}" if names else "a file"
    raise RequestError(
        f"expected a target that is empty or not there yet, found {what} in {uri}; name another "
        "directory, or remove what is there"
    )


def _names(file_system: pyarrow.fs.FileSystem, path: str) -> list[str]:
    return [str(f.base_name) for f in file_system.get_file_info(pyarrow.fs.FileSelector(path))]


def unfinished(target: str) -> str:
    """Return where the files of a target lie until all are there."""
    base, query = split_query(target)
    return base.rstrip("/") + UNFINISHED + query


def begin_log_directory(target: str, partitions: Iterable[tuple[str, int]]) -> str:
    """Create an empty log directory with the partitions' directories; return where it lies.

    It replaces an unfinished one.
    """
    uri = unfinished(target)
    file_system, path = AMBIENT.resolve(uri)
    if file_system.get_file_info(path).type is not pyarrow.fs.FileType.NotFound:
        file_system.delete_dir(path)
    for topic, partition in partitions:
        file_system.create_dir(
            AMBIENT.resolve(join(uri, partition_name(topic, partition)))[1], recursive=True
        )
    return uri


def open_segment(uri: str) -> pyarrow.NativeFile:
    """Return a stream to a new segment file."""
    file_system, path = AMBIENT.resolve(uri)
    return file_system.open_output_stream(path, compression=None, buffer_size=BUFFER_BYTES)


def set_modified(uri: str, modified_ms: int) -> None:
    """Set a file's time, where its file system can; the manifest has it too."""
    file_system, path = AMBIENT.resolve(uri)
    if isinstance(file_system, pyarrow.fs.LocalFileSystem):
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))


def write_beside_segments(
    uri: str,
    directories: Sequence[PartitionDirectory],
    epochs: Mapping[int, Epochs],
    manifest: Mapping[str, Any],
) -> None:
    """Write what a log directory holds beside segment files; `epochs` are by partition.

    No recovery points and no sign of a clean shutdown: so a broker checks every batch, and builds
    indexes and producer state from them.
    """
    texts = _checkpoints(directories)
    for directory in directories:
        name = partition_name(directory.topic, directory.partition)
        lines = [f"{epoch} {start}" for epoch, start in epochs[directory.partition]]
        texts[name, LEADER_EPOCHS] = _counted(lines)
        if directory.topic_id is not None:
            texts[name, PARTITION_METADATA] = f"version: 0\ntopic_id: {directory.topic_id}"
    about = {"files": _about_files(directories), **manifest}
    texts[(MANIFEST,)] = json.dumps(about, indent=1) + "\n"
    for names, text in texts.items():
        with open_segment(join(uri, *names)) as stream:
            stream.write(text.encode())


def _checkpoints(directories: Sequence[PartitionDirectory]) -> dict[tuple[str, ...], str]:
    high_watermarks, log_start_offsets = [], []
    for directory in directories:
        key = f"{directory.topic} {directory.partition}"
        high_watermarks.append(f"{key} {directory.high_watermark or 0}")
        # As a broker does: only where the first segment's name gives another offset.
        if (directory.log_start_offset or 0) > directory.segments[0].base_offset:
            log_start_offsets.append(f"{key} {directory.log_start_offset}")
    return {
        (HIGH_WATERMARKS,): _counted(high_watermarks),
        (LOG_START_OFFSETS,): _counted(log_start_offsets),
    }


def _counted(lines: Sequence[str]) -> str:
    return "\n".join(["0", str(len(lines)), *lines]) + "\n"


def _about_files(directories: Sequence[PartitionDirectory]) -> dict[str, dict[str, int]]:
    return {
        f"{partition_name(directory.topic, directory.partition)}/{file_name(segment.path)}": {
            "modified_ms": segment.modified_ms,
            "size_bytes": segment.size_bytes,
        }
        for directory in directories
        for segment in directory.segments
    }


def finish_log_directory(target: str, directories: Sequence[PartitionDirectory]) -> None:
    """Rename the unfinished directory to the target, if its segment files are those named."""
    uri = unfinished(target)
    _check_segments(uri, directories)
    check_target(target)
    file_system, path = AMBIENT.resolve(uri)
    _, whole = AMBIENT.resolve(target)
    if file_system.get_file_info(whole).type is not pyarrow.fs.FileType.NotFound:
        file_system.delete_dir(whole)
    file_system.move(path, whole)


def _check_segments(uri: str, directories: Sequence[PartitionDirectory]) -> None:
    file_system, path = AMBIENT.resolve(uri)
    expected = {
        AMBIENT.resolve(segment.path)[1]: segment.size_bytes
        for directory in directories
        for segment in directory.segments
    }
    selected = pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)
    sizes = {
        info.path: info.size
        for info in file_system.get_file_info(selected)
        if SEGMENT_NAME.fullmatch(info.base_name)
    }
    if sizes != expected:
        odd = min(set(sizes.items()) ^ set(expected.items()))[0]
        raise UnavailableError(
            f"expected the {len(expected)} segment files that were written in {uri}, found "
            f"{len(sizes)}, and another {odd}: somebody else writes there; run again when it ended"
        )
