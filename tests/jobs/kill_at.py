"""Run a job that is killed with -9 at a commit point: `kill_at.py STEP JOB ARGUMENTS...`."""

import os
import runpy
import signal
import sys
from pathlib import Path

from ebbtide.tables import commits

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def main() -> None:
    _, step, job, *arguments = sys.argv

    def before_commit(reached: commits.Step) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    commits.before_commit = before_commit
    sys.argv = [job, *arguments]
    runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")


main()
