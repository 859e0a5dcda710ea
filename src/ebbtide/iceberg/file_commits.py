"""Commit single files through Iceberg's Java classes RowDelta and RewriteFiles.

No SQL statement is needed, so nothing is scanned.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.commits import current_commits, own_summary
from ebbtide.iceberg.data_files import DataFile, DeletionVector, SegmentFiles, write_vectors
from ebbtide.iceberg.manifests import ListedFile, SegmentPlace, WantedFiles, current_files
from ebbtide.iceberg.segment_planning import PlannedFile, among, below, near_segments, planned_files
from ebbtide.iceberg.topics import own_spec_id
from ebbtide.iceberg.work_tags import WorkTag, tagging
from ebbtide.spark.jvm import (
    ICEBERG,
    JavaMethod,
    iceberg_class,
    items,
    java_class,
    java_list,
    texts,
)
from ebbtide.stores.store import Store

# Names of the files that ebbtide writes to its own tables.
#
# A name has the job, a mark of its run and one of the table. So a file that no snapshot needs is
# known as ebbtide's and as this table's, and whether its run has ended can be looked up. Files that
# Spark writes have names of Spark's.


_NAME = re.compile(
    r"ebbtide-(?P<job>[a-z_]+)-(?P<run>[0-9a-f]{16})-(?P<table>[0-9a-f]{8})-[0-9a-f]{32}(?:\.parquet|-deletes\.puffin)"
)


class Writer(NamedTuple):
    """The job that wrote a file, and the marks of its run and of the table that it is for."""

    job: str
    run: str
    table: str


def run_mark(run_id: str) -> str:
    """Return a run id in the characters and length that a file name can have."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def table_mark(table: Table) -> str:
    """Return the beginning of the table's id: other tables may be below its location."""
    return table.metadata.uuid[:8]


def new_file_name(table: Table, ending: str) -> str:
    """Return a new file name with the job and run at work, or without them outside a job."""
    commits, unique = current_commits(), uuid.uuid4().hex + ending
    if commits is None or not commits.run_id:
        return unique
    return f"ebbtide-{commits.job}-{run_mark(commits.run_id)}-{table_mark(table)}-{unique}"


def writer_of(name: str) -> Writer | None:
    """Return the job and run that a file name has, or None if ebbtide did not choose the name."""
    match = _NAME.fullmatch(name)
    return Writer(*match.groups()) if match else None


# A commit that the catalog made but reported as refused is recognised.
#
# If a gateway repeats a POST, a REST catalog makes the commit and then refuses the repetition.
# Iceberg takes that for a lost race and deletes the files of a snapshot that is current by now.
# Here no file is deleted before the table is read again.


log = logging.getLogger(__name__)

_QUEUE = "java.util.concurrent.ConcurrentLinkedQueue"


def commit_update(spark: SparkSession, table: Any, update: Any) -> int:
    """Commit an Iceberg update of `table`; return the id of its snapshot.

    The update must not be part of a transaction, which deletes files by itself.
    """
    unneeded = java_class(spark, _QUEUE)()
    keep = JavaMethod.of(spark, _QUEUE, "add", "java.lang.Object").on(unneeded)
    update = update.deleteWith(keep.as_a("java.util.function.Consumer"))
    made = None
    try:
        update.commit()
    except Exception as error:
        made = _made(spark, table, _listed(spark, unneeded))
        if made is None:
            _delete(table, _listed(spark, unneeded))
            raise
        log.warning(
            "the catalog committed snapshot %s to %s but answered that it had not, as it does if "
            "a gateway repeats the request: %s",
            made.snapshotId(),
            table.name(),
            str(error).splitlines()[0],
        )
    named = set() if made is None else _files_of(table, made)
    _delete(table, set(_listed(spark, unneeded)) - named)
    return int((made or update.updateEvent()).snapshotId())


def _made(spark: SparkSession, table: Any, paths: Collection[str]) -> Any:
    """Return the table's snapshot whose manifest list is among the paths, or None."""
    if not paths:
        return None
    table.refresh()
    snapshots = _listed_objects(spark, table.snapshots())
    return next(
        (snapshot for snapshot in reversed(snapshots) if snapshot.manifestListLocation() in paths),
        None,
    )


def _files_of(table: Any, made: Any) -> set[str]:
    manifests = items(made.allManifests(table.io()))
    return {str(made.manifestListLocation()), *(str(manifest.path()) for manifest in manifests)}


def _delete(table: Any, paths: Collection[str]) -> None:
    """Delete files that no snapshot names. A file that cannot be deleted does no harm."""
    for path in paths:
        with suppress(Py4JJavaError):
            table.io().deleteFile(path)


def _listed(spark: SparkSession, queue: Any) -> list[str]:
    return [str(path) for path in _listed_objects(spark, queue)]


def _listed_objects(spark: SparkSession, collection: Any) -> list[Any]:
    return items(java_class(spark, "java.util.ArrayList")(collection))


# Commits a prepared change and returns the id of its snapshot.
Commit = Callable[[], int]


class Replacement(NamedTuple):
    """A segment's files, and the path of the file that replaces them, or None if no row is left."""

    unit: SegmentFiles
    path: str | None


def new_paths(spark: SparkSession, table: str, units: Sequence[SegmentFiles]) -> list[str]:
    """Return one new file path per segment; no two calls return the same."""
    places = [(unit.partition, unit.segment) for unit in units]
    return new_locations(open_table(spark, table), places)


class PlannedRewrite(NamedTuple):
    """A segment's files, and the path of the file to write in their place."""

    unit: SegmentFiles
    path: str


def planned_rewrites(
    spark: SparkSession, table: str, units: Sequence[SegmentFiles]
) -> list[PlannedRewrite]:
    """Plan a rewrite of each segment to a new path."""
    paths = new_paths(spark, table, units)
    return [PlannedRewrite(unit, path) for unit, path in zip(units, paths, strict=True)]


def new_locations(table: Table, segments: Iterable[SegmentPlace]) -> list[str]:
    """Return one new file path per segment, from Iceberg's location provider."""
    names = [
        f"partition={partition}/segment={segment}/{new_file_name(table, '.parquet')}"
        for partition, segment in segments
    ]
    spark, provider = table.spark, ICEBERG + "io.LocationProvider"
    locate = JavaMethod.of(spark, provider, "newDataLocation", "java.lang.String")
    return texts(spark, locate.on(table.java.locationProvider()).map(java_list(spark, names)))


class RowDelta(NamedTuple):
    """Rows removed from their files, and rows added, to be committed together."""

    deletions: Sequence[DeletionVector] = ()
    added: Sequence[Replacement] = ()  # one more file in its segment
    replaced: Sequence[Replacement] = ()  # a file in place of all files of its segment
    dropped: Sequence[SegmentFiles] = ()  # files without a retained row

    @classmethod
    def of_all(cls, parts: Iterable[RowDelta]) -> RowDelta:
        """Join the deltas, each of different segments."""
        return cls(*(tuple(chain.from_iterable(lists)) for lists in zip(*parts, strict=True)))


def prepare_row_delta(
    spark: SparkSession,
    table: str,
    ends: Mapping[int, int],
    delta: RowDelta,
    properties: Mapping[str, str],
    tag: WorkTag | None = None,
    before: int | None = None,
) -> Commit:
    """Write the deletion vectors of a delta, and return its commit, which makes one snapshot.

    All its segments are below their partition's offset in `ends`. `tag`, if given, is set on the
    new snapshot, and on the snapshot `before`, on which the delta was planned. Raise
    CommitConflictError if another writer changed one of the files; so does the commit.
    """
    opened = open_table(spark, table)
    assert opened.current is not None
    snapshot = opened.current.id
    current = _CurrentFiles.of(opened, snapshot, below(ends))
    described = DescribedFiles.of(opened)
    deleted_from = [current.unchanged(deletion.file) for deletion in delta.deletions]
    vectors = _write_vectors(opened, delta.deletions, deleted_from)
    leaving = [*(unit for unit, _ in delta.replaced), *delta.dropped]
    removed = [current.unchanged(file) for unit in leaving for file in unit.files]
    begun = _Begun.of(opened, tag, before)
    update = _FileUpdate(spark, begun.updates.newRowDelta(), "RowDelta")
    update.updates.validateFromSnapshot(snapshot)
    # Without this, Iceberg would not see that a delete-only commit has removed one of the files.
    update.updates.validateDeletedFiles()
    paths = [deletion.file.path for deletion in delta.deletions]
    update.updates.validateDataFilesExist(java_list(spark, paths))
    if leaving:
        segments = {(unit.partition, unit.segment) for unit in leaving}
        update.updates.conflictDetectionFilter(near_segments(spark, segments))
        update.updates.validateNoConflictingDeleteFiles()
    if delta.replaced:
        update.updates.validateNoConflictingDataFiles()
    update.deletes("addDeletes", described.deletes(vectors))
    gone = [planned.vector for planned in (*deleted_from, *removed) if planned.vector is not None]
    update.deletes("removeDeletes", described.deletes(map(describe_listed, gone)))
    update.data(
        "removeRows", described.data(describe_listed(planned.listed) for planned in removed)
    )
    new = described.read_new((*delta.added, *delta.replaced))
    update.data("addRows", described.data(new))
    return begun.commit_of(update.updates, properties)


def prepare_rewrite(
    spark: SparkSession,
    table: str,
    segments: Collection[SegmentPlace],
    replacements: Sequence[Replacement],
    properties: Mapping[str, str],
    tag: WorkTag | None = None,
    dangling: Collection[str] = (),
) -> Commit:
    """Prepare to replace files by new ones with the same rows, and to drop their vectors.

    All replaced files are in `segments`. `dangling` names data files that the table no longer has;
    their vectors are dropped too. Raise CommitConflictError if another writer changed a file.
    """
    opened = open_table(spark, table)
    assert opened.current is not None
    snapshot = opened.current.id
    current = _CurrentFiles.of(opened, snapshot, among(segments))
    described = DescribedFiles.of(opened)
    removed = [current.unchanged(file) for unit, _ in replacements for file in unit.files]
    begun = _Begun.of(opened, tag, snapshot)
    update = _FileUpdate(spark, begun.updates.newRewrite(), "RewriteFiles")
    update.updates.validateFromSnapshot(snapshot)
    update.data(
        "deleteFile", described.data(describe_listed(planned.listed) for planned in removed)
    )
    gone = [planned.vector for planned in removed if planned.vector is not None]
    if dangling:
        files = current_files(opened)
        gone += [file for file in files if not file.is_data and file.referenced in dangling]
    update.deletes("deleteFile", described.deletes(map(describe_listed, gone)))
    update.data("addFile", described.data(described.read_new(replacements)))
    return begun.commit_of(update.updates, properties)


class _FileUpdate(NamedTuple):
    """An Iceberg update that takes files, and the name of its interface."""

    spark: SparkSession
    updates: Any
    kind: str

    def data(self, method: str, files: Any) -> None:
        """Call the method with each data file of a Java list."""
        self._for_each(method, files, "DataFile")

    def deletes(self, method: str, files: Any) -> None:
        """Call the method with each delete file of a Java list."""
        self._for_each(method, files, "DeleteFile")

    def _for_each(self, method: str, files: Any, type_name: str) -> None:
        called = JavaMethod.of(self.spark, ICEBERG + self.kind, method, ICEBERG + type_name)
        called.on(self.updates).for_each(files)


class _Begun(NamedTuple):
    """An update that has begun, and the function that commits it, with tags if it has a tag."""

    updates: Any
    commit: Callable[[Any], int]

    @classmethod
    def of(cls, table: Table, tag: WorkTag | None, before: int | None) -> _Begun:
        if tag is None or before is None:
            return cls(table.java, partial(commit_update, table.spark, table.java))
        updates, commit = tagging(table, tag, before)

        def tagged(update: Any) -> int:
            commit(update)
            return int(table.java.currentSnapshot().snapshotId())

        return cls(updates, tagged)

    def commit_of(self, update: Any, properties: Mapping[str, str]) -> Commit:
        for name, value in own_summary(properties).items():
            update = update.set(name, value)
        return partial(self.commit, update)


class _CurrentFiles(NamedTuple):
    """Current files of some segments, by path."""

    by_path: Mapping[str, PlannedFile]

    @classmethod
    def of(cls, table: Table, snapshot: int, wanted: WantedFiles) -> _CurrentFiles:
        planned = planned_files(table, snapshot, wanted)
        return cls({planned_file.file.path: planned_file for planned_file in planned})

    def unchanged(self, file: DataFile) -> PlannedFile:
        """Return a planned file as the table lists it now.

        Raise CommitConflictError if it was rewritten or rows were deleted from it since.
        """
        listed = self.by_path.get(file.path)
        if listed is not None and listed.file.vector == file.vector:
            return listed
        raise CommitConflictError(
            f"expected {file.path} as it was when the round was planned, found that another writer "
            "rewrote it or deleted rows from it. Run the job again"
        )


def _write_vectors(
    table: Table,
    deletions: Sequence[DeletionVector],
    files: Sequence[PlannedFile],
) -> Iterator[dict[str, Any]]:
    """Write the deletion vectors of files to one Puffin file; return their descriptions."""
    if not deletions:
        return iter(())
    name = new_file_name(table, "-deletes.puffin")
    path = str(table.java.locationProvider().newDataLocation(name))
    written = write_vectors(table.store, path, deletions)
    return (
        {
            **describe_listed(planned.listed),
            "content": "position-deletes",
            "file-path": path,
            "file-format": "puffin",
            "file-size-in-bytes": written.size_bytes,
            "record-count": deletion.cardinality,
            "referenced-data-file": deletion.file.path,
            "content-offset": position,
            "content-size-in-bytes": len(deletion.blob),
        }
        for deletion, planned, position in zip(deletions, files, written.positions, strict=True)
    )


# Files are passed to Iceberg as JSON, many in one call to the JVM.
#
# Iceberg's ContentFileParser parses it. A new file is described from its footer here: Iceberg's
# own reader of footers, ParquetUtil, loads Hadoop's configuration again for each file, which takes
# 20 ms of CPU time. Format: Iceberg table spec, data_file and single-value serialization.


# A file as JSON for Iceberg's parser.
Description = Mapping[str, Any]


# Bytes of a bound, by Parquet type; other types get no bounds.
_BOUND_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8}
# A text's bounds are cut to this length, as Iceberg's writers cut them. To round an upper bound up,
# its last character is raised, unless it is at or above this one: surrogates follow.
_BOUND_CHARACTERS, _LAST_RAISED = 16, chr(0xD7FF)
_FILES_AT_ONCE = 1000
_BUILDER = ICEBERG + "DataFiles$Builder"
_JSON_NODE = ICEBERG + "shaded.com.fasterxml.jackson.databind.JsonNode"


class DescribedFiles(NamedTuple):
    """Descriptions of a table's files, converted to Iceberg's Java objects."""

    spark: SparkSession
    store: Store
    specs: Any  # Java's map of the table's partition specs by their ids
    own_spec_id: int  # of new files

    @classmethod
    def of(cls, table: Table) -> DescribedFiles:
        """Read the table's partition specs."""
        return cls(table.spark, table.store, table.java.specs(), own_spec_id(table))

    def data(self, files: Iterable[Description]) -> Any:
        """Return a Java list of the described data files.

        The parser makes an Avro schema of 2 kB or more for each file. Each file is copied by one
        builder, so that all copies share the builder's schema.
        """
        copied = self._list()
        for spec_id, of_spec in groupby(files, itemgetter("spec-id")):
            builder = iceberg_class(self.spark, "DataFiles").builder(self.specs.get(spec_id))
            copy = JavaMethod.of(self.spark, _BUILDER, "copy", ICEBERG + "DataFile").on(builder)
            copy = copy.then(JavaMethod.of(self.spark, _BUILDER, "build"))
            for parsed in self._parsed(of_spec):
                copied.addAll(copy.map(parsed))
        return copied

    def deletes(self, files: Iterable[Description]) -> Any:
        """Return a Java list of the described deletion vectors."""
        deletes = self._list()
        for parsed in self._parsed(files):
            deletes.addAll(parsed)
        return deletes

    def read_new(self, replacements: Sequence[Replacement]) -> Iterator[Description]:
        """Yield the description of each new file, read from its footer."""
        for unit, path in replacements:
            if path is not None:
                place = Place(self.own_spec_id, unit.partition, unit.segment, path)
                yield read_description(self.store, place)

    def _parsed(self, files: Iterable[Description]) -> Iterator[Any]:
        """Yield Java lists of up to 1000 files each: as JSON a file takes kilobytes."""
        mapper = iceberg_class(self.spark, "util.JsonUtil").mapper()
        nodes_of = iceberg_class(self.spark, "relocated.com.google.common.collect.Iterables")
        parser = (ICEBERG + "ContentFileParser", "fromJson", _JSON_NODE, "java.util.Map")
        parse, left = JavaMethod.of(self.spark, *parser).with_last(1, self.specs), iter(files)
        while some := list(islice(left, _FILES_AT_ONCE)):
            nodes = self._list()
            nodes_of.addAll(nodes, mapper.readTree(json.dumps(some)))
            yield parse.map(nodes)

    def _list(self) -> Any:
        return java_class(self.spark, "java.util.ArrayList")()


def describe_listed(file: ListedFile) -> dict[str, Any]:
    """Return a file of a manifest as JSON, without its statistics."""
    described: dict[str, Any] = {
        "spec-id": file.spec_id,
        "content": "data" if file.is_data else "position-deletes",
        "file-path": file.path,
        "file-format": file.format.lower(),
        "partition": [_single_value(value) for value in file.partition.values()],
        "file-size-in-bytes": file.size_bytes,
        "record-count": file.rows,
    }
    if file.blob is not None:
        described["referenced-data-file"] = file.referenced
        described["content-offset"], described["content-size-in-bytes"] = file.blob
    return described


def _single_value(value: Any) -> Any:
    """Return a partition value as Iceberg's JSON has it; another tool may have added its spec."""
    if isinstance(value, date):
        return value.isoformat()
    return value.hex().upper() if isinstance(value, bytes) else value


class Place(NamedTuple):
    """A data file's path, segment and partition spec."""

    spec_id: int
    partition: int
    segment: int
    path: str


def read_description(store: Store, place: Place) -> dict[str, Any]:
    """Return the description of the Parquet file at a place, read from its footer."""
    with store.reading(place.path) as handle:
        file = pq.ParquetFile(handle)
        return describe(place, file.schema_arrow, file.metadata, handle.size())


def describe(
    place: Place, schema: pa.Schema, footer: pq.FileMetaData, size_bytes: int
) -> dict[str, Any]:
    """Return a data file as JSON, with statistics.

    Columns outside lists have counts. Integers, times and booleans have bounds.
    """
    of_place = {"spec-id": place.spec_id, "partition": [place.partition, place.segment]}
    metrics = _metrics(_columns_of(schema), footer)
    return {**of_place, **_file(place.path, footer, size_bytes), **metrics}


def describe_small(
    path: str, schema: pa.Schema, footer: pq.FileMetaData, size_bytes: int
) -> dict[str, Any]:
    """Return a data file as JSON without its place; unlike `describe`, texts have bounds."""
    metrics = _metrics(_columns_of(schema), footer, has_texts=True)
    return {**_file(path, footer, size_bytes), **metrics}


def _file(path: str, footer: pq.FileMetaData, size_bytes: int) -> dict[str, Any]:
    return {
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "file-size-in-bytes": size_bytes,
        "record-count": footer.num_rows,
        "split-offsets": [_start(footer.row_group(n)) for n in range(footer.num_row_groups)],
    }


def _start(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _metrics(
    columns: Sequence[_Column], footer: pq.FileMetaData, *, has_texts: bool = False
) -> dict[str, Any]:
    sizes, values, nulls = Counter[int](), Counter[int](), Counter[int]()
    lower: dict[int, int] = {}
    upper: dict[int, int] = {}
    widths: dict[int, int] = {}
    texts: dict[int, list[str]] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for number, (field_id, is_in_list) in enumerate(columns):
            column = group.column(number)
            statistics = column.statistics
            sizes[field_id] += column.total_compressed_size
            if is_in_list:
                continue
            values[field_id] += column.num_values
            nulls[field_id] += statistics.null_count
            if statistics.has_min_max and column.physical_type in _BOUND_BYTES:
                widths[field_id] = _BOUND_BYTES[column.physical_type]
                lower[field_id] = min(lower.get(field_id, statistics.min_raw), statistics.min_raw)
                upper[field_id] = max(upper.get(field_id, statistics.max_raw), statistics.max_raw)
            elif has_texts and column.physical_type == "BYTE_ARRAY" and statistics.has_min_max:
                texts.setdefault(field_id, []).extend((statistics.min, statistics.max))
    lowest = {field_id: _bound(lower[field_id], width) for field_id, width in widths.items()}
    highest = {field_id: _bound(upper[field_id], width) for field_id, width in widths.items()}
    for field_id, ends in texts.items():
        lowest[field_id] = _lower_text(min(ends))
        if (bound := _upper_text(max(ends))) is not None:
            highest[field_id] = bound
    return {
        "column-sizes": _described_by_id(sizes),
        "value-counts": _described_by_id(values),
        "null-value-counts": _described_by_id(nulls),
        "lower-bounds": _described_by_id(lowest),
        "upper-bounds": _described_by_id(highest),
    }


class _Column(NamedTuple):
    """A column of a Parquet file, by Iceberg's id."""

    field_id: int
    is_in_list: bool


def _columns_of(schema: pa.Schema) -> list[_Column]:
    """Return the columns of files with this schema, those in lists and structs included.

    A footer's own `schema` is not used: it and the footer refer to each other, so both would stay
    in memory for long.
    """
    return [column for field in schema for column in _leaves(field, is_in_list=False)]


def _leaves(field: pa.Field, *, is_in_list: bool) -> list[_Column]:
    inner = [field.type.field(number) for number in range(field.type.num_fields)]
    if not inner:
        return [_Column(int(field.metadata[b"PARQUET:field_id"]), is_in_list)]
    is_in_list |= not pa.types.is_struct(field.type)
    return [leaf for child in inner for leaf in _leaves(child, is_in_list=is_in_list)]


def _described_by_id(values: Mapping[int, object]) -> dict[str, list[object]]:
    """Return a map in Iceberg's JSON form."""
    return {"keys": list(values), "values": list(values.values())}


def _bound(value: int, width: int) -> str:
    return value.to_bytes(width, "little", signed=True).hex().upper()


def _lower_text(text: str) -> str:
    return text[:_BOUND_CHARACTERS].encode().hex().upper()


def _upper_text(text: str) -> str | None:
    """Return a short text that is at least as great, or None if there is none."""
    if len(text) > _BOUND_CHARACTERS:
        cut = text[:_BOUND_CHARACTERS]
        if cut[-1] >= _LAST_RAISED:
            return None
        text = cut[:-1] + chr(ord(cut[-1]) + 1)
    return text.encode().hex().upper()
