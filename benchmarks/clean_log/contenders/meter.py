"""What a process and its descendants use: CPU seconds, memory, bytes through system calls."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, Self

PROC = Path("/proc")
POLL_SECONDS = 0.2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """One stretch of work; bytes are those of read and write calls, page cache included."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    read_bytes: int
    written_bytes: int


class _Process(NamedTuple):
    parent: int
    cpu_ticks: int  # its own and those of the children it has waited for
    rss_bytes: int


class Meter:
    """Measures a process tree from `with` to its end; then `usage` is there.

    Memory is the largest sum of resident sets seen at one moment, so shared pages count twice.
    """

    usage: Usage

    def __init__(self, root_pid: int) -> None:
        self._root = root_pid
        self._ended = Event()
        self._sampler = Thread(target=self._sample, daemon=True)
        self._peak_rss_bytes = 0

    def __enter__(self) -> Self:
        self._sampler.start()
        self._before = self._totals()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self._started
        after = self._totals()
        self._ended.set()
        self._sampler.join()
        cpu_s, read_bytes, written_bytes = (
            end - start for end, start in zip(after, self._before, strict=True)
        )
        self.usage = Usage(wall_s, cpu_s, self._peak_rss_bytes, int(read_bytes), int(written_bytes))

    def _sample(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            rss_bytes = sum(process.rss_bytes for process in process_tree(self._root).values())
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)

    def _totals(self) -> tuple[float, int, int]:
        """CPU seconds, bytes read, bytes written, up to now."""
        tree = process_tree(self._root)
        moved = [_bytes_moved(pid) for pid in tree]
        ticks = sum(process.cpu_ticks for process in tree.values())
        return ticks / TICKS_PER_SECOND, sum(r for r, _ in moved), sum(w for _, w in moved)


def process_tree(root: int) -> dict[int, _Process]:
    """The root and all its descendants, as they are now; none where the root has ended."""
    all_processes = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                all_processes[int(entry.name)] = _parse_stat((entry / "stat").read_text())
    tree = {pid: process for pid, process in all_processes.items() if pid == root}
    size = 0
    while size < len(tree):
        size = len(tree)
        tree |= {pid: p for pid, p in all_processes.items() if p.parent in tree}
    return tree


def _parse_stat(text: str) -> _Process:
    """Fields from the third on, which follow the name in parentheses (proc_pid_stat(5))."""
    fields = text.rpartition(")")[2].split()
    return _Process(int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]) * PAGE_BYTES)


def _bytes_moved(pid: int) -> tuple[int, int]:
    """Read and written, those of children it has waited for included."""
    with suppress(OSError):
        facts = dict(line.split(": ") for line in (PROC / str(pid) / "io").read_text().splitlines())
        return int(facts["rchar"]), int(facts["wchar"])
    return 0, 0
