"""A broker's log directory or a plain copy of one: partitions, segments, checkpoints, manifest.

Source: Kafka's `UnifiedLog.parseTopicPartitionName`, `LocalLog`, `PartitionMetadataFile` and
`CheckpointFile`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow.fs

from ebbtide.errors import SourceError, UnavailableError
from ebbtide.json_text import MALFORMED, MAX_INT, parse_json, parse_whole, whole
from ebbtide.records.files.segment_reader import SEGMENT_NAME, segment_base_offset
from ebbtide.stores.store import AMBIENT, Store, failing_clearly, is_object_store
from ebbtide.stores.uris import join

_Parsed = TypeVar("_Parsed")

PARTITION_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.ASCII)
# The quorum's own log: no topic.
METADATA_TOPIC = "__cluster_metadata"

HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
MANIFEST = "ebbtide-manifest.json"

# A broker that renames files faster than this many listings is not waited for.
LISTINGS = 5


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One `.log` file; `modified_ms` is the manifest's where there is one."""

    path: str
    base_offset: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """One partition's directory. What its log directory does not say is None."""

    topic: str
    partition: int
    path: str
    topic_id: str | None
    high_watermark: int | None
    log_start_offset: int | None
    segments: tuple[SegmentFile, ...]


class ManifestFile(NamedTuple):
    """A file's facts in a manifest, since copies and version control lose its time."""

    modified_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `ebbtide-manifest.json` beside a copied log directory."""

    files: Mapping[str, ManifestFile]  # by path below the log directory
    topic_configs: Mapping[str, Mapping[str, str]]
    last_append_ms: int | None


class _Entry(NamedTuple):
    names: tuple[str, ...]
    size_bytes: int
    modified_ms: int


def list_log_directory(uri: str, store: Store = AMBIENT) -> tuple[PartitionDirectory, ...]:
    """Return the partitions of a log directory by topic and partition, their segments by offset."""
    manifest = read_manifest(uri, store)
    high_watermarks = _read_checkpoint(store, uri, HIGH_WATERMARKS)
    log_start_offsets = _read_checkpoint(store, uri, LOG_START_OFFSETS)
    partitions = []
    for (topic, partition), name, entries in _list_partitions(store, uri):
        segments = [_segment(uri, entry, manifest) for entry in entries]
        partitions.append(
            PartitionDirectory(
                topic,
                partition,
                join(uri, name),
                _read_topic_id(store, uri, name),
                # A partition that the checkpoint does not hold yet has 0, as when a broker starts.
                None if high_watermarks is None else high_watermarks.get((topic, partition), 0),
                (log_start_offsets or {}).get((topic, partition)),
                tuple(sorted(segments, key=lambda segment: segment.base_offset)),
            )
        )
    return tuple(
        sorted(
            partitions,
            key=lambda partition_directory: (
                partition_directory.topic,
                partition_directory.partition,
            ),
        )
    )


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a directory's name; None where it is not a live partition's."""
    match = PARTITION_NAME.fullmatch(name)
    if match is None or match["topic"] == METADATA_TOPIC:
        return None
    partition = int(match["partition"])
    return (match["topic"], partition) if partition <= MAX_INT else None


def read_manifest(uri: str, store: Store = AMBIENT) -> Manifest | None:
    """Return the manifest of a copied log directory, None where it has none."""
    text = _read_text(store, uri, MANIFEST)
    if text is None:
        return None
    where = join(uri, MANIFEST)
    try:
        return _parse_manifest(parse_json(text))
    except MALFORMED as bad:
        raise SourceError(
            f"{where}: expected an object of files (modified_ms, size_bytes each), topics (config "
            f"each) and last_append_ms, found {type(bad).__name__}: {bad}; write it again"
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


def _list_partitions(store: Store, uri: str) -> Iterator[tuple[tuple[str, int], str, list[_Entry]]]:
    file_system, root = store.resolve(uri)
    for directory in _children(file_system, root, uri):
        parsed = parse_partition_name(directory.base_name)
        if parsed is None or directory.type is not pyarrow.fs.FileType.Directory:
            continue
        entries = _list_segments(file_system, directory.path, join(uri, directory.base_name))
        if entries is not None:
            yield parsed, directory.base_name, entries


def _children(file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> list[pyarrow.fs.FileInfo]:
    try:
        with failing_clearly(uri):
            return list(file_system.get_file_info(pyarrow.fs.FileSelector(path)))
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise SourceError(
            f"{uri}: expected a log directory, found none; check --source"
        ) from missing


def _list_segments(file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> list[_Entry] | None:
    """Return the segment files as they all are at one time; None where the directory is gone."""
    for _ in range(LISTINGS):
        try:
            with failing_clearly(uri):
                listed = file_system.get_file_info(pyarrow.fs.FileSelector(path))
        except FileNotFoundError:
            return None
        segments = [file for file in listed if SEGMENT_NAME.fullmatch(file.base_name)]
        if not is_object_store(file_system):  # whose listing already is of one time
            segments = file_system.get_file_info([file.path for file in segments])
        if all(file.type is pyarrow.fs.FileType.File for file in segments):
            return [_entry(file) for file in segments]
    raise UnavailableError(
        f"{uri}: expected segment files that stay while they are listed, found one gone after each "
        f"of {LISTINGS} listings; run again when its broker is quiet"
    )


def _entry(file: pyarrow.fs.FileInfo) -> _Entry:
    names = tuple(file.path.rsplit("/", 2)[1:])
    return _Entry(names, file.size, (file.mtime_ns or 0) // 1_000_000)


def _segment(uri: str, entry: _Entry, manifest: Manifest | None) -> SegmentFile:
    path = join(uri, *entry.names)
    modified_ms = entry.modified_ms
    kept = manifest.files.get("/".join(entry.names)) if manifest else None
    if kept is not None:
        if kept.size_bytes != entry.size_bytes:
            raise SourceError(
                f"{path}: expected {kept.size_bytes} bytes as {MANIFEST} says, found "
                f"{entry.size_bytes}; copy the file again or write the manifest again"
            )
        modified_ms = kept.modified_ms
    return SegmentFile(path, segment_base_offset(path), entry.size_bytes, modified_ms)


def _read_text(store: Store, uri: str, *names: str) -> str | None:
    where = join(uri, *names)
    file_system, path = store.resolve(where)
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
            f"{where}: expected version 0 and a topic_id, found {fields}; copy it again"
        )
    return fields["topic_id"]


def _parse_field(line: str) -> tuple[str, str]:
    name, value = line.split(":", 1)
    return name.strip(), value.strip()


def _read_checkpoint(store: Store, uri: str, name: str) -> dict[tuple[str, int], int] | None:
    """Return offsets by topic and partition; None where the directory has no such checkpoint."""
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
        raise _bad_line(where, 2, f"a count of lines, {len(lines[2:])},", count)
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
        f"{where}: expected {expected} in line {number}, found {actual!r}; copy the file again"
    )
