"""Files by path or URI, opened by the properties of a table or a catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs

from ebbtide.errors import AccessDeniedError, ConfigurationError, SourceError, UnavailableError
from ebbtide.stores import s3

# Scheme and authority by RFC 3986; a text without a scheme is a path.
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?")


def scheme_of(uri: str) -> str:
    """Return a URI's scheme in lower case; empty for a path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else ""


def authority_of(uri: str) -> str:
    """Return the text between `//` and the path, such as a bucket; empty for a path."""
    match = _SCHEME.match(uri)
    return (match[2] or "") if match else ""


def after_authority(uri: str) -> str:
    """Return the path within a URI, still encoded."""
    return _SCHEME.sub("", uri, count=1)


def encoded(location: str) -> str:
    """Return a table's location as a URI: Iceberg and Hadoop write locations without encoding."""
    if not scheme_of(location):
        return location
    return _SCHEME.match(location)[0] + quote(after_authority(location))  # type: ignore[index]


def split_query(uri: str) -> tuple[str, str]:
    """Split a URI before its query, which retains its mark.

    Paths and `file:` URIs have no query.
    """
    if scheme_of(uri) in ("", "file"):
        return uri, ""
    base, mark, query = uri.partition("?")
    return base, mark + query


def join(uri: str, *names: str) -> str:
    """Return the path or URI of `names` below `uri`; a query stays at the end."""
    base, query = split_query(uri)
    below = [quote(name) for name in names] if scheme_of(uri) else names
    return "/".join([base.rstrip("/"), *below]) + query


def file_name(uri: str) -> str:
    """Return the last name of a path or URI."""
    return split_query(uri)[0].rstrip("/").rpartition("/")[2]


# File systems without directories that cannot rename in one step.
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
WHOLE_BYTES = 8 * 1024 * 1024
# More than the size of a store's refusal in XML.
REFUSAL_BYTES = 4096
_DENIED = re.compile(
    r"AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH"
    r"|MISSING_AUTHENTICATION_TOKEN|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|VALIDATION)"
    r"|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied"
)
# For an unknown code, pyarrow reports the HTTP status. A 403 is permanent, unless the clock or the
# token is the cause. Some 400s mean that the store can never accept the request.
_FORBIDDEN = re.compile(
    r"\(HTTP status 40[13]\)"
    r"(?!.*(?:ExpiredToken|RequestTimeTooSkewed|TokenRefreshRequired|SlowDown))",
    re.DOTALL,
)
_MALFORMED = re.compile(
    r"\(HTTP status 400\).*(?:InvalidBucketName|InvalidArgument|InvalidRequest|InvalidURI"
    r"|AuthorizationHeaderMalformed|KeyTooLong)",
    re.DOTALL,
)
# An answer to HEAD has no body, so its 400 may have any cause.
_UNNAMED = re.compile(r"\(HTTP status 400\) during \w+ operation: No response body")
WHY_UNNAMED = (
    "without a cause, since an answer to HEAD has no text. Either the credential has expired, or "
    "the region, endpoint or bucket is wrong. Renew the credential or correct the catalog's "
    "settings, and run again"
)
_GONE = re.compile(r"AWS Error (?:NO_SUCH_KEY|NO_SUCH_BUCKET|RESOURCE_NOT_FOUND)")
_OF_A_STORE = re.compile(r"AWS Error|curlCode|AWS_ERROR")


@dataclass(frozen=True)
class Store:
    """Settings by which files are opened. Tasks get it too; its repr never shows keys.

    `settings` are properties of Iceberg's FileIO. Schemes without settings use the environment.
    """

    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Store:
        """Return the store of a catalog or table.

        Raise ConfigurationError for unsupported settings.
        """
        return cls(s3.settings_of(properties))

    def resolve(self, uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return the file system of a path or URI, and the path inside it."""
        scheme = scheme_of(uri)
        if not scheme:
            return pyarrow.fs.LocalFileSystem(), os.path.abspath(uri)
        if scheme == "file":
            return pyarrow.fs.LocalFileSystem(), unquote(after_authority(uri))
        if "#" in uri:
            raise SourceError(
                f"{uri}: expected a URI without a fragment, found one after #. Write a # in a "
                "name as %23"
            )
        try:
            if scheme in s3.SCHEMES and not split_query(uri)[1]:
                bucket = authority_of(uri)
                key = unquote(after_authority(uri))
                return s3.file_system(self.settings, bucket), bucket + key
            file_system, path = pyarrow.fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as failure:
            raise SourceError(
                f"{uri}: expected a path or a URI that pyarrow.fs can open, found: {failure}"
            ) from failure
        return file_system, path

    @contextmanager
    def located(self, location: str) -> Iterator[tuple[pyarrow.fs.FileSystem, str]]:
        """Yield a table's file as file system and path. Raise FileNotFoundError if it is gone."""
        with failing_clearly(location):
            yield self.resolve(encoded(location))

    def has(self, location: str) -> bool:
        """Return whether the file exists."""
        with self.located(location) as (file_system, path):
            found = file_system.get_file_info(path)
            return bool(found.type is not pyarrow.fs.FileType.NotFound)

    def listed(self, location: str) -> Iterator[pyarrow.fs.FileInfo]:
        """Yield each file below a table's location."""
        with self.located(location) as (files, path):
            selector = pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)
            yield from (info for info in files.get_file_info(selector) if info.is_file)

    def read_range(self, location: str, position: int, length: int) -> bytes:
        """Return a part of a table's file.

        At least REFUSAL_BYTES are requested: pyarrow retries a request only if the store's refusal
        fits into the requested size.
        """
        with self.located(location) as (files, path), files.open_input_file(path) as handle:
            start = max(0, min(position, handle.size() - REFUSAL_BYTES))
            end = max(position + length, start + REFUSAL_BYTES)
            data = memoryview(handle.read_at(end - start, start))
            return bytes(data[position - start : position - start + length])

    @contextmanager
    def reading(self, location: str) -> Iterator[pa.NativeFile]:
        """Open a table's file for reads by position. Raise FileNotFoundError if it is missing.

        A small file in an object store is read whole, because each range would be one more request.
        """
        with self.located(location) as (files, path), files.open_input_file(path) as handle:
            is_small = is_object_store(files) and handle.size() <= WHOLE_BYTES
            yield pa.BufferReader(handle.read_buffer()) if is_small else handle

    @contextmanager
    def writing(self, location: str) -> Iterator[pa.NativeFile]:
        """Open a new file of a table; in an object store it appears when it is closed."""
        with self.located(location) as (file_system, path):
            if not is_object_store(file_system):  # a store would create an empty object
                file_system.create_dir(path.rpartition("/")[0])
            with file_system.open_output_stream(path) as handle:
                yield handle


# Opens local files, and object stores by the machine's environment.
AMBIENT = Store()


def is_object_store(file_system: pyarrow.fs.FileSystem) -> bool:
    """Return whether a file system has no directories and cannot rename in one step."""
    return file_system.type_name in _OBJECT_STORES


@contextmanager
def failing_clearly(uri: str) -> Iterator[None]:
    """Convert a store's refusals and timeouts to ebbtide's errors; a disk's errors pass."""
    try:
        yield
    except OSError as failure:
        text = str(failure)
        if failure.errno is not None or not _OF_A_STORE.search(text):
            raise
        if _GONE.search(text):
            raise FileNotFoundError(text) from failure
        if "Object Lock" in text:
            raise ConfigurationError(
                f"{uri}: expected a bucket without a default retention (Object Lock), because "
                f"PyArrow sends no checksums, found: {text}. Remove the default retention, or use "
                "another bucket"
            ) from failure
        if _MALFORMED.search(text):
            raise ConfigurationError(
                f"{uri}: expected a request that the store accepts, found: {text}. Correct the "
                "location or the catalog's settings"
            ) from failure
        if _DENIED.search(text) or _FORBIDDEN.search(text):
            raise AccessDeniedError(
                f"{uri}: expected a store that these credentials may use, found: {text}. Correct "
                "the catalog's settings, or grant the credentials access"
            ) from failure
        if _UNNAMED.search(text):
            raise UnavailableError(
                f"{uri}: expected a request that the store accepts, found: {text.rstrip('.')}, "
                f"{WHY_UNNAMED}"
            ) from failure
        raise UnavailableError(
            f"{uri}: expected an answer of the store, found: {text}. Run again once it answers"
        ) from failure


# Size of the read-ahead: few calls to an object store, and no more memory than a batch needs.
WINDOW_BYTES = 8 * 1024 * 1024


class FileReader:
    """Reads bytes of one file by position, through one window. Its size is that at opening.

    It is no memory map: if a broker truncated the file, that would kill the process instead of
    raising.
    """

    def __init__(self, path: str, store: Store = AMBIENT) -> None:
        file_system, inner_path = store.resolve(path)
        self._path = path
        try:
            with failing_clearly(path):
                self._file = file_system.open_input_file(inner_path)
        except FileNotFoundError as failure:
            raise UnavailableError(
                f"{path}: expected the file that was listed, found none: its broker deleted or "
                "renamed it since. List the directory again"
            ) from failure
        self.size_bytes: int = self._file.size()
        self._window = memoryview(b"")
        self._window_start = 0

    def read(self, position: int, length: int) -> memoryview:
        """Return `length` bytes at `position`, fewer only at the end of the file."""
        start = position - self._window_start
        if start < 0 or start + length > len(self._window):
            with failing_clearly(self._path):
                window = self._file.read_at(max(length, WINDOW_BYTES), position)
            self._window = memoryview(window)
            self._window_start = position
            start = 0
        return self._window[start : start + length]

    def rest(self, position: int) -> memoryview:
        """Return the window's bytes from a position on, at least one."""
        if not 0 <= position - self._window_start < len(self._window):
            self.read(position, 1)
        return self._window[position - self._window_start :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
