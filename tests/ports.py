"""Ports for servers of tests, which nobody takes between the choice and the server's start.

The system gives the ports of its own range to any connection that goes out, so they are none of
these. A lock on a file keeps a port from other test processes until this one ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOCKS = Path(tempfile.gettempdir()) / f"ebbtide-test-ports-{os.getuid()}"
# Open until the process ends: a lock ends with its file.
_held: list[int] = []


def free_port(host: str = LOOPBACK) -> int:
    """Return a port of the host that nobody listens on, and that no other test gets."""
    return next(port for port in _candidates() if _is_ours(port) and _is_free(host, port))


def _candidates() -> Iterator[int]:
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    yield from random.sample(range(_FIRST, end), end - _FIRST)


def _is_ours(port: int) -> bool:
    _LOCKS.mkdir(exist_ok=True)
    lock = os.open(_LOCKS / str(port), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _held.append(lock)
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
