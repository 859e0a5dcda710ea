"""`python -m tests.chaos --schedules 200 --seed 7`: nights in which much goes wrong, and none may.

Goes on where it was stopped: what each schedule came to is kept in `.ebbtide/chaos/`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tests.conftest  # noqa: F401 (what Spark's workers need)
from ebbtide.local.progress import working
from ebbtide.settings.names import CATALOG
from tests.chaos.company import BESIDE_IT, COMPANY, THAT_FAILED
from tests.chaos.disturbance import TOOLS
from tests.chaos.schedules import KILL_9, SCHEDULES_A_LOG, disturbed, log_of, undisturbed
from tests.kafka.oracle import MEMORY
from tests.lake_sandbox import EBBTIDE_HOME, LakeSandbox
from tests.pairs.two_processes import OtherProcess

A_PROCESS = 20  # schedules; hundreds would fill a JVM
# A run of so many schedules proves something only if each tool changed this many, and this many
# jobs were killed by the system.
WHOLE_RUN = 200
LEAST_CHANGED = 50
LEAST_KILLED = 20
# Of so many schedules at least half must have had company at a commit point. Two of three may have
# it (see schedules.py) and nearly each of these has, so that half is missed only if the other
# process hardly works. Of fewer schedules, chance may miss it.
RUN_IN_COMPANY = 50
PROCESSES = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left, tell how far it is; 1 where a schedule went wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--only", type=int, nargs="+", help="run these in this process, and keep nothing"
    )
    arguments = parser.parse_args(argv)
    if arguments.only:
        run(arguments.seed, arguments.only)
        return 0
    kept = EBBTIDE_HOME / "chaos" / f"{arguments.seed}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    kept.touch()
    run_side_by_side(arguments.seed, arguments.schedules, kept)
    done = _read(kept)
    return sum_up([done[number] for number in sorted(done) if number < arguments.schedules])


def run_side_by_side(seed: int, schedules: int, kept: Path) -> None:
    """Run in processes of their own, two at a time, what is not kept yet."""
    done, started, lock = _read(kept), time.monotonic(), threading.Lock()

    def note(line: str) -> None:
        told = json.loads(line)
        with lock, kept.open("a") as file:
            file.write(line)
            done[told["schedule"]] = told
        ended = told["problems"] or "ends as undisturbed"
        seconds = time.monotonic() - started
        print(f"chaos: schedule {told['schedule']}, {seconds:.0f} s, {ended}", file=sys.stderr)
        show(f"{len(done)} of {schedules} schedules")

    def run_some(first: int) -> None:
        end = min(first + A_PROCESS, schedules)
        left = [number for number in range(first, end) if number not in done]
        if not left:
            return
        command = [sys.executable, "-m", "tests.chaos", "--seed", str(seed)]
        command += ["--only", *map(str, left)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                if line.startswith("{"):
                    note(line)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)

    with working("schedules") as show, ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(run_some, range(0, schedules, A_PROCESS)))


def _read(kept: Path) -> dict[int, dict[str, Any]]:
    told = [json.loads(line) for line in kept.read_text().splitlines()]
    return {line["schedule"]: line for line in told}


def run(seed: int, schedules: Iterable[int]) -> None:
    """Run schedules in this process; a line of JSON each."""
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=MEMORY) as folder:
        sandbox = LakeSandbox(Path(folder) / "home")
        sandbox.session.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()
        with OtherProcess(sandbox, Path(folder) / "company.log") as other:
            run_beside(sandbox, other, Path(folder), seed, schedules)


def run_beside(
    sandbox: LakeSandbox, other: OtherProcess, folder: Path, seed: int, schedules: Iterable[int]
) -> None:
    """Run schedules, with another process for those that have company."""
    expected: dict[int, Any] = {}
    for number in schedules:
        started = time.monotonic()
        topic, log = log_of(seed, number), number // SCHEDULES_A_LOG
        if log not in expected:
            expected = {log: undisturbed(sandbox, topic, folder / f"u{log}")}
        home = folder / f"s{number}"
        told = disturbed(sandbox, topic, home, expected[log], (seed, number), other)
        line = {
            "schedule": number,
            "seconds": round(time.monotonic() - started),
            "happened": told.happened,
            "changed": told.changed,
            "problems": told.problems,
        }
        print(json.dumps(line), flush=True)


def sum_up(done: Sequence[dict[str, Any]]) -> int:
    """Tell how schedules ended; 1 where one went wrong, or a whole run met too little."""
    happened: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    for told in done:
        happened.update(told["happened"])
        changed.update(tool for tool, times in told["changed"].items() if times)
    wrong = [told for told in done if told["problems"]]
    hours = sum(told.get("seconds", 0) for told in done) / 3600
    print(f"{len(done)} schedules in {hours:.1f} hours, side by side: {len(wrong)} went wrong")
    in_company = sum(map(had_company, done))
    print(f"schedules in which another process worked at a commit point: {in_company}")
    for title, counts in (("happened", happened), ("schedules that a tool changed", changed)):
        print(f"{title}: " + ", ".join(f"{what} {count}" for what, count in counts.most_common()))
    for told in wrong:
        print(f"schedule {told['schedule']}:", *told["problems"], sep="\n  ")
    too_few = list(_too_few(happened, changed)) if len(done) >= WHOLE_RUN else []
    if len(done) >= RUN_IN_COMPANY and in_company < (half := (len(done) + 1) // 2):
        too_few.append(
            f"expected another process to work at a commit point in {half} schedules, found "
            f"{in_company}"
        )
    print(*too_few, sep="\n", end="\n" if too_few else "")
    return 1 if wrong or too_few else 0


def had_company(told: Mapping[str, Any]) -> bool:
    """Return whether another process did a job whole, and well, at a commit point of a job.

    A job that began beside another met no commit point that is known; one that failed, as a wrong
    command line would, changed nothing.
    """
    return any(
        event.startswith(COMPANY) and not event.endswith((BESIDE_IT, THAT_FAILED))
        for event in told["happened"]
    )


def _too_few(happened: Counter[str], changed: Counter[str]) -> Iterator[str]:
    """What has come by too seldom in a whole run."""
    for tool in TOOLS:
        if changed[tool] < LEAST_CHANGED:
            yield f"expected {tool} to change {LEAST_CHANGED} schedules, found {changed[tool]}"
    if happened[KILL_9] < LEAST_KILLED:
        yield f"expected {LEAST_KILLED} jobs to die of {KILL_9}, found {happened[KILL_9]}"


if __name__ == "__main__":
    sys.exit(main())
