"""What a command and all that it starts take."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread

from benchmarks.clean_log.contenders.meter import PROC, TICKS_PER_SECOND, process_tree
from benchmarks.scale.opens import Opens

POLL_SECONDS = 0.2
_WORKERS = (b"pyspark.daemon", b"CoarseGrainedExecutorBackend")


@dataclass(frozen=True, slots=True)
class Taken:
    """One command; memory is the largest sum of resident sets seen at one moment."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    said: str
    opens: int | None = None  # of files of the lake
    driver_rss_bytes: int = 0  # the same without executors and Spark's Python workers


class FailedCommandError(Exception):
    """A command that did not end well."""


def measured(command: Sequence[str], environment: Mapping[str, str], lake: Path) -> Taken:
    """Run the command to its end; `lake` is the directory whose files' opens are counted."""
    with Opens(lake) as opens:
        taken = _measured(command, environment)
    return replace(taken, opens=opens.count)


def _measured(command: Sequence[str], environment: Mapping[str, str]) -> Taken:
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    sampler = _Sampler(process.pid)
    sampler.start()
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    sampler.end()
    if process.returncode:
        lines = "\n".join(said.splitlines()[-30:])
        raise FailedCommandError(f"{command[-1]} ended with {process.returncode}:\n{lines}")
    # A JVM that a script of ours has started is not waited for: only samples tell what it took.
    cpu_s = max(usage.ru_utime + usage.ru_stime, sampler.most_cpu_s)
    wall_s, peak_bytes = time.monotonic() - started, sampler.peak_rss_bytes
    return Taken(wall_s, cpu_s, peak_bytes, said, driver_rss_bytes=sampler.driver_rss_bytes)


class _Sampler(Thread):
    """Looks at a process tree again and again until the end."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.peak_rss_bytes, self.driver_rss_bytes, self.most_cpu_s = 0, 0, 0.0
        self._root, self._ended = root, Event()

    def run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            tree = process_tree(self._root)
            rss_bytes = sum(process.rss_bytes for process in tree.values())
            of_workers = sum(tree[pid].rss_bytes for pid in tree if _is_worker(pid))
            cpu_s = sum(process.cpu_ticks for process in tree.values()) / TICKS_PER_SECOND
            self.peak_rss_bytes = max(self.peak_rss_bytes, rss_bytes)
            self.driver_rss_bytes = max(self.driver_rss_bytes, rss_bytes - of_workers)
            self.most_cpu_s = max(self.most_cpu_s, cpu_s)

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join()


def _is_worker(pid: int) -> bool:
    """Return whether a process is an executor, or one of Spark's Python workers or their daemon."""
    with suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes()
        return any(name in command for name in _WORKERS)
    return False
