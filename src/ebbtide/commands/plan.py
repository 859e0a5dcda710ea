"""Plan a job: show what it would do, and change nothing.

`ebbtide plan JOB ARGUMENTS` runs the job with --plan-only. ARGUMENTS are the job's own, as in
`ebbtide plan delete_records --request '{"topics": [...]}'`. Write --json before JOB. Without --now,
`now` is this machine's time.
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

LAST_LINES = 20  # lines that are shown of a failed job's output
PLAN = "plan: "  # starts the line with the id of a stored plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job and its arguments."""
    parser.add_argument("job", metavar="JOB", help="name of the job: a file in jobs/ without .py")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the job"
    )


def answer(args: argparse.Namespace) -> Answer:
    """Return the plan and the job's exit code. Raise ConfigurationError if Spark is missing."""
    where = paths()
    check_job(where, args.job)
    with TemporaryDirectory(prefix="ebbtide-") as folder:
        plan_file = Path(folder) / "plan.txt"
        command = command_of(where, args.job, args.arguments, plan_file)
        check_arguments(command)
        code, last_lines = run_job(command, f"planning {args.job}")
        plan = plan_file.read_text().rstrip() if plan_file.exists() else ""
    if code:
        print("\n".join(last_lines), file=sys.stderr)
    kept = [line.removeprefix(PLAN) for line in plan.splitlines() if line.startswith(PLAN)]
    document = {"job": args.job, "plan": plan, "plan_ids": kept, "exit_code": code}
    return Answer(plan, document, code)


def check_job(where: Paths, job: str) -> None:
    """Raise RequestError if there is no such job."""
    jobs = sorted(file.stem for file in where.jobs.glob("*.py"))
    if job not in jobs:
        raise RequestError(f"expected one of the jobs {', '.join(jobs)}, found {job!r}")


def command_of(where: Paths, job: str, arguments: Sequence[str], plan_file: Path) -> list[str]:
    """Return the spark-submit command that plans a job."""
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
