"""Run one part of what a landing has to pass, and say what it cost; stop one that costs too much.

    part.py NAME MINUTES COMMAND...     the minutes are the part's share, on two idle cores
    part.py --summary

A part is stopped when it has used one and a half times its share of CPU time, which a busy machine
hardly changes, or when it hangs: it then uses next to no CPU time, however busy the machine is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.cpu_time import tree_cpu_seconds  # noqa: E402  from the checkout, without its packages

KEPT = ROOT / ".ebbtide" / "ci"
PARTS, COSTS = KEPT / "parts.jsonl", KEPT / "costs"
CORES = 2
OVER = 1.5  # times the share
# Whatever works on a busy machine uses more, and whatever only waits uses less.
HANGS_AFTER_S, HANGING_CPU_S = 900.0, 15.0
LOOK_EVERY_S = 2.0
SHOWN = 10


def run(name: str, minutes: float, command: list[str]) -> int:
    """Run a part; return its exit code, or 1 if it was stopped."""
    KEPT.mkdir(parents=True, exist_ok=True)
    started, share_s = time.monotonic(), 60 * minutes
    print(f"ci: {name}, a share of {minutes:g} minutes on {CORES} idle cores", flush=True)
    # Services that a part starts, and leaves, are its children too, so that their time counts.
    _become_subreaper()
    environment = {**os.environ, "EBBTIDE_TEST_COSTS": str(COSTS)}
    part = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    looks: list[Look] = []
    stopped = ""
    while part.poll() is None:
        time.sleep(LOOK_EVERY_S)
        looks.append(Look(time.monotonic() - started, tree_cpu_seconds(os.getpid())))
        stopped = why_stop(looks, share_s)
        if stopped:
            print(f"ci: STOPPED {name}: {stopped}", flush=True)
            os.killpg(part.pid, signal.SIGKILL)
            part.wait()
    cpu_s, wall_s = tree_cpu_seconds(os.getpid()), time.monotonic() - started
    code = 1 if stopped else part.returncode
    with PARTS.open("a") as parts:
        line = {"part": name, "share_s": share_s, "wall_s": wall_s, "cpu_s": cpu_s, "code": code}
        parts.write(json.dumps(line) + "\n")
    return code


class Look(NamedTuple):
    """What a part has taken when it was looked at, in seconds since its start."""

    wall_s: float
    cpu_s: float


def why_stop(looks: Sequence[Look], share_s: float) -> str:
    """Say why a part is to be stopped; empty if it goes on."""
    now = looks[-1]
    if now.cpu_s > OVER * CORES * share_s:
        return (
            f"it has used {now.cpu_s / 60:.0f} minutes of CPU time, and its share is "
            f"{share_s / 60:g} minutes on {CORES} idle cores; make it cheaper, or change the "
            "shares in .ci/run"
        )
    last = [look for look in looks if look.wall_s >= now.wall_s - HANGS_AFTER_S]
    # A process that nobody waits for takes its seconds with it.
    worked_s = sum(max(0.0, after.cpu_s - before.cpu_s) for before, after in pairwise(last))
    if now.wall_s >= HANGS_AFTER_S and worked_s < HANGING_CPU_S:
        return (
            f"it hangs: it has used {worked_s:.0f} seconds of CPU time in the last "
            f"{HANGS_AFTER_S / 60:.0f} minutes; see what it waits for"
        )
    return ""


def _become_subreaper() -> None:
    import ctypes

    set_child_subreaper = 36  # of prctl(2)
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def summarize() -> None:
    """Print what each part took, and the files of tests that cost most."""
    total_s = 0.0
    for line in PARTS.read_text().splitlines() if PARTS.exists() else ():
        part = json.loads(line)
        total_s += part["wall_s"]
        failed = "" if part["code"] == 0 else "  FAILED"
        print(
            f"ci: {part['wall_s'] / 60:6.1f} minutes  {part['cpu_s']:7,.0f} CPU s  of "
            f"{part['share_s'] / 60:4.1f}  {part['part']}{failed}"
        )
    print(f"ci: {total_s / 60:6.1f} minutes in all")
    costs: dict[str, float] = {}
    for path in COSTS.glob("*.json"):
        for file, seconds in json.loads(path.read_text()).items():
            costs[file] = costs.get(file, 0.0) + seconds
    for file in sorted(costs, key=lambda file: -costs[file])[:SHOWN]:
        print(f"ci: {costs[file]:7.1f} CPU s  {file}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--summary"]:
        summarize()
    else:
        sys.exit(run(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
