"""Real spark-submits of the jobs on a sandbox's lake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ebbtide.tables.commits import Step
from tests.lake_sandbox import ROOT, LakeSandbox

KILL_AT = Path(__file__).parent / "kill_at.py"
BIN = Path(sys.executable).parent


def submit(
    sandbox: LakeSandbox, job: str, *arguments: str, kill_at: Step | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the job to its end, or until it kills itself at a commit point."""
    sandbox.package()
    main = [str(ROOT / "jobs" / f"{job}.py")] if kill_at is None else [str(KILL_AT), kill_at, job]
    command = [str(BIN / "spark-submit"), "--py-files", str(sandbox.home / "ebbtide.zip")]
    environment = {**os.environ, **sandbox.environment(), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        [*command, *main, *arguments, "--run-id", "test"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
