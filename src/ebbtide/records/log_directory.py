"""A broker's log directory, or a plain copy of one: partitions, segments, checkpoints, manifest.

Source: Kafka's `UnifiedLog.parseTopicPartitionName`, `LocalLog`, `PartitionMetadataFile` and
`CheckpointFile`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow.fs

from ebbtide.errors import EbbtideError, SourceError, UnavailableError
from ebbtide.json_text import MALFORMED, parse_json
from ebbtide.moments import saturated
from ebbtide.numbers import MAX_INT, parse_whole, whole
from ebbtide.records.segment_reader import (
    CLEANED,
    MAX_BATCH_BYTES,
    SEGMENT_NAME,
    SWAP,
    TEMPORARY_NAME,
    is_segment_name,
    segment_base_offset,
    walk_segment,
)
from ebbtide.stores.store import AMBIENT, Store, failing_clearly, join

# The segment files of a partition's directory, as a broker that starts on it would load them.
#
# Source: Kafka's `LogLoader.load` and `removeTempFilesAndCollectSwapFiles`.


# Attempts at a listing during which the broker renames no file.
LISTINGS = 5


class PartitionFile(NamedTuple):
    """A segment file of a partition's directory."""

    name: str
    size_bytes: int
    modified_ms: int

    @property
    def base_offset(self) -> int:
        """The base offset in the file's name."""
        return segment_base_offset(self.name)


class PartitionFiles(NamedTuple):
    """Segment files of a partition, and the entries with a segment's name that are not files."""

    segments: Sequence[PartitionFile]
    passed_over: Sequence[str]


class _Vanished(Exception):  # noqa: N818
    """A listed file no longer exists."""


def list_partition_files(store: Store, uri: str) -> PartitionFiles | None:
    """Return the segment files as of one moment, or None if the directory does not exist.

    Raise SourceError for a broken link with a segment's name, UnavailableError if the broker keeps
    renaming files.
    """
    file_system, path = store.resolve(uri)
    listing = _list_local if file_system.type_name == "local" else _list_remote
    for _ in range(LISTINGS):
        try:
            with failing_clearly(uri):
                files, passed_over = listing(file_system, path, uri)
            return PartitionFiles(_as_loaded(store, uri, files), passed_over)
        except FileNotFoundError:
            return None
        except _Vanished:
            continue
    raise UnavailableError(
        f"{uri}: expected a listing during which no segment file is renamed or deleted, found none "
        f"in {LISTINGS} attempts. Run again when the broker writes less"
    )


def check_regular(file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> None:
    """Raise SourceError if a local path is a directory, FIFO, socket or device.

    To read a FIFO would never end.
    """
    if file_system.type_name != "local":
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise SourceError(f"{uri}: expected a file, found {_kind_of(mode)}. Copy the file again")


def _list_local(
    _: pyarrow.fs.FileSystem, path: str, uri: str
) -> tuple[list[PartitionFile], list[str]]:
    """List the names, then stat each file: a broker may rename files meanwhile."""
    files, passed_over = list[PartitionFile](), list[str]()
    for name in sorted(filter(_is_known, os.listdir(path))):
        try:
            found = os.stat(os.path.join(path, name))
        except FileNotFoundError as gone:
            if not os.path.islink(os.path.join(path, name)):
                raise _Vanished from gone
            raise SourceError(
                f"{join(uri, name)}: expected a segment file, found a link to a file that does not "
                "exist. Mount or copy that file, or delete the link"
            ) from gone
        if stat.S_ISREG(found.st_mode):
            modified_ms = saturated(found.st_mtime_ns // 1_000_000)
            files.append(PartitionFile(name, found.st_size, modified_ms))
        else:
            passed_over.append(f"{name} is {_kind_of(found.st_mode)}, which a broker ignores")
    return files, passed_over


def _list_remote(
    file_system: pyarrow.fs.FileSystem, path: str, _: str
) -> tuple[list[PartitionFile], list[str]]:
    """Take an object store's listing, which is as of one moment."""
    listed = file_system.get_file_info(pyarrow.fs.FileSelector(path))
    known = [info for info in listed if _is_known(info.base_name)]
    files = [
        PartitionFile(info.base_name, info.size, (info.mtime_ns or 0) // 1_000_000)
        for info in known
        if info.type is pyarrow.fs.FileType.File
    ]
    passed_over = [
        f"{info.base_name} is a directory, which a broker ignores"
        for info in known
        if info.type is pyarrow.fs.FileType.Directory
    ]
    return files, passed_over


def _is_known(name: str) -> bool:
    return is_segment_name(name) or TEMPORARY_NAME.fullmatch(name) is not None


def _kind_of(mode: int) -> str:
    kinds: dict[str, Callable[[int], bool]] = {
        "a directory": stat.S_ISDIR,
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
    }
    return next((kind for kind, is_one in kinds.items() if is_one(mode)), "a device")


def _as_loaded(store: Store, uri: str, files: Sequence[PartitionFile]) -> list[PartitionFile]:
    """Replace segment files by the `.swap` files that a broker was about to swap in."""
    swapped_in = list(_swapped_in(files))
    segments = [file for file in files if SEGMENT_NAME.fullmatch(file.name)]
    if swapped_in:
        first = min(file.base_offset for file in swapped_in)
        end = max(_next_offset(store, uri, file) for file in swapped_in)
        renamed_to = {file.name.removesuffix(SWAP) for file in swapped_in}
        segments = [
            file
            for file in segments
            if not first <= file.base_offset < end and file.name not in renamed_to
        ]
    return sorted([*segments, *swapped_in], key=lambda file: file.base_offset)


def _swapped_in(files: Sequence[PartitionFile]) -> Iterator[PartitionFile]:
    """Yield the complete `.swap` files: those below every `.cleaned` file."""
    cleaned = [int(file.name[:20]) for file in files if file.name.endswith(CLEANED)]
    swapped = (file for file in files if file.name.endswith(SWAP))
    yield from (file for file in swapped if not cleaned or file.base_offset < min(cleaned))


def _next_offset(store: Store, uri: str, file: PartitionFile) -> int:
    """Return the end offset of a file's valid batches; a later walk reports a corrupt one."""
    try:
        walk = walk_segment(join(uri, file.name), max_batch_bytes=MAX_BATCH_BYTES, store=store)
    except FileNotFoundError as gone:
        raise _Vanished from gone
    lasts = walk.batches.column("last_offset")
    return int(lasts[-1].as_py()) + 1 if len(lasts) else file.base_offset


_Parsed = TypeVar("_Parsed")

PARTITION_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.ASCII)
# The quorum's log, which is not a topic.
METADATA_TOPIC = "__cluster_metadata"

HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
MANIFEST = "ebbtide-manifest.json"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One `.log` file; `modified_ms` is from the manifest if there is one."""

    path: str
    base_offset: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition's directory. A field that its log directory has no value for is None."""

    topic: str
    partition: int
    path: str
    topic_id: str | None
    high_watermark: int | None
    log_start_offset: int | None
    segments: tuple[SegmentFile, ...]
    error: EbbtideError | None = None  # if set, the directory cannot be read: no segment is known
    passed_over: tuple[str, ...] = ()  # entries with a segment's name that are not files


class ManifestFile(NamedTuple):
    """A file's time and size in a manifest: copies and version control lose the time."""

    modified_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `ebbtide-manifest.json` in a copied log directory."""

    files: Mapping[str, ManifestFile]  # by path below the log directory
    topic_configs: Mapping[str, Mapping[str, str]]
    last_append_ms: int | None


def list_log_directory(uri: str, store: Store = AMBIENT) -> tuple[PartitionDirectory, ...]:
    """Return the partitions of a log directory in order, with their segments by offset.

    A problem with one partition's directory becomes its `error`, and does not affect the rest.
    """
    manifest = read_manifest(uri, store)
    high_watermarks = _read_checkpoint(store, uri, HIGH_WATERMARKS)
    log_start_offsets = _read_checkpoint(store, uri, LOG_START_OFFSETS)
    partitions = []
    for (topic, partition), names in sorted(_list_partitions(store, uri).items()):
        directory = PartitionDirectory(
            topic,
            partition,
            join(uri, names[0]),
            None,
            # A partition that is not in the checkpoint yet has 0, as when a broker starts.
            None if high_watermarks is None else high_watermarks.get((topic, partition), 0),
            (log_start_offsets or {}).get((topic, partition)),
            (),
        )
        try:
            found = _with_files(directory, uri, names, manifest, store)
        except (EbbtideError, PermissionError) as error:
            found = replace(directory, error=_as_source_error(directory, error))
        if found is not None:
            partitions.append(found)
    return tuple(partitions)


def _as_source_error(directory: PartitionDirectory, error: Exception) -> EbbtideError:
    if isinstance(error, EbbtideError):
        return error
    return SourceError(
        f"{directory.path}: expected a readable directory, found: {error}. Let this user read it"
    )


def _with_files(
    directory: PartitionDirectory,
    uri: str,
    names: Sequence[str],
    manifest: Manifest | None,
    store: Store,
) -> PartitionDirectory | None:
    """Return the directory with its segments and topic id, or None if it no longer exists."""
    if len(names) > 1:
        raise SourceError(
            f"{uri}: expected one directory of partition {directory.partition} of "
            f"{directory.topic}, found {' and '.join(names)}: a broker refuses to start on them. "
            "Remove the directory that is not the partition's"
        )
    files = list_partition_files(store, directory.path)
    if files is None:
        return None
    segments = tuple(_segment(directory.path, names[0], file, manifest) for file in files.segments)
    return replace(
        directory,
        topic_id=_read_topic_id(store, uri, names[0]),
        segments=segments,
        passed_over=tuple(files.passed_over),
    )


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """Return the topic and partition of a live partition's directory name, else None."""
    match = PARTITION_NAME.fullmatch(name)
    if match is None or match["topic"] == METADATA_TOPIC:
        return None
    partition = int(match["partition"])
    return (match["topic"], partition) if partition <= MAX_INT else None


def read_manifest(uri: str, store: Store = AMBIENT) -> Manifest | None:
    """Return the manifest of a copied log directory, or None if it has none."""
    text = _read_text(store, uri, MANIFEST)
    if text is None:
        return None
    where = join(uri, MANIFEST)
    try:
        return _parse_manifest(parse_json(text))
    except MALFORMED as bad:
        raise SourceError(
            f"{where}: expected an object of files (each with modified_ms and size_bytes), topics "
            f"(each with config) and last_append_ms, found {type(bad).__name__}: {bad}. Write it "
            "again"
        ) from bad


def _parse_manifest(fields: Mapping[str, Any]) -> Manifest:
    files = {
        name: ManifestFile(whole(file["modified_ms"]), whole(file["size_bytes"]))
        for name, file in fields.get("files", {}).items()
    }
    topic_configs = {
        topic: {str(name): str(value) for name, value in about.get("config", {}).items()}
        for topic, about in fields.get("topics", {}).items()
    }
    last_append_ms = fields.get("last_append_ms")
    return Manifest(files, topic_configs, None if last_append_ms is None else whole(last_append_ms))


def _list_partitions(store: Store, uri: str) -> dict[tuple[str, int], list[str]]:
    """Return the names of each partition's directories; a broker has only one each."""
    file_system, root = store.resolve(uri)
    names: dict[tuple[str, int], list[str]] = {}
    for child in _children(file_system, root, uri):
        parsed = parse_partition_name(child.base_name)
        if parsed is not None and child.type is pyarrow.fs.FileType.Directory:
            names.setdefault(parsed, []).append(child.base_name)
    return {partition: sorted(directories) for partition, directories in names.items()}


def _children(file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> list[pyarrow.fs.FileInfo]:
    try:
        with failing_clearly(uri):
            return list(file_system.get_file_info(pyarrow.fs.FileSelector(path)))
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise SourceError(
            f"{uri}: expected a log directory, found none. Check --source"
        ) from missing


def _segment(
    directory: str, name: str, file: PartitionFile, manifest: Manifest | None
) -> SegmentFile:
    path = join(directory, file.name)
    modified_ms = file.modified_ms
    known = manifest.files.get(f"{name}/{file.name}") if manifest else None
    if known is not None:
        if known.size_bytes != file.size_bytes:
            raise SourceError(
                f"{path}: expected {known.size_bytes} bytes, the size in {MANIFEST}, found "
                f"{file.size_bytes}. Copy the file again, or write the manifest again"
            )
        modified_ms = known.modified_ms
    return SegmentFile(path, file.base_offset, file.size_bytes, modified_ms)


def _read_text(store: Store, uri: str, *names: str) -> str | None:
    where = join(uri, *names)
    file_system, path = store.resolve(where)
    check_regular(file_system, path, where)
    try:
        with (
            failing_clearly(where),
            file_system.open_input_stream(path, compression=None) as stream,
        ):
            return str(stream.read(), "utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as bad:
        raise SourceError(f"{where}: expected UTF-8 text, found {bad}") from bad


def _read_topic_id(store: Store, uri: str, name: str) -> str | None:
    text = _read_text(store, uri, name, PARTITION_METADATA)
    if text is None:
        return None
    where = join(uri, name, PARTITION_METADATA)
    fields = dict(_parse_lines(text, where, _parse_field, expected="a name, a colon and a value"))
    if fields.get("version") != "0" or not fields.get("topic_id"):
        raise SourceError(
            f"{where}: expected version 0 and a topic_id, found {fields}. Copy it again"
        )
    return fields["topic_id"]


def _parse_field(line: str) -> tuple[str, str]:
    name, value = line.split(":", 1)
    return name.strip(), value.strip()


def _read_checkpoint(store: Store, uri: str, name: str) -> dict[tuple[str, int], int] | None:
    """Return offsets by topic and partition, or None if the directory has no such checkpoint."""
    text = _read_text(store, uri, name)
    if text is None:
        return None
    where = join(uri, name)
    lines = text.splitlines()
    if lines[:1] != ["0"]:
        raise _bad_line(where, 1, "version 0", lines[0] if lines else "no line")
    count = lines[1] if len(lines) > 1 else "no line"
    offsets = dict(
        _parse_lines(
            text, where, _parse_offset, expected="a topic, a partition and an offset", skipped=2
        )
    )
    if count != str(len(lines[2:])):
        raise _bad_line(where, 2, f"the number of lines, {len(lines[2:])},", count)
    return offsets


def _parse_offset(line: str) -> tuple[tuple[str, int], int]:
    topic, partition, offset = line.split(" ")
    return (topic, parse_whole(partition, MAX_INT)), parse_whole(offset)


def _parse_lines(
    text: str, where: str, parse: Callable[[str], _Parsed], *, expected: str, skipped: int = 0
) -> Iterator[_Parsed]:
    for number, line in enumerate(text.splitlines()[skipped:], skipped + 1):
        try:
            yield parse(line)
        except ValueError as bad:
            raise _bad_line(where, number, expected, line) from bad


def _bad_line(where: str, number: int, expected: str, actual: str) -> SourceError:
    return SourceError(
        f"{where}: expected {expected} in line {number}, found {actual!r}. Copy the file again"
    )
