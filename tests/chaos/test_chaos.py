"""A few schedules of a fresh seed; `make chaos` runs as many as one likes."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.fresh_seed import FRESH_SEED
from tests.lake_sandbox import ROOT

SCHEDULES = 6


def test_disturbed_nights_end_as_undisturbed_ones() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(FRESH_SEED)]
    command += ["--first", "0", "--schedules", str(SCHEDULES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [of["schedule"] for of in told] == list(range(SCHEDULES))
    assert [of["problems"] for of in told] == [[]] * SCHEDULES, f"seed {FRESH_SEED}"
