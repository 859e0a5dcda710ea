"""A progress line on the terminal, and commands whose output is collected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# With the spinner and the clock, this fits into most terminals.
MOST_CHARACTERS = 100


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """Show `label` and the elapsed time until the block ends; yield a function to change it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # Lines printed meanwhile appear above the progress line, if standard output is a terminal.
    has_output = sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=has_output
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda text: progress.update(task, description=text[:MOST_CHARACTERS])


LAST_LINES = 25


class StepError(Exception):
    """A step that failed; the message is shown to the user."""


def lines_of(
    command: Sequence[str], log: Path, on_failure: Callable[[], str] | None = None
) -> Iterator[str]:
    """Run a command, yield its output line by line, and write all of it to `log`.

    Raise StepError if the command fails.
    """
    with log.open("w") as full, start(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            full.write(line)
            full.flush()
            yield line
    if process.returncode:
        raise failure(f"{command[0]} ended with exit code {process.returncode}", log, on_failure)


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start the command with an input, and with both outputs in one stream."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def failure(problem: str, log: Path, cause: Callable[[], str] | None = None) -> StepError:
    """Return an error with the cause, or with the end of the output if no cause is known."""
    shown = (cause() if cause else "") or last_lines(log.read_text())
    return StepError(f"{shown}\n{problem}. Full output: {log}")


def last_lines(text: str) -> str:
    """Return the last lines of an output."""
    return "\n".join(text.splitlines()[-LAST_LINES:])
