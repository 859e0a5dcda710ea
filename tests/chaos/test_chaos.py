"""A few nights in which much goes wrong, with a seed that each run of the tests draws anew."""

import json
import subprocess
import sys

from tests.fresh_seed import FRESH_SEED

# Of logs of two nights; one with real kills and one that strangers visit are among them.
SCHEDULES = range(5, 11)


def test_disturbed_nights_end_as_undisturbed_ones() -> None:
    schedules = map(str, SCHEDULES)
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(FRESH_SEED), "--only", *schedules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["schedule"] for one in told] == list(SCHEDULES)
    assert {one["schedule"]: one["problems"] for one in told if one["problems"]} == {}
    assert sum(one["happened"].get("kill", 0) for one in told) > 0
