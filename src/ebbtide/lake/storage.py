"""Write, read and delete one small file in the lake's storage, by the catalog's own settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from ebbtide.errors import ConfigurationError, UnavailableError
from ebbtide.lake.catalog_settings import FILE_IO, catalog_settings, defaults_path, read_defaults
from ebbtide.lake.reader import Lake
from ebbtide.log.attempts import RUNS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

CONTENT = b"ebbtide doctor"


class ProbedFile(NamedTuple):
    """Where a file was written, and how far its time is behind this machine's; None if unknown."""

    folder: str
    seconds_behind: float | None


def probe_storage(lake: Lake) -> ProbedFile:
    """Write a file, read it and delete it; AccessDeniedError or UnavailableError if refused."""
    from ebbtide.stores.store import failing_clearly

    files, folder = _storage_of(lake)
    path = f"{folder.rstrip('/')}/ebbtide-doctor-{uuid4().hex}"
    with failing_clearly(path):
        with files.new_output(path).create() as written:
            written.write(CONTENT)
        written_at = _clock()
        try:
            with files.new_input(path).open() as opened:
                content = opened.read()
            modified = _modified(files, path)
        finally:
            files.delete(path)
    if content != CONTENT:
        raise UnavailableError(f"expected the bytes that were written to {path}, found others")
    return ProbedFile(folder, None if modified is None else written_at - modified)


def _clock() -> float:
    """Return this machine's time in seconds since the epoch."""
    return time.time()


def _storage_of(lake: Lake) -> tuple[FileIO, str]:
    """Return how the catalog's files are opened, and a folder of ours: that of `runs`, if any."""
    from pyiceberg.io import load_file_io

    if (table := lake.own_table(RUNS)) is not None:
        return table.io, f"{table.location()}/data"
    settings = catalog_settings(read_defaults(defaults_path()))
    warehouse = settings.get("warehouse")
    if not warehouse:
        raise ConfigurationError(
            "expected a warehouse in the catalog's settings or a table in it, found neither; "
            "the first ingest makes one"
        )
    return load_file_io({**settings, **FILE_IO}, warehouse), warehouse


def _modified(files: Any, path: str) -> float | None:
    """Return when the storage says that the file was written, in seconds since the epoch."""
    scheme, host, inside = files.parse_location(path, files.properties)
    modified = files.fs_by_scheme(scheme, host).get_file_info(inside).mtime
    return None if modified is None else float(modified.timestamp())
