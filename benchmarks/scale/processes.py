"""What a command and all that it starts take."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread

from benchmarks.clean_log.contenders.meter import process_tree

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Taken:
    """One command; memory is the largest sum of resident sets seen at one moment."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    said: str


class FailedCommandError(Exception):
    """A command that did not end well."""


def measured(command: Sequence[str], environment: Mapping[str, str]) -> Taken:
    """Run the command to its end."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    ended, peaks = Event(), [0]
    sampler = Thread(target=_sample, args=(process.pid, ended, peaks), daemon=True)
    sampler.start()
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    sampler.join()
    if process.returncode:
        lines = "\n".join(said.splitlines()[-30:])
        raise FailedCommandError(f"{command[-1]} ended with {process.returncode}:\n{lines}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Taken(time.monotonic() - started, cpu_s, peaks[0], said)


def _sample(root: int, ended: Event, peaks: list[int]) -> None:
    while not ended.wait(POLL_SECONDS):
        rss_bytes = sum(process.rss_bytes for process in process_tree(root).values())
        peaks[0] = max(peaks[0], rss_bytes)
