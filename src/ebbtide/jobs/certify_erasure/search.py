"""Find all objects of a topic's tables, and search their bytes in Spark tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ebbtide.iceberg.catalog import Table, find_table
from ebbtide.iceberg.object_versions import noncurrent_versions
from ebbtide.iceberg.state_table import tables_in
from ebbtide.moments import machine_clock
from ebbtide.settings.names import OWN_NAMESPACE, TopicName, quoted
from ebbtide.spark.tasks import map_segments
from ebbtide.stores.store import Store
from ebbtide_verify.objects import DATA, METADATA, reachable
from ebbtide_verify.scan import ORC, PARQUET, Rows, Sought, UnreadableError, search

A_TASK_BYTES = 32 * 1024 * 1024
A_ROW_BYTES = 200  # from bytes to rows: their number decides whether Spark's executors are used

UNREFERENCED = "in no snapshot"
OutOfReach = dict[str, str]  # what, and why
Unread = dict[str, str]  # object or table, and why


class StoredObject(NamedTuple):
    """An object of a table."""

    uri: str
    kind: str
    table: str
    size_bytes: int
    has_rows: bool  # of the topic's log, if it is a data file


class Searched(NamedTuple):
    """An object after its search: its digest, and the places of the sought keys and rows."""

    uri: str
    sha256: str
    size_bytes: int
    hits: tuple[tuple[int, str], ...]
    error: str = ""


class Inventory(NamedTuple):
    """All objects to search, and the places that cannot be searched."""

    began: datetime
    objects: list[StoredObject]
    stores: dict[str, Store]  # by table
    out_of_reach: list[OutOfReach]
    unread: list[Unread]  # tables that could not be opened


class _PlacedTable(NamedTuple):
    table: Table
    has_rows: bool  # rows of the topic's log


class _Unit(NamedTuple):
    store: Store
    objects: tuple[StoredObject, ...]


def find_objects(spark: SparkSession, names: Sequence[TopicName]) -> Inventory:
    """Return the objects of the tables of these topics, and of ebbtide's own tables.

    A table that cannot be opened is added to `unread`; no error is raised.
    """
    found = Inventory(machine_clock(), [], {}, [], [])
    for placed in _tables(spark, names, found.unread):
        table = str(placed.table)
        found.stores[table] = placed.table.store
        with _noting(table, found.unread):
            found.objects.extend(_objects(placed, found.out_of_reach))
    return found


def _tables(
    spark: SparkSession, names: Sequence[TopicName], unread: list[Unread]
) -> Iterator[_PlacedTable]:
    of_topics = {
        table: has_rows
        for name in names
        for table, has_rows in (
            (name.records_table, True),
            (name.batches_table, False),
            (name.state_table, False),
            (name.quarantine_table, True),
            (name.held_table, True),
        )
    }
    for catalog in dict.fromkeys(name.catalog for name in names):
        with _noting(catalog, unread):
            for own in tables_in(spark, catalog, OWN_NAMESPACE):
                of_topics[quoted(catalog, OWN_NAMESPACE, own)] = False
    for name, has_rows in of_topics.items():
        with _noting(name, unread):
            if (table := find_table(spark, name)) is not None:
                yield _PlacedTable(table, has_rows)


@contextmanager
def _noting(what: str, unread: list[Unread]) -> Iterator[None]:
    """Add an error of the block to `unread`, instead of raising it."""
    try:
        yield
    except Exception as error:  # each catalog and each store raises another class
        reason = str(error).partition("\n")[0]
        unread.append({"object": what, "why": f"it cannot be opened: {reason}"})


def _objects(placed: _PlacedTable, out_of_reach: list[OutOfReach]) -> list[StoredObject]:
    """Return the objects that a table's metadata names, and all files below its locations."""
    table, has_rows = placed
    store, metadata = table.store, table.metadata
    listed = {
        info.path: (_uri(location, info.path), info.size)
        for location in table.locations
        for info in store.listed(location)
    }
    objects = list[StoredObject]()
    for uri, kind in reachable(metadata.file, partial(read_whole, store)).items():
        with store.located(uri) as (_, path):
            _, size = listed.pop(path, ("", None))
        if size is None and not store.has(uri):
            if kind != METADATA:  # Iceberg deletes older metadata
                out_of_reach.append({"what": uri, "why": "it is missing"})
            continue
        objects.append(StoredObject(uri, kind, str(table), size or 0, has_rows))
    versions = noncurrent_versions(table)
    if versions.number or versions.unknown:
        what = f"{versions.number:,} noncurrent versions" if versions.number else "object versions"
        why = versions.unknown or "the bucket's lifecycle deletes them, not ebbtide"
        below = " and ".join(table.locations)
        out_of_reach.append({"what": f"{what} below {below}", "why": why})
    return objects + [
        StoredObject(uri, UNREFERENCED, str(table), size, has_rows) for uri, size in listed.values()
    ]


def _uri(location: str, path: str) -> str:
    """Return the URI of a path of the location's file system."""
    scheme, colon, _ = location.partition("://")
    return f"{scheme}://{path}" if colon else path


def read_whole(store: Store, uri: str) -> bytes:
    """Return the bytes of an object."""
    with store.located(uri) as (files, path), files.open_input_file(path) as handle:
        return bytes(handle.read())


# The search: one object at a time, in Spark tasks.


def search_objects(
    spark: SparkSession,
    inventory: Inventory,
    keys: Sequence[bytes],
    rows: Rows | None,
    numbers: Sequence[str],
) -> list[Searched]:
    """Search all objects for the keys, and those with rows of the log for the rows.

    The columns `numbers` of these are also searched for keys as whole numbers.
    """
    units = list(_units(inventory))
    size_in_rows = sum(stored.size_bytes for stored in inventory.objects) // A_ROW_BYTES
    work = partial(_search_unit, keys, rows, numbers)
    found = map_segments(spark, work, units, size_in_rows, "searching")
    return [one for of_unit in found for one in of_unit]


def _units(inventory: Inventory) -> Iterator[_Unit]:
    """Yield groups of a table's objects, so that each task has enough work."""
    by_table: dict[str, list[StoredObject]] = {}
    for stored in inventory.objects:
        by_table.setdefault(stored.table, []).append(stored)
    for table, objects in by_table.items():
        group, size_bytes = list[StoredObject](), 0
        for stored in objects:
            group.append(stored)
            size_bytes += stored.size_bytes
            if size_bytes >= A_TASK_BYTES:
                yield _Unit(inventory.stores[table], tuple(group))
                group, size_bytes = [], 0
        if group:
            yield _Unit(inventory.stores[table], tuple(group))


def _search_unit(
    keys: Sequence[bytes], rows: Rows | None, numbers: Sequence[str], unit: _Unit
) -> list[Searched]:
    """Search a unit's objects. Runs in a Spark task."""
    sought = {False: Sought(keys), True: Sought(keys, rows, numbers)}
    return [_search_one(unit.store, each, sought[each.has_rows]) for each in unit.objects]


def _search_one(store: Store, stored: StoredObject, sought: Sought) -> Searched:
    uri = stored.uri
    try:
        data = read_whole(store, uri)
    except FileNotFoundError:
        return Searched(uri, "", 0, (), "another job deleted it during the search")
    digest, error = hashlib.sha256(data).hexdigest(), ""
    try:
        hits = search(data, sought)
        error = _unknown_in(data, sought) if stored.kind == DATA else ""
    except UnreadableError as unreadable:
        hits, error = unreadable.hits, str(unreadable)
    return Searched(uri, digest, len(data), tuple(sorted(hits)), error)


def _unknown_in(data: bytes, sought: Sought) -> str:
    """Return why a data file cannot be searched for rows or whole numbers, or an empty text."""
    if not sought.rows and not sought.numbers:
        return ""
    schema, in_parquet = pa.schema([]), data.startswith(PARQUET)
    if in_parquet:
        schema = pq.read_schema(pa.BufferReader(data))
    elif data.startswith(ORC):
        schema = orc.ORCFile(pa.BufferReader(data)).schema
    columns = set(_paths(schema))
    if sought.rows and not (in_parquet and sought.rows.pair_of(schema)):
        pairs = " or ".join(map(", ".join, sought.rows.columns))
        return f"offsets are searched only in Parquet files with the columns {pairs}"
    # Copies for holds have the text of the number as their `key`.
    if sought.numbers and not columns & {*sought.numbers, "key"}:
        names = ", ".join(sought.numbers)
        return f"whole numbers are searched only in Parquet and ORC files with the column {names}"
    return ""


def _paths(fields: Iterable[pa.Field], parent: str = "") -> Iterator[str]:
    """Yield the paths of all columns, nested ones in structs too."""
    for field in fields:
        path = f"{parent}{field.name}"
        yield path
        if pa.types.is_struct(field.type):
            yield from _paths(field.type, f"{path}.")
