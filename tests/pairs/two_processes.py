"""A second process that runs jobs in the same lake, and stops them where the test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ebbtide.iceberg.commits import Step
from tests.lake_sandbox import ROOT, LakeSandbox

WORKER = "tests.pairs.worker"


class OtherProcess:
    """A worker.py: one job at a time, with a Spark of its own that stays."""

    def __init__(self, sandbox: LakeSandbox, errors: Path) -> None:
        self.environment: dict[str, str] = {}  # what its jobs see from the next one on
        self.exit_code = 0  # of the last job that ended
        self._environment = {
            **os.environ,
            **sandbox.environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        self._home = sandbox.home
        self.errors = errors
        self._waiting: set[str] = set()

    def __enter__(self) -> Self:
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(self._home)],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._answer() == {"ready": True}
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def begin(
        self, job: str, arguments: Sequence[str], stops: Mapping[str, Step] | None = None
    ) -> dict[str, list[Step]] | None:
        """Run the job until each topic of `stops` waits before its step.

        Return None then; the steps of each topic if the job ended before.
        """
        stops = stops or {}
        self._waiting = set()
        asked = {"job": job, "arguments": list(arguments), "stops": stops}
        self._tell(asked | {"environment": self.environment})
        while len(self._waiting) < len(stops):
            answer = self._answer()
            if "ended" in answer:
                return self._ended(answer)
            self._waiting.add(answer["topic"])
        return None

    def end(self) -> dict[str, list[Step]]:
        """Let all topics go on, and the job end; return the steps of each topic."""
        self._tell({"go": sorted(self._waiting)})
        while True:
            answer = self._answer()
            if "ended" in answer:
                return self._ended(answer)

    def run(self, job: str, arguments: Sequence[str]) -> dict[str, list[Step]]:
        """Run the whole job; return the steps of each topic."""
        self.begin(job, arguments)
        return self.end()

    def _ended(self, answer: Mapping[str, Any]) -> dict[str, list[Step]]:
        self.exit_code = answer["ended"]
        return _steps_of(answer)

    def _tell(self, what: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the worker has ended: {self.errors.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _steps_of(answer: Mapping[str, Any]) -> dict[str, list[Step]]:
    return {topic: [Step(step) for step in steps] for topic, steps in answer["steps"].items()}
