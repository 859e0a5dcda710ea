"""CPU seconds of a process and of all that it has started: a busy machine hardly changes them."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """Return what a process and its descendants have used, those that ended and were waited for."""
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            # utime, stime, cutime and cstime are the fields 14 to 17; a name may hold blanks.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
            for thread in os.listdir(f"/proc/{pid}/task"):
                waiting += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:  # it has just ended
            continue
    return total / _TICKS_A_SECOND
