"""Read from its manifests which files a table has, on the driver.

Iceberg's own scan passes one file per call between Python and the JVM, which costs ten times as
much as reading the manifest. Format: Iceberg table spec, manifest lists and manifests.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import fastavro

from ebbtide.iceberg.catalog import Table
from ebbtide.iceberg.data_files import reading_planned
from ebbtide.iceberg.metadata import Snapshot
from ebbtide.stores.store import Store

_ADDED, _DELETED = 1, 2  # of an entry's status
_DATA = 0  # of a file's content
# The fields of a file that are read; the rest of an entry would take half of the time.
_NEEDED = {
    "content",
    "file_path",
    "file_format",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "first_row_id",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
}
_STATISTICS = {"value_counts", "null_value_counts", "lower_bounds", "upper_bounds"}

_kept: ContextVar[dict[str, list[ListedFile]] | None] = ContextVar("manifests", default=None)

# The partition and segment of a file.
SegmentPlace = tuple[int, int]


class ListedFile(NamedTuple):
    """A data or delete file of a snapshot, as its manifest lists it."""

    path: str
    size_bytes: int  # of the whole file
    rows: int
    is_data: bool
    referenced: str | None  # of a deletion vector: the data file that it is for
    partition: dict[str, Any]
    place: SegmentPlace | None  # None if the partition spec lacks partition and segment
    spec_id: int
    format: str
    sequence_number: int  # of the commit that added its rows
    first_row_id: int | None
    blob: tuple[int, int] | None  # of a deletion vector: its position and bytes in the file
    bounds: StoredBounds | None  # None: statistics were not asked for


class StoredBounds(NamedTuple):
    """Bounds of a file's whole numbers and times, by field id.

    A column without statistics is in none of the four.
    """

    lower: Mapping[int, int]
    upper: Mapping[int, int]
    empty: frozenset[int]  # columns that are null in each row
    full: frozenset[int]  # columns that are null in no row

    @classmethod
    def of(cls, file: Mapping[str, Any]) -> StoredBounds:
        """Read the bounds of a manifest's entry. Bounds of other types are read as numbers too."""
        values, nulls = _by_id(file, "value_counts"), _by_id(file, "null_value_counts")
        return cls(
            {field_id: _whole(bound) for field_id, bound in _by_id(file, "lower_bounds").items()},
            {field_id: _whole(bound) for field_id, bound in _by_id(file, "upper_bounds").items()},
            frozenset(
                field_id for field_id, count in values.items() if nulls.get(field_id) == count
            ),
            frozenset(field_id for field_id, count in nulls.items() if count == 0),
        )


class FileBounds(NamedTuple):
    """A file of a small table, with its columns' bounds by field id, as the manifest has them.

    A text's bounds may be cut: the lower one is then less than each text, the upper one greater.
    """

    path: str
    size_bytes: int
    rows: int
    is_data: bool
    referenced: str | None  # by a delete file: the one data file that it is for
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    nulls: Mapping[int, int]

    @classmethod
    def build(cls, file: Mapping[str, Any]) -> FileBounds:
        """Build the bounds from a manifest's entry."""
        return cls(
            file["file_path"],
            file["file_size_in_bytes"],
            file["record_count"],
            file["content"] == _DATA,
            file.get("referenced_data_file"),
            *(_by_id(file, name) for name in ("lower_bounds", "upper_bounds", "null_value_counts")),
        )

    def may_hold(self, column: int, text: str | None) -> bool:
        """Return whether a row may have this text in a column, or null if the text is None."""
        if text is None:
            return self.nulls.get(column, 1) > 0
        if column not in self.lower or column not in self.upper:
            return self.nulls.get(column) != self.rows
        return self.lower[column] <= text.encode() <= self.upper[column]

    def only_text(self, column: int) -> str | None:
        """Return the text that each row has in a column, or None if it is not certain."""
        lower = self.lower.get(column)
        is_one = lower is not None and lower == self.upper.get(column)
        return lower.decode() if lower and is_one and self.nulls.get(column) == 0 else None

    def largest(self, column: int) -> int | None:
        """Return an upper bound of a column of whole numbers or times, or None."""
        return _whole(self.upper[column]) if column in self.upper else None

    def reaches(self, column: int, number: int) -> bool:
        """Return whether a row may have this number, or a greater one, in a column."""
        largest = self.largest(column)
        return largest is None or largest >= number


class ColumnRange(NamedTuple):
    """Ranges [first, last] of partitions and of segments, by which manifests are skipped."""

    partitions: tuple[int, int]
    segments: tuple[int, int]


class WantedFiles(NamedTuple):
    """Segments whose files are to be read: those in the range for which `holds` is true."""

    range: ColumnRange
    holds: Callable[[SegmentPlace], bool]


class _Manifest(NamedTuple):
    """An entry of a manifest list."""

    path: str
    spec_id: int
    sequence_number: int
    added_snapshot: int
    first_row_id: int | None
    bounds: tuple[tuple[int, int], ...] | None  # of its partition fields, if all are numbers

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Manifest:
        return cls(
            row["manifest_path"],
            row["partition_spec_id"],
            row["sequence_number"],
            row["added_snapshot_id"],
            row.get("first_row_id"),
            _bounds_of_fields(row["partitions"] or ()),
        )

    def may_hold(self, wanted: WantedFiles, spec_id: int) -> bool:
        """Return whether the manifest may list a wanted file.

        `spec_id` is the partition spec by partition and segment alone.
        """
        if self.spec_id != spec_id or self.bounds is None:
            return True
        return all(
            lower <= last and first <= upper
            for (lower, upper), (first, last) in zip(self.bounds, wanted.range, strict=True)
        )


def _bounds_of_fields(summaries: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, int], ...] | None:
    pairs = [(summary["lower_bound"], summary["upper_bound"]) for summary in summaries]
    if any(lower is None or upper is None for lower, upper in pairs):
        return None
    return tuple((_whole(lower), _whole(upper)) for lower, upper in pairs)


def _by_id(file: Mapping[str, Any], name: str) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in file.get(name) or ()}


def _whole(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


def current_files(table: Table, *, has_bounds: bool = False) -> list[ListedFile]:
    """Return the files of the table's current snapshot."""
    current = table.current
    return [] if current is None else list(_files(table, [current], has_bounds=has_bounds))


def wanted_files(
    table: Table,
    snapshot: Snapshot,
    wanted: WantedFiles,
    spec_id: int,
    *,
    has_bounds: bool = False,
) -> list[ListedFile]:
    """Return a snapshot's files of the wanted segments, and its files without a segment.

    `spec_id` is the partition spec by partition and segment alone.
    """
    store = table.store
    return [
        file
        for manifest in _manifests(store, snapshot)
        if manifest.may_hold(wanted, spec_id)
        for file in _files_of_manifest(store, manifest, has_bounds=has_bounds)
        if file.place is None or wanted.holds(file.place)
    ]


def files_with_bounds(table: Table, snapshot: Snapshot) -> list[FileBounds]:
    """Return all files of a snapshot of a small table; manifests are cached with the open table."""
    found: list[FileBounds] = []
    for manifest in _manifests(table.store, snapshot):
        if manifest.path not in table.kept:
            rows = _read(_opened(table.store, manifest.path), has_bounds=True)
            table.kept[manifest.path] = [
                FileBounds.build(entry["data_file"])
                for entry in rows
                if entry["status"] != _DELETED
            ]
        found += table.kept[manifest.path]
    return found


def changed_files(table: Table, snapshot: Snapshot) -> Iterator[tuple[int, ListedFile]]:
    """Yield (1, file) for each file that a snapshot added, (-1, file) for each that it removed."""
    store = table.store
    for manifest in _manifests(store, snapshot):
        if manifest.added_snapshot == snapshot.id:
            for status, file in _entries(store, manifest):
                if status in (_ADDED, _DELETED):
                    yield 1 if status == _ADDED else -1, file


def all_sizes(table: Table) -> dict[str, int]:
    """Return the bytes of each file that a snapshot of the table needs, by path."""
    files = _files(table, table.metadata.snapshots.values())
    return {file.path: file.size_bytes for file in files}


def snapshots_with_old_files(table: Table) -> set[int]:
    """Return the ids of snapshots with a data file that the current snapshot lacks."""
    current = {file.path for file in current_files(table) if file.is_data}
    store = table.store
    is_old: dict[str, bool] = {}
    holding = set()
    for snapshot in table.metadata.snapshots.values():
        manifests = list(_manifests(store, snapshot))
        for manifest in manifests:
            if manifest.path not in is_old:
                files = _files_of_manifest(store, manifest)
                is_old[manifest.path] = any(f.is_data and f.path not in current for f in files)
        if any(is_old[manifest.path] for manifest in manifests):
            holding.add(snapshot.id)
    return holding


def _files(
    table: Table, snapshots: Iterable[Snapshot], *, has_bounds: bool = False
) -> Iterator[ListedFile]:
    """Yield the files of snapshots; each manifest is read once."""
    store = table.store
    manifests = {
        manifest.path: manifest
        for snapshot in snapshots
        for manifest in _manifests(store, snapshot)
    }
    for manifest in manifests.values():
        yield from _files_of_manifest(store, manifest, has_bounds=has_bounds)


def _manifests(store: Store, snapshot: Snapshot) -> Iterator[_Manifest]:
    rows: Any = fastavro.reader(_opened(store, snapshot.manifest_list))
    return map(_Manifest.of, rows)


@contextmanager
def manifests_kept() -> Iterator[None]:
    """Read each manifest only once until the block ends; manifests never change."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def _files_of_manifest(
    store: Store, manifest: _Manifest, *, has_bounds: bool = False
) -> Iterable[ListedFile]:
    """Return the files that a manifest lists, except those that its commit removed."""
    entries = _entries(store, manifest, has_bounds=has_bounds)
    files = (file for status, file in entries if status != _DELETED)
    if has_bounds or (kept := _kept.get()) is None:
        return files
    if manifest.path not in kept:
        kept[manifest.path] = list(files)
    return kept[manifest.path]


def _entries(
    store: Store, manifest: _Manifest, *, has_bounds: bool = False
) -> Iterator[tuple[int, ListedFile]]:
    """Yield a manifest's entries as (status, file), with inherited values filled in."""
    rows = _read(_opened(store, manifest.path), has_bounds=has_bounds)
    names = _place_names(rows.metadata)
    next_row_id = manifest.first_row_id
    for entry in rows:
        status, file = entry["status"], entry["data_file"]
        first_row_id = None if next_row_id is None else file.get("first_row_id")
        # Iceberg table spec, first row id inheritance: files without one are numbered in order.
        if first_row_id is None and next_row_id is not None and status != _DELETED:
            first_row_id, next_row_id = next_row_id, next_row_id + file["record_count"]
        sequence_number = entry["sequence_number"]
        if sequence_number is None:
            sequence_number = manifest.sequence_number
        position, partition = file.get("content_offset"), file["partition"]
        yield (
            status,
            ListedFile(
                file["file_path"],
                file["file_size_in_bytes"],
                file["record_count"],
                file["content"] == _DATA,
                file.get("referenced_data_file"),
                partition,
                None if names is None else (partition[names[0]], partition[names[1]]),
                manifest.spec_id,
                file["file_format"],
                sequence_number,
                first_row_id,
                None if position is None else (position, file["content_size_in_bytes"]),
                StoredBounds.of(file) if has_bounds else None,
            ),
        )


def _place_names(metadata: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the names of the partition fields of columns `partition` and `segment`, or None."""
    columns = {field["id"]: field["name"] for field in json.loads(metadata["schema"])["fields"]}
    fields = {
        columns.get(field["source-id"]): field["name"]
        for field in json.loads(metadata["partition-spec"])
        if field["transform"] == "identity"
    }
    if "partition" not in fields or "segment" not in fields:
        return None
    return fields["partition"], fields["segment"]


def _read(data: io.BytesIO, *, has_bounds: bool) -> Any:
    """Return a reader of a manifest's entries that reads only the needed fields."""
    schema: Any = fastavro.reader(data).writer_schema
    data.seek(0)
    (entry,) = (field for field in schema["fields"] if field["name"] == "data_file")
    needed = _NEEDED | _STATISTICS if has_bounds else _NEEDED
    fields = [field for field in entry["type"]["fields"] if field["name"] in needed]
    slim = {**entry, "type": {**entry["type"], "fields": fields}}
    others = [slim if field is entry else field for field in schema["fields"]]
    return fastavro.reader(data, reader_schema={**schema, "fields": others})


def _opened(store: Store, path: str) -> io.BytesIO:
    with reading_planned(store, path) as handle:
        return io.BytesIO(handle.read())
