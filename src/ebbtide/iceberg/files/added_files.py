"""Append rows to a topic's tables in files that Python writes: no row passes through the JVM."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ebbtide.errors import CommitConflictError
from ebbtide.iceberg.catalog import Table, open_table
from ebbtide.iceberg.commits import own_summary
from ebbtide.iceberg.files.applied_commits import commit_update
from ebbtide.iceberg.files.described_files import (
    DescribedFiles,
    Description,
    Place,
    describe,
)
from ebbtide.iceberg.files.field_ids import arrow_schema
from ebbtide.iceberg.files.file_commits import new_locations
from ebbtide.iceberg.files.rows_beyond import RowsBeyond
from ebbtide.iceberg.topics import own_spec_id
from ebbtide.spark.jvm import ICEBERG, JavaMethod
from ebbtide.stores.store import Store

# Rows of a row group, as Arrow holds them: a thread keeps as much of a file in memory.
GROUP_BYTES = 64 * 1024 * 1024
_FAST = 1  # of zlib's levels
# After so long a commit makes sure that its files are there: another tool may remove orphans.
CHECKED_AFTER_S = 15 * 60
CHECKED_AT_ONCE = 16
_CODEC = "write.parquet.compression-codec"
_LEVEL = "write.parquet.compression-level"
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}


# A written data file.
NewFile = Description
# Some of them; as Python's objects each takes 9 kB.
PackedFiles = bytes


class Target(NamedTuple):
    """A file to be written, in whatever process."""

    store: Store
    schema: pa.Schema  # with Iceberg's field ids
    codec: str
    level: int | None
    place: Place


class Appending(NamedTuple):
    """A table that rows of some columns are to be appended to."""

    table: Table
    target: Target  # without its place
    since: float  # on the monotonic clock; no file of it is older

    @classmethod
    def of(cls, spark: SparkSession, table: str, names: Sequence[str]) -> Appending:
        """Load the current table; ConfigurationError where it lacks one of the columns."""
        opened = open_table(spark, table)
        properties = opened.metadata.properties
        codec, level = properties.get(_CODEC, "zstd").lower(), properties.get(_LEVEL)
        place = Place(own_spec_id(opened), 0, 0, "")
        target = Target(
            opened.store,
            arrow_schema(opened, names),
            _CODECS.get(codec, codec),
            None if level is None else int(level),
            place,
        )
        return cls(opened, target, time.monotonic())

    def targets(self, segments: Iterable[tuple[int, int]]) -> list[Target]:
        """Return a new file for each (partition, segment)."""
        segments = list(segments)
        paths = new_locations(self.table, segments)
        return [
            self.target._replace(place=Place(self.target.place.spec_id, *segment, path))
            for segment, path in zip(segments, paths, strict=True)
        ]

    def append(
        self, files: Iterable[PackedFiles], beyond: RowsBeyond, properties: Mapping[str, str]
    ) -> int:
        """Commit the written files; return the snapshot's id.

        CommitConflictError, by `commit`, if somebody has added rows to `beyond` meanwhile, and if
        a file that was written long ago is gone.
        """
        written = list(_unpacked(files))
        if time.monotonic() - self.since >= CHECKED_AFTER_S:
            _check_there(self.table, [str(file["file-path"]) for file in written])
        update = beyond.guard(self.table.java.newOverwrite())
        for name, value in own_summary(properties).items():
            update = update.set(name, value)
        method = (ICEBERG + "OverwriteFiles", "addFile", ICEBERG + "DataFile")
        append = JavaMethod.of(self.table.spark, *method)
        append.on(update).for_each(DescribedFiles.of(self.table).data(written))
        return commit_update(self.table.spark, self.table.java, update)


def _check_there(table: Table, paths: Sequence[str]) -> None:
    """Raise CommitConflictError if a file that a commit is about to name is gone."""
    with ThreadPoolExecutor(CHECKED_AT_ONCE) as pool:
        are_there = pool.map(table.store.has, paths)
        gone = [path for path, is_there in zip(paths, are_there, strict=True) if not is_there]
    if gone:
        raise CommitConflictError(
            f"expected {gone[0]}, which this job has written and not committed yet, found it gone, "
            f"as {len(gone)} of {len(paths)} files: another tool took them for orphans. Give "
            "remove_orphan_files an age longer than any job takes, such as 3 days, and run the job "
            "again"
        )


def write_new_file(target: Target, rows: Iterable[pa.Table]) -> NewFile | None:
    """Write the rows in row groups of GROUP_BYTES, in a task; None where there are none."""
    groups = _groups(rows)
    first = next(groups, None)
    if first is None:
        return None
    footers: list[pq.FileMetaData] = []
    with target.store.writing(target.place.path) as stream:
        with pq.ParquetWriter(
            stream,
            target.schema,
            compression=target.codec,
            compression_level=target.level,
            metadata_collector=footers,
        ) as writer:
            _write_group(writer, first)
            for group in groups:
                _write_group(writer, group)
        size_bytes = stream.tell()
    return describe(target.place, target.schema, footers[0], size_bytes)


def pack(files: list[Any]) -> list[Any]:
    """Return PackedFiles of what `write_new_file` has returned, as `map_segments` folds results."""
    written = [file for file in files if file is not None]
    return [zlib.compress(json.dumps(written).encode(), _FAST)]


def _unpacked(packed: Iterable[PackedFiles]) -> Iterator[NewFile]:
    for some in packed:
        yield from json.loads(zlib.decompress(some))


def _write_group(writer: pq.ParquetWriter, group: pa.Table) -> None:
    writer.write_table(group.cast(writer.schema), row_group_size=group.num_rows)


def _groups(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    size_bytes = 0
    for some in rows:
        if not some.num_rows:
            continue
        held.append(some)
        size_bytes += some.nbytes
        if size_bytes >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
