"""Reading bytes by position, from local paths, `file:` URIs and what `pyarrow.fs` opens."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs

from ebbtide.errors import SourceError, UnavailableError

# Read ahead by this much: few calls to an object store, and no more memory than a batch needs.
WINDOW_BYTES = 8 * 1024 * 1024


def resolve(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path inside it."""
    scheme = urlsplit(uri).scheme
    if not scheme:
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(uri)
    if scheme == "file":
        return pyarrow.fs.LocalFileSystem(), unquote(urlsplit(uri).path)
    try:
        file_system, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError) as failure:
        raise SourceError(
            f"{uri}: expected a path or a URI that pyarrow.fs opens, found: {failure}"
        ) from failure
    return file_system, path


def join(uri: str, *names: str) -> str:
    """Return the path or URI of what lies at `names` below `uri`; a query stays at the end."""
    base, mark, query = uri.partition("?") if urlsplit(uri).scheme else (uri, "", "")
    return "/".join([base.rstrip("/"), *names]) + mark + query


def file_name(uri: str) -> str:
    """Return the last name of a path or URI."""
    path = urlsplit(uri).path if urlsplit(uri).scheme else uri
    return path.rstrip("/").rpartition("/")[2]


class FileReader:
    """Bytes of one file by position, read through one window. The size is that at opening.

    Not a memory map: a broker that truncates its file would kill the process, not raise.
    """

    def __init__(self, path: str) -> None:
        file_system, inner_path = resolve(path)
        try:
            self._file = file_system.open_input_file(inner_path)
        except FileNotFoundError as failure:
            raise UnavailableError(
                f"{path}: expected the file that was listed, found none: its broker removed or "
                "renamed it since; list the directory again"
            ) from failure
        self.size_bytes: int = self._file.size()
        self._window = memoryview(b"")
        self._window_start = 0

    def read(self, position: int, length: int) -> memoryview:
        """Return up to `length` bytes at `position`, fewer only where the file ends."""
        start = position - self._window_start
        if start < 0 or start + length > len(self._window):
            self._window = memoryview(self._file.read_at(max(length, WINDOW_BYTES), position))
            self._window_start = position
            start = 0
        return self._window[start : start + length]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
