"""Wait for a condition, never for a time: a busy machine takes longer and fails nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Long enough for any machine, short enough to end a run that hangs.
PATIENCE_S = 1800.0


def wait_until(find: Callable[[], T], what: str, *, pause_s: float = 0.1) -> T:
    """Call `find` until it returns something true; return that.

    Raise AssertionError that names what was waited for, with what was found last.
    """
    end = time.monotonic() + PATIENCE_S
    while not (found := find()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}, found {found!r}")
        time.sleep(pause_s)
    return found


def wait_for_clock(ms: int) -> None:
    """Return once the machine's clock is later than this, in ms since the epoch."""
    wait_until(lambda: time.time_ns() // 1_000_000 > ms, f"the clock to pass {ms}", pause_s=0.001)
