"""Execute a stored plan, and show the report of its run.

`ebbtide execute PLAN_ID ARGUMENTS` runs the plan's job with --plan; ARGUMENTS are the job's own, as
in `--approved-by NAME`. A plan of erase_keys needs its keys again. --json stands before PLAN_ID.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime

from ebbtide.commands.answer import Answer
from ebbtide.commands.plan import check_job, run_job, submit
from ebbtide.commands.report import report_of
from ebbtide.errors import RequestError
from ebbtide.orchestration.driver_inputs import check_arguments, paths

_PLAN_ID = re.compile(r"([a-z_]+)-[0-9]{8}-[0-9a-f]{8}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan and all that follows it."""
    parser.add_argument(
        "plan", metavar="PLAN_ID", help="id of the plan, as `ebbtide plan` shows it"
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="more arguments of the job"
    )


def answer(args: argparse.Namespace) -> Answer:
    """Return the run's report and the job's exit code.

    The report is empty if the run has no row, for example because the plan is unknown.
    """
    where, job = paths(), job_of(args.plan)
    check_job(where, job)
    run_id = f"command_line__{datetime.now(UTC).isoformat()}"
    command = submit(where, job, [*args.arguments, "--plan", args.plan, "--run-id", run_id])
    check_arguments(command)
    code, last_lines = run_job(command, f"executing {args.plan}")
    if code:
        print("\n".join(last_lines), file=sys.stderr)
    answer = replace(report_of(run_id), code=code)
    return answer if answer.document["attempts"] else replace(answer, text="")


def job_of(plan_id: str) -> str:
    """Return the job of a plan by the plan's id. Raise RequestError for a text that is no id."""
    match = _PLAN_ID.fullmatch(plan_id)
    if match is None:
        raise RequestError(
            "expected the id of a plan, such as delete_records-20261122-5f0c1a2b, found "
            f"{plan_id[:100]!r}"
        )
    return match[1]
