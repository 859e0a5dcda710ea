"""The files of a table's current snapshot and their live rows, read from its manifests alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import Table


@contextmanager
def of_a_store(table: str) -> Iterator[None]:
    """Raise an error of ours where the store of a table's files refuses or does not answer."""
    from ebbtide.stores.store import failing_clearly  # imports pyarrow

    with failing_clearly(table):
        yield


def files_of(table: Table) -> Iterator[Any]:
    """Yield the data and delete files of the table's current snapshot."""
    snapshot = table.current_snapshot()
    with of_a_store(".".join(table.name())):
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            yield from _live_files(table, manifest.manifest_path)


def _live_files(table: Table, manifest_path: str) -> Iterator[Any]:
    from pyiceberg import manifest as m
    from pyiceberg.avro.file import AvroFile

    types: Any = {-1: m.ManifestEntry, 2: m.DataFile}
    enums: Any = {0: m.ManifestEntryStatus, 101: m.FileFormat, 134: m.DataFileContent}
    schema = m.MANIFEST_ENTRY_SCHEMAS[3]
    source = table.io.new_input(manifest_path)
    with AvroFile[Any](source, schema, read_types=types, read_enums=enums) as entries:
        for entry in entries:
            if entry.status != m.ManifestEntryStatus.DELETED:
                yield entry.data_file


def referenced_data_file(vector: Any) -> str:
    """Return a vector's data file: pyiceberg 0.12 reads this v3 field but has no name for it."""
    path: str = vector._data[-3]
    return path


def vector_bytes(vector: Any) -> int:
    """Return a deletion vector's own bytes, another of these fields."""
    size_bytes: int = vector._data[-1]
    return size_bytes
