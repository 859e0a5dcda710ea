"""Read the keys of an adopted table's Parquet files as columns.

Spark hands each row through the JVM with the path of its file, which takes most of a round's time.
Iceberg's scan tells the files and their deletes; a table that has others than deletes of positions,
other formats, or files without one of the columns, is left to Iceberg's own reader (rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from ebbtide.iceberg.adopted.file_scans import (
    FileScan,
    Wanted,
    deleted_positions,
    position_deletes,
    texts_of_files,
)
from ebbtide.iceberg.files.data_files import numbers_in, opened_file
from ebbtide.iceberg.files.field_ids import READING, WHOLE
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.jvm import ICEBERG, JavaMethod, texts
from ebbtide.stores.store import Store

_FIELD_ID = b"PARQUET:field_id"
_ENCRYPTED = "encryption.key-id"
_KEY_TYPES = frozenset({"binary", "string"})
_NOWHERE = -1  # of a row without partition or offset


class KeyFile(NamedTuple):
    """A data file, and the positions of its rows that are deleted, as a serialized bitmap."""

    path: str
    size_bytes: int
    record_count: int
    dead: bytes | None


class KeyColumns(NamedTuple):
    """Field ids of the columns that place a record and of its key, by what they are of.

    In a table that several topics share, also that of the topic's column, and the one topic.
    """

    ids: Mapping[str, int]
    in_table: str | None = None

    @classmethod
    def of(cls, scan: FileScan) -> KeyColumns | None:
        """Return those of a table's snapshot; None if only Iceberg's reader can read it."""
        layout, metadata = scan.rows.layout, scan.table.metadata
        made = metadata.snapshots.get(scan.snapshot)
        if layout.key is None or layout.key.type not in _KEY_TYPES or made is None:
            return None
        is_now = made == scan.table.current or made.schema_id == metadata.schema["schema-id"]
        if not is_now or _ENCRYPTED in metadata.properties:
            return None
        columns = {"partition": layout.partition, "offset": layout.offset, "key": layout.key}
        if scan.rows.in_table is not None:
            assert layout.topic is not None
            columns["topic"] = layout.topic
        ids = {name: column.field_id for name, column in columns.items()}
        return cls(ids, scan.rows.in_table)


class KeyRows(NamedTuple):
    """Live rows of a file in its order; a row without a place has the partition -1."""

    positions: Int64s
    partitions: Int64s
    offsets: Int64s
    keys: pa.Array  # of bytes

    def where(self, condition: Bools) -> KeyRows:
        """Return the rows for which the condition holds."""
        if condition.all():
            return self
        return KeyRows(
            self.positions[condition],
            self.partitions[condition],
            self.offsets[condition],
            self.keys.filter(pa.array(condition)),
        )


def find_key_files(scan: FileScan, wanted: Wanted) -> list[KeyFile] | None:
    """Return the files that may hold wanted rows, by their bounds.

    None if Iceberg's own reader has to read one of them.
    """
    spark, tasks = scan.rows.spark, scan.tasks(wanted)
    names = ("format", "location", "fileSizeInBytes", "recordCount")
    formats, paths, sizes, counts = texts_of_files(spark, tasks, names)
    if set(formats) - {"PARQUET"}:
        return None
    deletes = JavaMethod.of(spark, ICEBERG + "FileScanTask", "deletes").map(tasks)
    deleting = texts(spark, JavaMethod.of(spark, "java.util.List", "size").map(deletes))
    found = {}
    for number, path in enumerate(paths):
        dead = None
        if int(deleting[number]):
            by_position = position_deletes(tasks.get(number))
            if len(by_position) < int(deleting[number]):
                return None
            index = deleted_positions(spark, scan.table.java, by_position, path)
            if not index.isEmpty():
                # A length and a magic number before the bitmap, a checksum after it (Puffin spec).
                dead = bytes(index.serialize().array())[8:-4]
        found[path] = KeyFile(path, int(sizes[number]), int(counts[number]), dead)
    return list(found.values())


def read_keys(store: Store, file: KeyFile, columns: KeyColumns) -> KeyRows | None:
    """Read a file's live rows; None where it lacks one of the columns."""
    with opened_file(store, file.path, file.size_bytes) as opened:
        paths = dict(_paths(opened.physical_schema, ()))
        if not paths.keys() >= set(columns.ids.values()):
            return None
        fields = {name: pc.field(*paths[field_id]) for name, field_id in columns.ids.items()}
        table = opened.to_table(
            columns=fields, use_threads=False, batch_size=WHOLE, fragment_scan_options=READING
        )
    partitions, offsets = (_numbers(table[name]) for name in ("partition", "offset"))
    partitions = np.where(offsets == _NOWHERE, _NOWHERE, partitions)
    keys = table["key"].cast(pa.binary()).combine_chunks()
    rows = KeyRows(np.arange(table.num_rows, dtype=np.int64), partitions, offsets, keys)
    is_wanted = np.ones(table.num_rows, np.bool_)
    if columns.in_table is not None:
        is_of_topic = pc.fill_null(pc.equal(table["topic"], columns.in_table), False)
        is_wanted = np.array(is_of_topic.to_numpy(), np.bool_)
    if file.dead is not None:
        is_wanted[numbers_in(BitMap64.deserialize(file.dead))] = False
    return rows.where(is_wanted)


def _numbers(column: pa.ChunkedArray) -> Int64s:
    filled = column.cast(pa.int64())
    if filled.null_count:
        filled = pc.fill_null(filled, _NOWHERE)
    return np.asarray(filled.to_numpy(), np.int64)


def _paths(
    fields: Iterable[pa.Field], parents: tuple[str, ...]
) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Yield the field id of each column, those in structs included, with the names of its path."""
    for field in fields:
        metadata: Mapping[bytes, bytes] = field.metadata or {}
        path = (*parents, field.name)
        if _FIELD_ID in metadata:
            yield int(metadata[_FIELD_ID]), path
        if pa.types.is_struct(field.type):
            yield from _paths((field.type.field(n) for n in range(field.type.num_fields)), path)
