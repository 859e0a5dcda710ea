"""Bytes of one file by position, through one window."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ebbtide.errors import UnavailableError
from ebbtide.stores.store import AMBIENT, Store, failing_clearly

# Read ahead by this much: few calls to an object store, and no more memory than a batch needs.
WINDOW_BYTES = 8 * 1024 * 1024


class FileReader:
    """Bytes of one file by position, read through one window. The size is that at opening.

    Not a memory map: a broker that truncates its file would kill the process, not raise.
    """

    def __init__(self, path: str, store: Store = AMBIENT) -> None:
        file_system, inner_path = store.resolve(path)
        self._path = path
        try:
            with failing_clearly(path):
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
            with failing_clearly(self._path):
                window = self._file.read_at(max(length, WINDOW_BYTES), position)
            self._window = memoryview(window)
            self._window_start = position
            start = 0
        return self._window[start : start + length]

    def rest(self, position: int) -> memoryview:
        """Return the window's bytes from a position within the file on."""
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
