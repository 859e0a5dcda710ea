"""Count the opens of files below a directory, by any process.

On a local disk an open is what a request is at an object store. Source: fanotify(7); root only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

_CLOSE_ON_EXEC, _NON_BLOCKING, _UNLIMITED_QUEUE = 0x1, 0x2, 0x10
_ADD, _FILE_SYSTEM = 0x1, 0x100
_OPENED = 0x20
_EVENT = struct.Struct("=IBBHQii")  # length, version, reserved, metadata length, mask, fd, pid
_CURRENT_DIRECTORY = -100
_POLL_SECONDS = 0.02


class Opens:
    """Counts from `with` to its end; `count` is None where the kernel refuses to tell."""

    def __init__(self, directory: Path) -> None:
        self.count: int | None = None
        self._prefix = f"{directory.resolve()}/"
        self._ended = Event()
        self._queue = _watch(directory)
        self._reader = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Opens:
        if self._queue >= 0:
            self.count = 0
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._queue >= 0:
            self._reader.join()
            os.close(self._queue)

    def _read(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(_POLL_SECONDS)  # what is queued by then is read too
            with suppress(BlockingIOError):
                while True:
                    self._count(os.read(self._queue, 1 << 16))

    def _count(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            length, _, _, _, _, handle, pid = _EVENT.unpack_from(events, at)
            at += length
            if handle < 0:
                continue
            with suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{handle}")
                if pid != os.getpid() and path.startswith(self._prefix):
                    self.count = (self.count or 0) + 1
            os.close(handle)


def _watch(directory: Path) -> int:
    """Return a queue of the opens on the directory's file system; negative where none is given."""
    kernel = ctypes.CDLL(None, use_errno=True)
    queue = int(
        kernel.fanotify_init(_CLOSE_ON_EXEC | _NON_BLOCKING | _UNLIMITED_QUEUE, os.O_RDONLY)
    )
    if queue < 0:
        return queue
    mask, path = ctypes.c_uint64(_OPENED), os.fsencode(directory)
    if kernel.fanotify_mark(queue, _ADD | _FILE_SYSTEM, mask, _CURRENT_DIRECTORY, path) < 0:
        os.close(queue)
        return -1
    return queue
