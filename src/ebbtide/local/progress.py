"""A line on the terminal while something takes long; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Shorter than most terminals are wide, with the spinner and the clock beside it.
MOST_CHARACTERS = 100


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """Show `label` and the time since then until the block ends; the callable changes the label."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # Lines that are printed meanwhile go above it, if they go to the terminal too.
    has_output = sys.stdout.isatty()
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=has_output
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda text: progress.update(task, description=text[:MOST_CHARACTERS])
