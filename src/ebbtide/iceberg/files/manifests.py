"""Read which files a table has from its manifests, on the driver.

A query of Iceberg's metadata tables costs a second of CPU time before it reads a manifest of a few
files. Format: Iceberg table spec, manifest lists and manifests.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import fastavro
from pyspark.sql import SparkSession

from ebbtide.iceberg.files.table_store import store_of
from ebbtide.spark.jvm import items
from ebbtide.stores.store import Store

_DELETED = 2  # of an entry's status
_DATA = 0  # of a file's content


class ListedFile(NamedTuple):
    """A data or delete file of a snapshot; a deletion vector names the data file it is for."""

    path: str
    size_bytes: int  # of the whole file
    rows: int
    is_data: bool
    referenced: str | None
    partition: dict[str, Any]


def current_files(spark: SparkSession, table: Any) -> list[ListedFile]:
    """Return the files of the current snapshot of Iceberg's table object."""
    current = table.currentSnapshot()
    return [] if current is None else list(_files(spark, table, [current]))


def all_sizes(spark: SparkSession, table: Any) -> dict[str, int]:
    """Return bytes of each file that some snapshot needs, by path."""
    files = _files(spark, table, items(table.snapshots()))
    return {file.path: file.size_bytes for file in files}


def snapshots_with_old_files(spark: SparkSession, table: Any) -> set[int]:
    """Return the ids of snapshots that need a data file which the current snapshot does not."""
    current = {file.path for file in current_files(spark, table) if file.is_data}
    store = store_of(spark, table)
    is_old: dict[str, bool] = {}
    holding = set()
    for snapshot in items(table.snapshots()):
        manifests = [
            row["manifest_path"] for row in _rows(store, str(snapshot.manifestListLocation()))
        ]
        for path in manifests:
            if path not in is_old:
                files = _files_of_manifest(store, path)
                is_old[path] = any(file.is_data and file.path not in current for file in files)
        if any(is_old[path] for path in manifests):
            holding.add(int(snapshot.snapshotId()))
    return holding


def _files(spark: SparkSession, table: Any, snapshots: Iterable[Any]) -> Iterator[ListedFile]:
    """Yield the files of snapshots; each manifest is read once."""
    store = store_of(spark, table)
    manifests = {
        manifest["manifest_path"]: None
        for snapshot in snapshots
        for manifest in _rows(store, str(snapshot.manifestListLocation()))
    }
    for path in manifests:
        yield from _files_of_manifest(store, path)


def _files_of_manifest(store: Store, path: str) -> Iterator[ListedFile]:
    for entry in _rows(store, path):
        if entry["status"] != _DELETED:
            yield _listed(entry["data_file"])


def _listed(file: dict[str, Any]) -> ListedFile:
    return ListedFile(
        file["file_path"],
        file["file_size_in_bytes"],
        file["record_count"],
        file["content"] == _DATA,
        file.get("referenced_data_file"),
        file["partition"],
    )


def _rows(store: Store, path: str) -> Iterator[dict[str, Any]]:
    with store.reading(path) as handle:
        data = handle.read()
    rows: Any = fastavro.reader(io.BytesIO(data))
    yield from rows
