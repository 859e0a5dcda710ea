"""Real spark-submits of the jobs on a sandbox's lake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ebbtide.iceberg.commits import Step
from tests.commit_points import record_hit
from tests.lake_sandbox import ROOT, LakeSandbox

KILL_AT = Path(__file__).parent / "kill_at.py"
BIN = Path(sys.executable).parent
KILLED = 128 + 9  # what spark-submit returns when its Python is killed with -9


def submit(
    sandbox: LakeSandbox, job: str, *arguments: str, kill_at: Step | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the job to its end, or until it kills itself at a commit point."""
    killed_at = sandbox.home / "killed_at"
    main = [str(ROOT / "jobs" / f"{job}.py")]
    if kill_at is not None:
        killed_at.unlink(missing_ok=True)
        main = [str(KILL_AT), str(killed_at), kill_at, job]
    done = subprocess.run(
        [*_command(sandbox), *main, *arguments, "--run-id", "test"],
        env=_environment(sandbox),
        capture_output=True,
        text=True,
        check=False,
    )
    if kill_at is not None and done.returncode == KILLED and killed_at.exists():
        record_hit(killed_at.read_text())
    return done


def started(sandbox: LakeSandbox, job: str, *arguments: str) -> subprocess.Popen[str]:
    """Begin the job; all that it says comes out of one pipe."""
    main = str(ROOT / "jobs" / f"{job}.py")
    return subprocess.Popen(
        [*_command(sandbox), main, *arguments, "--run-id", "test"],
        env=_environment(sandbox),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _command(sandbox: LakeSandbox) -> list[str]:
    sandbox.package()
    return [str(BIN / "spark-submit"), "--py-files", str(sandbox.home / "ebbtide.zip")]


def _environment(sandbox: LakeSandbox) -> dict[str, str]:
    return {**os.environ, **sandbox.environment(), "PATH": f"{BIN}:{os.environ['PATH']}"}
