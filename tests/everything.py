"""All tests there are, part by part: `make test-all`. Run it again and it goes on where it was.

A part that cannot run here is named with the reason. The files of tests that have passed are left
out until a source changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from tests.resumed import ROOT

PASSED = ".ebbtide/test-all"
OF_CONTAINERS = ("dockerd", "docker", "docker-compose", "debootstrap")


class Part(NamedTuple):
    """A target of the Makefile, and why it cannot run on this machine."""

    target: str
    why_not: str = ""


def parts() -> list[Part]:
    """Return all parts, the quickest first."""
    return [
        Part("check"),
        Part("test-short-and-long"),
        Part("test-pairs"),
        Part("test-browser"),
        Part("test-services"),
        Part("test-compose", why_not()),
    ]


def why_not() -> str:
    """Return what containers need and this machine lacks; empty if it has all."""
    missing = [program for program in OF_CONTAINERS if shutil.which(program) is None]
    return f"expected {', '.join(missing)} on PATH (apt-get install docker.io)" * bool(missing)


def main() -> int:
    """Run every part, also after one failed; return 1 if any did."""
    environment = {**os.environ, "EBBTIDE_SERVICES": "all"}
    failed = []
    for part in parts():
        if part.why_not:
            print(f"test-all: {part.target} cannot run here: {part.why_not}", flush=True)
            continue
        started = time.monotonic()
        command = ["make", part.target, f"MORE=--resume {PASSED}/{part.target}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        took = f"{(time.monotonic() - started) / 60:.1f} minutes"
        print(f"test-all: {part.target} {'failed' if done.returncode else 'passed'}, {took}")
        failed += [part.target] if done.returncode else []
    if failed:
        print(f"test-all: {' and '.join(failed)} failed; run it again to go on with what failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
