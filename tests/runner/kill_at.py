"""Run a job that is killed with -9 at a commit point: `kill_at.py FILE STEP JOB ARGUMENTS...`.

The file then holds the step, so that a death of another cause is not taken for this one.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from ebbtide.iceberg import commits

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def main() -> None:
    _, killed_at, step, job, *arguments = sys.argv

    def before_commit(reached: commits.Step) -> None:
        if reached == step:
            Path(killed_at).write_text(reached)
            os.kill(os.getpid(), signal.SIGKILL)

    commits.before_commit = before_commit
    sys.argv = [job, *arguments]
    runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")


main()
