"""Read the keys of an adopted table's Parquet files as columns.

Spark hands each row through the JVM with the path of its file, which takes most of a round's time.
Iceberg's scan tells the files and their deletes; a table that has others than deletes of positions,
other formats, or files without one of the columns, is left to Iceberg's own reader (rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ebbtide.iceberg.adopted.rows import AdoptedRows
from ebbtide.iceberg.catalog import Table, open_apart
from ebbtide.iceberg.files.data_files import numbers_in, opened_file
from ebbtide.iceberg.files.field_ids import READING, WHOLE
from ebbtide.records.arrays import Bools, Int64s
from ebbtide.spark.conditions import IcebergExpressions
from ebbtide.spark.jvm import ICEBERG, JavaMethod, iceberg_class, items, java_class, texts
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


def topic_in_table(rows: AdoptedRows) -> str | None:
    """Return the one topic whose rows these are, of a table that several topics share."""
    in_table: str | None = getattr(rows, "in_table", None)
    return in_table


class KeyColumns(NamedTuple):
    """Field ids of the columns that place a record and of its key.

    In a table that several topics share, also that of the topic's column, and the one topic.
    """

    partition: int
    offset: int
    key: int
    topic: int | None = None
    in_table: str | None = None

    @classmethod
    def of(cls, rows: AdoptedRows) -> KeyColumns:
        """Return those of an adopted table with a key."""
        of = rows.layout
        assert of.key is not None
        places = (of.partition.field_id, of.offset.field_id, of.key.field_id)
        if (in_table := topic_in_table(rows)) is None:
            return cls(*places)
        assert of.topic is not None
        return cls(*places, of.topic.field_id, in_table)

    @property
    def ids(self) -> dict[str, int]:
        """The field ids by what they are of."""
        ids = {"partition": self.partition, "offset": self.offset, "key": self.key}
        return ids if self.topic is None else {**ids, "topic": self.topic}


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


class Wanted(NamedTuple):
    """Rows to be read: at or above an offset, or with keys in a range, or without a key."""

    first_offset: int | None = None
    keys: tuple[bytes, bytes] | None = None
    has_no_key: bool = False


class KeyScan(NamedTuple):
    """A snapshot of a table whose files can be read as columns."""

    rows: AdoptedRows
    table: Table  # with an object of its own, which stays at one version
    snapshot: int
    columns: KeyColumns

    @classmethod
    def of(cls, rows: AdoptedRows, snapshot: int) -> KeyScan | None:
        """Open a snapshot; None where only Iceberg's reader can read it."""
        key, table = rows.layout.key, open_apart(rows.spark, rows.table)
        made = table.metadata.snapshots.get(snapshot)
        if key is None or key.type not in _KEY_TYPES or made is None:
            return None
        if made != table.current and made.schema_id != table.metadata.schema["schema-id"]:
            return None
        if _ENCRYPTED in table.metadata.properties:
            return None
        return cls(rows, table, snapshot, KeyColumns.of(rows))

    def files(self, wanted: Wanted) -> list[KeyFile] | None:
        """Return the files that may hold wanted rows, by their bounds.

        None where Iceberg's own reader has to read one of them.
        """
        spark = self.rows.spark
        tasks = self._planned(self._scan().filter(self._condition(wanted)))
        files = JavaMethod.of(spark, ICEBERG + "ContentScanTask", "file").map(tasks)
        formats, paths, sizes, counts = (
            texts(spark, JavaMethod.of(spark, ICEBERG + "ContentFile", name).map(files))
            for name in ("format", "location", "fileSizeInBytes", "recordCount")
        )
        if set(formats) - {"PARQUET"}:
            return None
        deletes = JavaMethod.of(spark, ICEBERG + "FileScanTask", "deletes").map(tasks)
        deleting = texts(spark, JavaMethod.of(spark, "java.util.List", "size").map(deletes))
        found = {}
        for number, path in enumerate(paths):
            dead = None
            if int(deleting[number]):
                task = tasks.get(number)
                if len(position_deletes(task)) < int(deleting[number]):
                    return None
                dead = _dead_positions(spark, self.table.java, task, path)
            found[path] = KeyFile(path, int(sizes[number]), int(counts[number]), dead)
        return list(found.values())

    def literal(self, key: bytes) -> Any:
        """Return a key as the table's column has it."""
        assert self.rows.layout.key is not None
        return key.decode() if self.rows.layout.key.type == "string" else key

    def _scan(self) -> Any:
        """Return Iceberg's scan; that of the newest snapshot knows columns by their names now."""
        scan, current = self.table.java.newScan(), self.table.current
        is_newest = current is not None and current.id == self.snapshot
        return scan if is_newest else scan.useSnapshot(self.snapshot)

    def _planned(self, scan: Any) -> Any:
        """Return a scan's tasks as a Java list."""
        planned = scan.planFiles()
        try:
            lists = iceberg_class(self.rows.spark, "relocated.com.google.common.collect.Lists")
            return lists.newArrayList(planned)
        finally:
            planned.close()

    def _condition(self, wanted: Wanted) -> Any:
        of, iceberg = self.rows.layout, IcebergExpressions.of(self.rows.spark)
        java, both, either = iceberg.java, iceberg.both, iceberg.either
        assert of.key is not None
        condition = java.alwaysFalse()
        if wanted.first_offset is not None:
            is_from = java.greaterThanOrEqual(of.offset.name, wanted.first_offset)
            condition = either(condition, is_from)
        if wanted.keys is not None:
            least, greatest = map(self.literal, wanted.keys)
            at_least = java.greaterThanOrEqual(of.key.name, least)
            is_within = both(at_least, java.lessThanOrEqual(of.key.name, greatest))
            condition = either(condition, is_within)
        if wanted.has_no_key:
            condition = either(condition, java.isNull(of.key.name))
        if self.columns.in_table is None:
            return condition
        assert of.topic is not None
        return both(java.equal(of.topic.name, self.columns.in_table), condition)


def position_deletes(task: Any) -> list[Any]:
    """Return the position deletes and vectors among the delete files of a task."""
    return [
        of for of in items(task.deletes()) if str(of.content().toString()) == "POSITION_DELETES"
    ]


def _dead_positions(spark: SparkSession, table: Any, task: Any, path: str) -> bytes | None:
    """Return the positions that delete files name for a data file, as a serialized bitmap."""
    opened = JavaMethod.of(spark, ICEBERG + "io.FileIO", "newInputFile", ICEBERG + "DeleteFile")
    input_file = opened.on(table.io()).as_a("java.util.function.Function")
    loader = iceberg_class(spark, "data.BaseDeleteLoader")(input_file)
    listed = java_class(spark, "java.util.ArrayList")()
    for of in position_deletes(task):
        listed.add(of)
    index = loader.loadPositionDeletes(listed, path)
    if index.isEmpty():
        return None
    # A length and a magic number before the bitmap, a checksum after it (Puffin spec).
    return bytes(index.serialize().array())[8:-4]


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
