"""`python -m tests.chaos --schedules 200 --seed 7`: nights in which much goes wrong, and none may.

Goes on where it was stopped: what each schedule came to is kept in `.ebbtide/chaos/`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tests.conftest  # noqa: F401 (what Spark's workers need)
from ebbtide.log.names import CATALOG
from tests.chaos.schedules import SCHEDULES_A_LOG, disturbed, log_of, undisturbed
from tests.lake_sandbox import EBBTIDE_HOME, LakeSandbox

A_PROCESS = 20  # schedules; hundreds would fill a JVM


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left, tell how far it is; 1 where a schedule went wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, help="run these in this process, and keep nothing")
    arguments = parser.parse_args(argv)
    if arguments.first is not None:
        run(arguments.seed, range(arguments.first, arguments.schedules))
        return 0
    kept = EBBTIDE_HOME / "chaos" / f"{arguments.seed}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    done = [json.loads(line) for line in kept.read_text().splitlines()]
    started = time.monotonic()
    while len(done) < arguments.schedules:
        end = min(len(done) + A_PROCESS - len(done) % A_PROCESS, arguments.schedules)
        told = list(_in_process(arguments.seed, len(done), end, kept, started))
        if not told:
            return 1
        done += told
    return _sum_up(done[: arguments.schedules])


def _in_process(seed: int, first: int, end: int, kept: Path, started: float) -> Any:
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(seed)]
    command += ["--first", str(first), "--schedules", str(end)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            with kept.open("a") as file:
                file.write(line)
            told = json.loads(line)
            print(
                f"chaos: schedule {told['schedule']}, {time.monotonic() - started:.0f} s, "
                f"{'ends as undisturbed' if not told['problems'] else told['problems']}",
                file=sys.stderr,
                flush=True,
            )
            yield told


def run(seed: int, schedules: range) -> None:
    """Run schedules in this process; a line of JSON each."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        sandbox = LakeSandbox(Path(folder) / "home")
        sandbox.session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
        expected: dict[int, Any] = {}
        for number in schedules:
            topic, log = log_of(seed, number), number // SCHEDULES_A_LOG
            if log not in expected:
                expected = {log: undisturbed(sandbox, topic, Path(folder) / f"u{log}")}
            home = Path(folder) / f"s{number}"
            told = disturbed(sandbox, topic, home, expected[log], (seed, number))
            line = {
                "schedule": number,
                "happened": told.happened,
                "changed": told.changed,
                "problems": told.problems,
            }
            print(json.dumps(line), flush=True)


def _sum_up(done: Sequence[dict[str, Any]]) -> int:
    happened: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for told in done:
        happened.update(told["happened"])
        changed.update(told["changed"].keys())
    wrong = [told for told in done if told["problems"]]
    print(f"{len(done)} schedules: {len(wrong)} went wrong")
    for title, counts in (("happened", happened), ("schedules that a tool changed", changed)):
        print(f"{title}: " + ", ".join(f"{what} {count}" for what, count in counts.most_common()))
    for told in wrong:
        print(f"schedule {told['schedule']}:", *told["problems"], sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
