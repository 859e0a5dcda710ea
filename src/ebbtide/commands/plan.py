"""Plan a job: what it would do, and nothing is changed.

`ebbtide plan JOB ARGUMENTS` runs the job with --plan-only; ARGUMENTS are the job's own, as in
`ebbtide plan delete_records --request '{"topics": [...]}'`. --json stands before JOB. Without --now
the clock is this machine's.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ebbtide.commands.answer import Answer, missing_command
from ebbtide.errors import RequestError
from ebbtide.local.progress import start, working
from ebbtide.orchestration.driver_inputs import Paths, check_arguments, paths

LAST_LINES = 20  # of a job that failed
PLAN = "plan: "  # before the id of a plan that was kept, on a line of its own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job and all that follows it."""
    parser.add_argument("job", metavar="JOB", help="as its file in jobs/ is called")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the job's own")


def answer(args: argparse.Namespace) -> Answer:
    """Return the plan and the job's exit code; ConfigurationError where Spark cannot start."""
    where = paths()
    check_job(where, args.job)
    with TemporaryDirectory(prefix="ebbtide-") as folder:
        plan_file = Path(folder) / "plan.txt"
        command = command_of(where, args.job, args.arguments, plan_file)
        check_arguments(command)
        code, last_lines = run_job(command, f"plans {args.job}")
        plan = plan_file.read_text().rstrip() if plan_file.exists() else ""
    if code:
        print("\n".join(last_lines), file=sys.stderr)
    kept = [line.removeprefix(PLAN) for line in plan.splitlines() if line.startswith(PLAN)]
    document = {"job": args.job, "plan": plan, "plan_ids": kept, "exit_code": code}
    return Answer(plan, document, code)


def check_job(where: Paths, job: str) -> None:
    """Raise RequestError for a job that there is not."""
    jobs = sorted(file.stem for file in where.jobs.glob("*.py"))
    if job not in jobs:
        raise RequestError(f"expected one of the jobs {', '.join(jobs)}, found {job!r}")


def command_of(where: Paths, job: str, arguments: Sequence[str], plan_file: Path) -> list[str]:
    """Return the command of a job that only plans."""
    now = datetime.now(UTC)
    clock = () if "--now" in arguments else ("--now", now.isoformat(timespec="milliseconds"))
    run_id = f"command_line__{now.isoformat()}"
    of_plan = ("--run-id", run_id, "--plan-only", "--plan-file", str(plan_file))
    return submit(where, job, [*arguments, *clock, *of_plan])


def submit(where: Paths, job: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a job with these arguments."""
    spark = ("spark-submit", "--name", f"ebbtide {job}", "--py-files", str(where.package_zip))
    return [*spark, str(where.jobs / f"{job}.py"), *arguments]


def run_job(command: Sequence[str], label: str) -> tuple[int, list[str]]:
    """Run the job and show its newest line; return its exit code and last lines."""
    lines: deque[str] = deque(maxlen=LAST_LINES)
    try:
        process = start(command)
    except FileNotFoundError:
        raise missing_command(command[0]) from None
    with process, working(label) as show:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if " INFO " in line:
                show(line.partition(" INFO ")[2].strip())
    return process.returncode, list(lines)
