"""Run a command, keep all that it prints, and pass it on line by line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LAST_LINES = 25


class StepError(Exception):
    """A step that failed; the message is what to show."""


def lines_of(
    command: Sequence[str], log: Path, on_failure: Callable[[], str] | None = None
) -> Iterator[str]:
    """Run a command, pass on its output line by line and keep all of it in `log`."""
    with log.open("w") as full, start(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            full.write(line)
            full.flush()
            yield line
    if process.returncode:
        raise failure(f"{command[0]} ended with {process.returncode}", log, on_failure)


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Return the command with an input, and with both outputs in one."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def failure(problem: str, log: Path, cause: Callable[[], str] | None = None) -> StepError:
    """Return an error with the cause, or the end of the output where nobody knows one."""
    shown = (cause() if cause else "") or last_lines(log.read_text())
    return StepError(f"{shown}\n{problem}; all of it: {log}")


def last_lines(text: str) -> str:
    """Return the end of an output."""
    return "\n".join(text.splitlines()[-LAST_LINES:])
