"""List the segment files of a partition's directory, as a broker takes them that starts on it.

Source: Kafka's `LogLoader.load` and `removeTempFilesAndCollectSwapFiles`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow.fs

from ebbtide.errors import SourceError, UnavailableError
from ebbtide.records.files.segment_reader import (
    CLEANED,
    MAX_BATCH_BYTES,
    SEGMENT_NAME,
    SWAP,
    TEMPORARY_NAME,
    is_segment_name,
    segment_base_offset,
    walk_segment,
)
from ebbtide.stores.store import Store, failing_clearly
from ebbtide.stores.uris import join

# A broker that renames files faster than this many listings is not waited for.
LISTINGS = 5


class ListedFile(NamedTuple):
    """A segment file of a partition's directory."""

    name: str
    size_bytes: int
    modified_ms: int

    @property
    def base_offset(self) -> int:
        """The offset that its name says it begins at."""
        return segment_base_offset(self.name)


class PartitionFiles(NamedTuple):
    """The segment files of a partition, and the entries that are named like one and are no file."""

    segments: Sequence[ListedFile]
    passed_over: Sequence[str]


class _Vanished(Exception):  # noqa: N818
    """A file that was listed is gone."""


def list_partition_files(store: Store, uri: str) -> PartitionFiles | None:
    """Return the segment files as they all are at one time; None if the directory is gone.

    Raise SourceError for a link to nothing that is named like a segment.
    """
    file_system, path = store.resolve(uri)
    listing = _list_local if file_system.type_name == "local" else _list_remote
    for _ in range(LISTINGS):
        try:
            with failing_clearly(uri):
                files, passed_over = listing(file_system, path, uri)
            return PartitionFiles(_as_loaded(store, uri, files), passed_over)
        except FileNotFoundError:
            return None
        except _Vanished:
            continue
    raise UnavailableError(
        f"{uri}: expected segment files that stay while they are listed, found one gone after each "
        f"of {LISTINGS} listings; run again when its broker is quiet"
    )


def check_regular(file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> None:
    """Raise SourceError if a local path is neither a file nor missing: a FIFO would never end."""
    if file_system.type_name != "local":
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise SourceError(f"{uri}: expected a file, found {_kind_of(mode)}; copy the file again")


def _list_local(
    _: pyarrow.fs.FileSystem, path: str, uri: str
) -> tuple[list[ListedFile], list[str]]:
    """Ask for each file's facts only once all names are known: a broker renames files meanwhile."""
    files, passed_over = list[ListedFile](), list[str]()
    for name in sorted(filter(_is_known, os.listdir(path))):
        try:
            found = os.stat(os.path.join(path, name))
        except FileNotFoundError as gone:
            if not os.path.islink(os.path.join(path, name)):
                raise _Vanished from gone
            raise SourceError(
                f"{join(uri, name)}: expected a segment file, found a link to a file that is not "
                "there; mount or copy what it points to, or remove the link"
            ) from gone
        if stat.S_ISREG(found.st_mode):
            files.append(ListedFile(name, found.st_size, found.st_mtime_ns // 1_000_000))
        else:
            passed_over.append(f"{name} is {_kind_of(found.st_mode)}, which a broker passes over")
    return files, passed_over


def _list_remote(
    file_system: pyarrow.fs.FileSystem, path: str, _: str
) -> tuple[list[ListedFile], list[str]]:
    """Take an object store's listing: it is of one time."""
    listed = file_system.get_file_info(pyarrow.fs.FileSelector(path))
    known = [info for info in listed if _is_known(info.base_name)]
    files = [
        ListedFile(info.base_name, info.size, (info.mtime_ns or 0) // 1_000_000)
        for info in known
        if info.type is pyarrow.fs.FileType.File
    ]
    passed_over = [
        f"{info.base_name} is a directory, which a broker passes over"
        for info in known
        if info.type is pyarrow.fs.FileType.Directory
    ]
    return files, passed_over


def _is_known(name: str) -> bool:
    return is_segment_name(name) or TEMPORARY_NAME.fullmatch(name) is not None


def _kind_of(mode: int) -> str:
    kinds: dict[str, Callable[[int], bool]] = {
        "a directory": stat.S_ISDIR,
        "a FIFO": stat.S_ISFIFO,
        "a socket": stat.S_ISSOCK,
    }
    return next((kind for kind, is_one in kinds.items() if is_one(mode)), "a device")


def _as_loaded(store: Store, uri: str, files: Sequence[ListedFile]) -> list[ListedFile]:
    """Put the files that a broker was about to swap in into the place of those they replace."""
    swapped_in = list(_swapped_in(files))
    segments = [file for file in files if SEGMENT_NAME.fullmatch(file.name)]
    if swapped_in:
        first = min(file.base_offset for file in swapped_in)
        end = max(_next_offset(store, uri, file) for file in swapped_in)
        renamed_to = {file.name.removesuffix(SWAP) for file in swapped_in}
        segments = [
            file
            for file in segments
            if not first <= file.base_offset < end and file.name not in renamed_to
        ]
    return sorted([*segments, *swapped_in], key=lambda file: file.base_offset)


def _swapped_in(files: Sequence[ListedFile]) -> Iterator[ListedFile]:
    """Yield the `.swap` files that are complete: those below every `.cleaned` file."""
    cleaned = [int(file.name[:20]) for file in files if file.name.endswith(CLEANED)]
    swapped = (file for file in files if file.name.endswith(SWAP))
    yield from (file for file in swapped if not cleaned or file.base_offset < min(cleaned))


def _next_offset(store: Store, uri: str, file: ListedFile) -> int:
    """Return where the file ends; what it is not able to say, a later walk of it reports."""
    try:
        walk = walk_segment(join(uri, file.name), max_batch_bytes=MAX_BATCH_BYTES, store=store)
    except FileNotFoundError as gone:
        raise _Vanished from gone
    lasts = walk.batches.column("last_offset")
    return int(lasts[-1].as_py()) + 1 if len(lasts) else file.base_offset
