"""Reading bytes by position, from local paths, `file:` URIs and what `pyarrow.fs` opens."""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs

from ebbtide.errors import SourceError, UnavailableError

# Read ahead by this much: few calls to an object store, and no more memory than a batch needs.
WINDOW_BYTES = 8 * 1024 * 1024


# As RFC 3986 has it; what has none is a path.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?")


def resolve(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path inside it.

    In a path each character stands for itself, and so it does in a `file:` URI but for `%`.
    """
    if not has_scheme(uri):
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(uri)
    if _is_file(uri):
        return pyarrow.fs.LocalFileSystem(), unquote(_after_scheme(uri))
    if "#" in uri:
        raise SourceError(
            f"{uri}: expected a URI without a fragment, found one after #; write a # in a name %23"
        )
    try:
        file_system, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError) as failure:
        raise SourceError(
            f"{uri}: expected a path or a URI that pyarrow.fs opens, found: {failure}"
        ) from failure
    return file_system, path


def resolve_location(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system and the path of a table's file, in which nothing is encoded.

    Iceberg and Hadoop write `s3://bucket/100%/a#b` for a key of exactly these characters.
    """
    if not has_scheme(location):
        return resolve(location)
    return resolve(_SCHEME.match(location)[0] + quote(_after_scheme(location)))  # type: ignore[index]


def has_scheme(uri: str) -> bool:
    """Whether it is a URI rather than a path."""
    return _SCHEME.match(uri) is not None


def split_query(uri: str) -> tuple[str, str]:
    """A URI up to its query, and the query with its mark; paths and `file:` URIs have none."""
    if not has_scheme(uri) or _is_file(uri):
        return uri, ""
    base, mark, query = uri.partition("?")
    return base, mark + query


def _is_file(uri: str) -> bool:
    return uri[:5].lower() == "file:"


def _after_scheme(uri: str) -> str:
    """What follows scheme and authority."""
    return _SCHEME.sub("", uri, count=1)


def join(uri: str, *names: str) -> str:
    """Return the path or URI of what lies at `names` below `uri`; a query stays at the end."""
    base, query = split_query(uri)
    below = [quote(name) for name in names] if has_scheme(uri) else names
    return "/".join([base.rstrip("/"), *below]) + query


def file_name(uri: str) -> str:
    """Return the last name of a path or URI."""
    return split_query(uri)[0].rstrip("/").rpartition("/")[2]


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
