"""`python -m tests.erasure --schedules 500 --seed 7`: erasures and deadlines in random schedules.

Two processes share the schedules. The last lines have how long before its deadline each key went.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import tests.conftest  # noqa: F401 (secrets, and the key that signs)
from ebbtide.settings.config import DAY_MS
from tests.erasure.machine import machine_of
from tests.erasure.world import World
from tests.jobs.ingest_topic.live import connect
from tests.kafka.broker import KafkaBroker
from tests.kafka.delete_broker import SETTINGS
from tests.kafka.oracle import JARS
from tests.lake_sandbox import LakeSandbox

PROCESSES = 2
A_PROCESS = 25  # schedules; a JVM and a lake of many grow slow
STEPS = 14


def main(argv: Sequence[str] | None = None) -> int:
    """Run the schedules; 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="erasures", description=__doc__)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--alone", action="store_true", help="in this process, without any other")
    args = parser.parse_args(argv)
    if args.alone:
        run(args.seed, args.schedules)
        return 0

    def run_some(first: int) -> subprocess.CompletedProcess[str]:
        count = min(A_PROCESS, args.schedules - first)
        command = [sys.executable, "-m", "tests.erasure", "--alone"]
        command += ["--seed", f"{args.seed * 1000 + first}", "--schedules", str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(f"schedules {first} to {first + count - 1}: exit code {done.returncode}", flush=True)
        return done

    with ThreadPoolExecutor(PROCESSES) as pool:
        done = list(pool.map(run_some, range(0, args.schedules, A_PROCESS)))
    return sum_up(line for one in done for line in one.stdout.splitlines()) or int(
        any(one.returncode for one in done)
    )


def run(number: int, schedules: int) -> None:
    """Run schedules in this process; a line of JSON each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="erasures-")))
        broker = stack.enter_context(KafkaBroker(JARS, folder / "broker", **SETTINGS))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        run_on(broker, folder, patch, number, schedules)


def run_on(
    broker: KafkaBroker,
    folder: Path,
    patch: pytest.MonkeyPatch,
    number: int,
    schedules: int,
    steps: int = STEPS,
) -> list[World]:
    """Run schedules on one broker, each in a lake of its own; the worlds of those that ended."""
    connect(patch, broker)
    ended: list[World] = []
    numbers, jobs = count(), pytest.MonkeyPatch()

    def new_world() -> World:
        jobs.undo()
        sandbox = LakeSandbox(folder / f"lake-{next(numbers)}")
        sandbox.take_jobs(jobs)
        return World(sandbox, broker, folder / "certificate")

    def tell(world: World) -> None:
        ended.append(world)
        shutil.rmtree(world.sandbox.home)
        told = {"slack_ms": world.slack_ms, "happened": world.happened}
        print(json.dumps(told), flush=True)

    machine = machine_of(new_world, tell)
    try:
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=schedules,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                derandomize=False,
                # A schedule that went wrong is shown as it was: to shorten it would take hours.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    finally:
        jobs.undo()
    return ended


def sum_up(lines: Iterable[str]) -> int:
    """Tell of all schedules; 1 if a key went after its deadline."""
    told = [json.loads(line) for line in lines if line.startswith("{")]
    slack_ms = sorted(ms for one in told for ms in one["slack_ms"])
    happened: dict[str, int] = {}
    for one in told:
        for what, times in one["happened"].items():
            happened[what] = happened.get(what, 0) + times
    print(f"{len(told)} schedules: " + ", ".join(f"{w} {n}" for w, n in sorted(happened.items())))
    if not slack_ms:
        return 0
    days = [f"{ms / DAY_MS:.1f}" for ms in (slack_ms[0], slack_ms[len(slack_ms) // 2])]
    print(
        f"{len(slack_ms)} keys went; max(erased_at - deadline) = -{days[0]} days, the median "
        f"-{days[1]}"
    )
    return int(slack_ms[0] < 0)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
